"""What the folders of a data set mean: which are splits, which are classes, and which are neither.

`folder:` and `vit_jax.prepare` ask the same functions, so that they read a folder alike.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable

from vit_jax.foundation.errors import UserError

Folders = tuple[str, ...]  # the folders around a file, outermost first

NAMED = 5  # folders, classes or endings that a sentence lists

# The words are those of Hugging Face's `datasets` (data_files.py) and of what Kaggle's archives hold.
_SPLITS = {
  'train': ('train', 'training', 'trainval', 'trn'),
  'val': ('val', 'valid', 'validation', 'dev'),
  'test': ('test', 'testing', 'tst', 'eval', 'evaluation'),
}
_SPLIT_OF_WORD = {word: split for split, words in _SPLITS.items() for word in words}
# No filler is made of others: a name would match in many ways, and not to match it would take for ever.
_FILLER = r'(?:set|data|images?|imgs?|photos?|pictures?|seg|split|folder)'
_SPLIT = re.compile(
  rf'(?:{_FILLER}[-_. ]*)*({"|".join(_SPLIT_OF_WORD)})(?:[-_. ]*(?:{_FILLER}|(?:19|20)\d\d))*', re.IGNORECASE
)
# What programs leave behind: a NAS's thumbnails and bins, what is Apple's in a zip, what is Windows'.
_LEFT_BEHIND = {'@eadir', '@recycle', '#recycle', '#snapshot', '__macosx', '$recycle.bin', 'lost+found'}
_IMAGES = {'images', 'image', 'imgs', 'img', 'photos', 'jpegimages', 'jpg', 'jpeg', 'png'}
_BESIDE_IMAGES = {
  *('labels', 'label', 'annotations', 'annotation', 'xmls', 'masks', 'mask', 'imagesets'),
  *('segmentationclass', 'segmentationobject'),
}


def split_named(name: str) -> str | None:
  """'train', 'val' or 'test' if a name is a usual one of it: 'Training', 'valid', 'seg_test'; None otherwise."""
  match = _SPLIT.fullmatch(name)
  return _SPLIT_OF_WORD[match[1].lower()] if match else None


def splits_among(folders: Iterable[str], where: object) -> dict[str, str]:
  """Folders called like splits -> 'train', 'val' or 'test'; {}: they are classes. UserError: two are one split."""
  found = {name: split for name in sorted(folders) if (split := split_named(name))}
  first: dict[str, str] = {}
  for name, split in found.items():
    if (other := first.setdefault(split, name)) != name:
      raise UserError(
        f'{where} has both {other}/ and {name}/, which are the split {split!r}; remove or rename one of them.'
      )
  return found


def is_hidden(name: str) -> bool:
  """Whether a file or folder is none of the data: hidden, or left behind by a program (`@eaDir`, `__MACOSX`)."""
  return name[0] == '.' or name.lower() in _LEFT_BEHIND


def class_name(text: str) -> str:
  """A class's name, of a folder or a cell, as text: Apple's accents become NFC, a byte that is no UTF-8 '\\xff'."""
  text = text.encode(errors='surrogateescape').decode(errors='backslashreplace')
  return unicodedata.normalize('NFC', text)


def check_class_names(names: Iterable[str], where: object) -> None:
  """Raises UserError for a class whose name cannot be printed in one line."""
  for name in names:
    if name != name.strip() or not name.isprintable():
      raise UserError(f'{where} has a class called {name!r}, which cannot be printed in one line; rename it.')


def check_classes(classes: Collection[str], with_images: Iterable[Folders], where: object, give: str) -> None:
  """Checks that folders can be classes.

  Args:
    classes: the names of the folders, those without images too.
    with_images: the folders that have images of their own, below `where`; each begins with one of `classes`.
    where: the folder around them.
    give: how to give a folder of `where` instead, before its name: 'give folder:/data/'.

  Raises:
    UserError: no class has images of its own, but all have folders of images, which are not just called
      'images'; or the folders hold kinds of files, such as images and labels.
  """
  kinds = {name.lower() for name in classes}
  if len(kinds) > 1 and kinds & _IMAGES and kinds <= _IMAGES | _BESIDE_IMAGES:
    raise UserError(
      f'{where} has the folders {listed(classes)}, which are kinds of files and no classes; put the images of '
      f'each class into a folder named after it, or prepare a .csv file with the columns image, label.'
    )
  inner: dict[str, set[str]] = {}
  for folders in with_images:
    if len(folders) < 2:
      return
    inner.setdefault(folders[0], set()).add(folders[1])
  if all(name.lower() in _IMAGES for names in inner.values() for name in names):
    return
  below = listed(set().union(*inner.values()))
  raise UserError(
    f'{where} has no images in {listed(inner)} but one level below, in {below}; if these are the classes, '
    f'{give}{min(inner)}, or rename the folders around them to train, val and test; otherwise move the images up '
    f'into the folders of their classes.'
  )


def check_evaluated(classes: Iterable[str], known: Collection[str], where: object) -> None:
  """Raises UserError if a split's folders are those of the training split in another case, or just 'images'."""
  names = {name.lower(): name for name in known}
  for name in sorted({class_name(name) for name in classes} - set(known)):
    if twin := names.get(name.lower()):
      raise UserError(
        f'{where} has the class folder {name!r}, and the training split {twin!r}; rename one of them.'
      )
    if known and name.lower() in _IMAGES:
      raise UserError(
        f'{where} has a folder {name!r}, and the training split has folders of {len(known)} classes; put each image '
        f'into the folder of its class, or remove {where}.'
      )


def listed(names: Collection[str]) -> str:
  """The first few of some names, sorted: 'ant, bee, cat, dog, eel and 2 more'."""
  more = f' and {len(names) - NAMED} more' if len(names) > NAMED else ''
  texts = map(class_name, sorted(names)[:NAMED])
  return ', '.join(text if text.isprintable() else repr(text) for text in texts) + more
