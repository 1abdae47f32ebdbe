"""Which folders of a source are splits, and which are classes."""

import collections

from vit_jax.data.sources.folder import SPLITS
from vit_jax.data.sources.folder_listing import EXTENSIONS
from vit_jax.errors import UserError
from vit_jax.prepare.class_archives import Folders
from vit_jax.prepare.source_image import SourceImage


class Layout:
  """The folders of a source: perhaps some that wrap all others, perhaps splits, then classes.

  Fill `folders`, call `settle`, then ask.

  Attributes:
    folders: the number of images directly in each folder.
    may_be_wrapped: whether single folders around all others are passed over, as in archives.
  """

  def __init__(self):
    self.folders: collections.Counter[Folders] = collections.Counter()
    self.may_be_wrapped = True
    self._wrapping: Folders = ()
    self._has_splits = False

  def settle(self, source: str) -> None:
    """Decides on wrapping folders and splits, once all folders are known.

    Args:
      source: what errors call the source.

    Raises:
      UserError: no image is in the folder of a class, or one split is there under two names.
    """
    while self.may_be_wrapped and (inner := self._single_folder()):
      self._wrapping = (*self._wrapping, inner)
    splits = self._outermost() & SPLITS.keys()
    self._has_splits = bool(splits)
    if {'val', 'validation'} <= splits:
      raise UserError(f'{source} has both val/ and validation/; remove or rename one of them.')
    if not any(map(self._split_and_class, self.folders)):
      raise UserError(
        f'{source} has no images in class folders; put the {", ".join(e[1:] for e in EXTENSIONS)} files of '
        f'each class into a folder named after it, or list them in a .csv file.'
      )

  @property
  def num_misplaced(self) -> int:
    """The number of images that are in no class's folder."""
    return sum(count for folders, count in self.folders.items() if self._split_and_class(folders) is None)

  def is_class(self, folders: Folders) -> bool:
    """Whether a folder is the folder of a class itself, neither around nor within one."""
    depth = len(self._wrapping) + (1 if self._has_splits else 0)
    return len(folders) == depth + 1 and self._split_and_class(folders) is not None

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
    match self._has_splits, folders[depth:]:
      case False, (label, *_):
        return 'train', label
      case True, (split, label, *_) if split in SPLITS:
        return SPLITS[split], label
    return None

  def _single_folder(self) -> str | None:
    """The one folder around all classes or splits, within those known to wrap them."""
    outermost = self._outermost()
    if len(outermost) != 1 or outermost & SPLITS.keys():
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
