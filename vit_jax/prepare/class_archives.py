"""Tells archives that stand for a class, such as ImageNet's n01440764.tar, from the shards of a data set.

Classes are never guessed: shards of WebDataset, numbered parts of a download, and files of records such as
parquet are refused.
"""

import posixpath
import re
from collections.abc import Callable, Collection

from vit_jax.data.sources.folder_layout import Folders
from vit_jax.foundation.errors import UserError

_RECORDS = re.compile(r'.*\.(parquet|arrow|tfrecords?|array_record|cls)(-\d+-of-\d+)?', re.IGNORECASE)
_NUMBERED = re.compile(r'.*[-_.]\d+|0\d\d+')  # 'train-000012', '00012', '00001-of-00064'; not 'n01440764'
# What WebDataset's samples have beside the image, after the first dot of the name.
_SAMPLE_PARTS = frozenset({'cls', 'json', 'txt', 'id', 'index', 'label', 'caption', 'npy', 'npz', 'pyd'})
_REMEDY = 'put the images into a folder for each class, or list them in a .csv file'


def refuse_records(source: str, name: str) -> None:
  """Raises UserError for a file of records, and for the `.cls` file of a WebDataset sample."""
  if _RECORDS.fullmatch(posixpath.basename(name)):
    raise UserError(f'{source} holds {name}, which prepare does not read; {_REMEDY}.')


def is_numbered(archive: str) -> bool:
  """Whether an archive's name, without its ending, is that of a part in a series."""
  return _NUMBERED.fullmatch(posixpath.basename(archive)) is not None


def refuse_numbered(source: str, archive: str) -> None:
  """Raises UserError for an archive whose name, without its ending, is that of a part in a series."""
  if is_numbered(archive):
    raise UserError(
      f'{source} holds the archive {archive}, whose name is that of a part and not of a class; unpack such '
      f'archives and {_REMEDY}.'
    )


class ClassArchives:
  """The archives of a source that stand for folders, and whether they can be classes."""

  def __init__(self, source: str):
    self._source = source
    self._inner: dict[Folders, set[Folders]] = {}  # archive -> the folders within it that have images
    self._last_key, self._last_name, self._last_is_image = '', '', False

  def add(self, archive: Folders, name: str, *, is_image: bool) -> None:
    """Takes note of a file, `name` in the source, of the archive that stands for its first folders.

    Raises:
      UserError: this file and the one before it are an image and its label, as WebDataset's samples have
        them: files of the same name up to the first dot.
    """
    folder, base = posixpath.split(name)
    key, _, part = base.partition('.')
    if not is_image and part.lower() not in _SAMPLE_PARTS:
      return
    key = posixpath.join(folder, key)
    if key == self._last_key and is_image != self._last_is_image:
      raise UserError(
        f'{self._source} holds shards of samples (such as {self._last_name} with {base}), which prepare does '
        f'not read; unpack them and {_REMEDY}.'
      )
    self._last_key, self._last_name, self._last_is_image = key, name, is_image
    if is_image:
      inner = tuple(folder.split('/')[len(archive) :])
      self._inner.setdefault(archive, set()).add(inner)

  @property
  def folders(self) -> Collection[Folders]:
    """What the archives with images stand for."""
    return self._inner.keys()

  def check(self, is_class: Callable[[Folders], bool]) -> None:
    """Raises UserError, once all files are known, for an archive in a place of a class (`is_class`) that can be none.

    It is named like a part in a series, or its images are in several folders.
    """
    for archive, inner in self._inner.items():
      if not is_class(archive):
        continue
      name = '/'.join(archive)
      refuse_numbered(self._source, name)
      branches = _branches(inner)
      if len(branches) > 1:
        raise UserError(
          f'{self._source} holds the archive {name}, which is no class, for it has folders of its own '
          f'({branches[0]}, {branches[1]}); give the archive itself, or unpack it.'
        )


def _branches(folders: set[Folders]) -> list[str]:
  """The sorted names of the folders directly below the innermost folder that holds all of `folders`."""
  shortest = min(map(len, folders))
  depth = 0
  while depth < shortest and len({path[depth] for path in folders}) == 1:
    depth += 1
  return sorted({path[depth] for path in folders if len(path) > depth})
