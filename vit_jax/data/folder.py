"""A person's own images: `folder:/path`, one sub-folder per class.

Either `train/CLASS/…` beside `val/CLASS/…` (or `validation/`) and `test/CLASS/…`, or `CLASS/…` directly, of
which a share is held out as 'val'. Folders within a class belong to it; hidden files are ignored.
"""

import hashlib
import logging
import os
import pathlib
import re
from collections.abc import Iterator, Sequence

from vit_jax.data.records import Record, check_split, select
from vit_jax.errors import UserError

_EXTENSIONS = ('.jpg', '.jpeg', '.png', '.webp', '.bmp', '.gif', '.tif', '.tiff')
_SPLITS = {'train': 'train', 'val': 'val', 'validation': 'val', 'test': 'test'}  # folder -> split

_Classes = dict[str, list[str]]  # class -> the paths of its images, relative to the root, with '/'


class FolderSource:
  """The images of one split, ordered by a hash of their path, so that a slice of it has all classes."""

  def __init__(self, root: str, split: str, *, val_fraction: float, class_names: Sequence[str] | None = None):
    """Lists the files; opens none.

    Args:
      root: the folder.
      split: 'train', 'val' (or 'validation') or 'test', with slices.
      val_fraction: the share held out as 'val' where the root has no folders of splits.
      class_names: label -> name; None: the training split's classes, sorted.

    Raises:
      UserError: no such folder or split, no images, or a class that the training split lacks.
    """
    self._root = pathlib.Path(root).expanduser()
    if not self._root.is_dir():
      raise UserError(f'There is no folder {root}; give the path of one that has a sub-folder per class.')
    splits, train_classes = _splits(self._root, split, val_fraction)
    self.class_names = tuple(class_names or train_classes)
    for name, classes in splits.items():
      complete = name == 'train' and class_names is None
      _check_classes(classes, self.class_names, f'{root} ({name})', complete=complete)
    labels = {name: number for number, name in enumerate(self.class_names)}
    files = {
      split_name: sorted(((p, labels[c]) for c, paths in classes.items() for p in paths), key=_hash_order)
      for split_name, classes in splits.items()
    }
    ranges = select(_normal(split), {name: len(part) for name, part in files.items()}, root)
    self._files = [file for name, first, last in ranges for file in files[name][first:last]]

  def __len__(self) -> int:
    return len(self._files)

  def __getitem__(self, index: int) -> Record:
    """Raises UserError for a file that cannot be read."""
    path, label = self._files[index]
    path = os.path.join(self._root, path)
    try:
      with open(path, 'rb') as file:
        return Record(file.read(), label, path)
    except OSError as error:
      raise UserError(f'{path} cannot be read ({error.strerror}); restore or remove it.') from error


def _splits(root: pathlib.Path, split: str, val_fraction: float) -> tuple[dict[str, _Classes], list[str]]:
  """The files of the splits that `split` names, and the sorted classes of the training split."""
  folders = {name: _SPLITS[name] for name in _folders(root) if name in _SPLITS}
  if not folders:
    check_split(_normal(split), ('train', 'val'), str(root))
    everything = _classes(root, root)
    return _hold_out(everything, val_fraction), sorted(everything)
  if len(set(folders.values())) < len(folders):
    raise UserError(f'{root} has both val/ and validation/; remove or rename one of them.')
  check_split(_normal(split), list(folders.values()), str(root))
  wanted = re.findall(r'\w+', _normal(split))
  found = {
    name: _classes(root, root / folder)
    for folder, name in folders.items()
    if name in wanted or 'all' in wanted
  }
  if 'train' not in folders:
    return found, []
  return found, _folders(root / 'train')


def _normal(split: str) -> str:
  return re.sub(r'\bvalidation\b', 'val', split)


def _folders(path: pathlib.Path) -> list[str]:
  return sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and entry.name[0] != '.')


def _classes(root: pathlib.Path, top: pathlib.Path) -> _Classes:
  """The images of each class folder under `top`; warns of how many other files there are."""
  classes, others = {}, []
  for name in _folders(top):
    classes[name] = []
    for path in _files(top / name):
      (classes[name] if path.lower().endswith(_EXTENSIONS) else others).append(path)
    classes[name] = [pathlib.Path(path).relative_to(root).as_posix() for path in classes[name]]
  if not any(classes.values()):
    raise UserError(
      f'{top} has no images in class sub-folders; put the {", ".join(e[1:] for e in _EXTENSIONS)} files of '
      f'each class into a folder named after it.'
    )
  if others:
    logging.warning('%s: ignored %d files that are not images, such as %s.', top, len(others), others[0])
  return classes


def _files(folder: pathlib.Path) -> Iterator[str]:
  """All files below a folder but hidden ones; links to folders are followed, each folder entered once."""
  entered = {os.path.realpath(folder)}
  for parent, folders, names in os.walk(folder, followlinks=True):
    real = {name: os.path.realpath(os.path.join(parent, name)) for name in folders if name[0] != '.'}
    folders[:] = sorted(name for name, path in real.items() if path not in entered)
    entered.update(real.values())
    yield from (os.path.join(parent, name) for name in sorted(names) if name[0] != '.')


def _check_classes(classes: _Classes, known: Sequence[str], where: str, *, complete: bool) -> None:
  """Raises UserError for an unknown class; one without images is an error if `complete`, or a warning."""
  unknown = sorted(set(classes) - set(known))
  if unknown:
    raise UserError(
      f'{where} has the class folder {unknown[0]!r}, which is not among the {len(known)} classes of the '
      f'training split; add training images for it, or rename or remove the folder.'
    )
  empty = [name for name in known if not classes.get(name)]
  if empty and complete:
    raise UserError(f'Class folder {empty[0]!r} of {where} has no images; add some or remove it.')
  if empty:
    logging.warning('%s has no images of %d classes: %s.', where, len(empty), ', '.join(empty))


def _hold_out(classes: _Classes, fraction: float) -> dict[str, _Classes]:
  """Splits 'train' and 'val', by a hash of each path, so that adding files moves no other.

  The image of highest hash of a class is always trained on, so that no class is only held out.
  """
  splits: dict[str, _Classes] = {'train': {}, 'val': {}}
  for name, paths in classes.items():
    last = max(map(_hash, paths), default=0)
    held = {path for path in paths if _hash(path) < fraction * 2**64 and _hash(path) != last}
    splits['val'][name] = sorted(held)
    splits['train'][name] = [path for path in paths if path not in held]
  return splits


def _hash_order(file: tuple[str, int]) -> tuple[int, str]:
  return _hash(file[0]), file[0]


def _hash(path: str) -> int:
  """64 bits that depend on nothing but the path."""
  return int.from_bytes(hashlib.blake2b(path.encode(errors='surrogateescape'), digest_size=8).digest())
