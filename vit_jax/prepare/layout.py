"""Which folders of a source are splits, and which are classes."""

import collections
import posixpath
from collections.abc import Collection

from vit_jax.data.sources import folder_layout
from vit_jax.data.sources.folder_layout import Folders, class_name
from vit_jax.data.sources.folder_listing import EXTENSIONS
from vit_jax.foundation.errors import UserError
from vit_jax.prepare.source_image import SourceImage

_TABLES = ('.csv', '.tsv')


class Layout:
  """The folders of a source: perhaps some that wrap all others, perhaps splits, then classes.

  Fill `folders` and call `ignore`, call `settle`, then ask.

  Attributes:
    folders: the number of images directly in each folder.
    is_archive: whether the source is one, in which single folders around all others are passed over.
  """

  def __init__(self):
    self.folders: collections.Counter[Folders] = collections.Counter()
    self.is_archive = True
    self._ignored: set[Folders] = set()  # folders with files that are not images
    self._tables: dict[Folders, str] = {}  # folder -> the first of these files that is a table
    self._wrapping: Folders = ()
    self._splits: dict[str, str] = {}  # folder -> split

  def ignore(self, file: Folders) -> None:
    """Takes note of a file that is not an image: its folders and its name."""
    self._ignored.add(file[:-1])
    if file[-1].lower().endswith(_TABLES):
      self._tables.setdefault(file[:-1], posixpath.join(*file))

  def settle(self, source: str, archives: Collection[Folders] = ()) -> None:
    """Decides on wrapping folders and splits, once all folders and those that archives stand for are known.

    UserError where no image is in the folder of a class, two folders are one split, or the folders are no classes.
    """
    while self.is_archive and (inner := self._single_folder()):
      self._wrapping = (*self._wrapping, inner)
    self._splits = folder_layout.splits_among(self._outermost(), source)
    if not any(map(self._split_and_class, self.folders)):
      table = min(self._tables.values(), default='')
      raise UserError(
        f'{source} has no images in class folders; put the {", ".join(e[1:] for e in EXTENSIONS)} files of '
        f'each class into a folder named after it, or list them in a .csv file'
        f'{f", as {table} may do, and give its path" if table else ""}.'
      )
    self._check_classes(source, archives)

  @property
  def num_misplaced(self) -> int:
    """The number of images that are in no class's folder."""
    return sum(count for folders, count in self.folders.items() if self._split_and_class(folders) is None)

  def is_class(self, folders: Folders) -> bool:
    """Whether a folder is the folder of a class itself, neither around nor within one."""
    return len(folders) == self._depth() + 1 and self._split_and_class(folders) is not None

  def placed(self, image: SourceImage) -> SourceImage | None:
    """The image with split and class, named without wrapping folders; None: it is in no class's folder."""
    parts = image.name.split('/')
    found = self._split_and_class(tuple(parts[:-1]))
    if found is None:
      return None
    split, label = found
    return image._replace(name='/'.join(parts[len(self._wrapping) :]), split=split, labels=(label,))

  def _split_and_class(self, folders: Folders) -> tuple[str, str] | None:
    """The split and class of images in a folder; None: it belongs to no class."""
    depth = len(self._wrapping)
    if folders[:depth] != self._wrapping:
      return None
    match bool(self._splits), folders[depth:]:
      case False, (label, *_):
        return 'train', class_name(label)
      case True, (split, label, *_) if split in self._splits:
        return self._splits[split], class_name(label)
    return None

  def _check_classes(self, source: str, archives: Collection[Folders]) -> None:
    """Raises UserError if what stands for classes is something else; an archive may have folders of its own."""
    depth, known = self._depth(), set[str]()
    for top in sorted(self._splits, key=lambda top: self._splits[top] != 'train') or ('',):
      around = (*self._wrapping, top) if top else self._wrapping
      inside = [
        folders
        for folders in self.folders.keys() | self._ignored
        if len(folders) > depth and folders[:depth] == around and folders[: depth + 1] not in archives
      ]
      with_images = [_without(archives, folders, depth) for folders in inside if folders in self.folders]
      if not with_images:
        continue
      where, path = posixpath.join(source, *around), posixpath.join(*around, '')
      give = f'unpack it and give {path}' if self.is_archive else f'give {where}/'
      classes = {class_name(folders[0]) for folders in with_images}
      folder_layout.check_class_names(sorted(classes), where)
      folder_layout.check_classes({folders[depth] for folders in inside}, with_images, where, give)
      folder_layout.check_evaluated(classes, known, where)
      if self._splits.get(top, 'train') == 'train':
        known = classes
      table = next(
        (self._tables[place] for place in (around, self._wrapping, ()) if place in self._tables), ''
      )
      if table and len(known or classes) == 1:
        raise UserError(
          f'{where} has one class folder, {min(classes)!r}, and {table} is there too; if this has the classes, '
          f'give its path, or otherwise remove it.'
        )

  def _depth(self) -> int:
    """The number of folders around those of classes."""
    return len(self._wrapping) + bool(self._splits)

  def _single_folder(self) -> str | None:
    """The one folder around all classes or splits, within those known to wrap them."""
    outermost = self._outermost()
    if len(outermost) != 1 or any(map(folder_layout.split_named, outermost)):
      return None
    depth = len(self._wrapping) + 1
    has_folders = any(len(folders) > depth for folders in self.folders)
    return outermost.pop() if has_folders else None

  def _outermost(self) -> set[str]:
    """The names of the folders directly within the wrapping ones."""
    depth = len(self._wrapping)
    return {
      folders[depth] for folders in self.folders if len(folders) > depth and folders[:depth] == self._wrapping
    }


def _without(archives: Collection[Folders], folders: Folders, depth: int) -> Folders:
  """The folders from that of a class on, `depth` folders deep, without those within it that are archives."""
  inner = (
    name for end, name in enumerate(folders, start=1) if end > depth + 1 and folders[:end] not in archives
  )
  return (folders[depth], *inner)
