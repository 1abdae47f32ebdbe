"""Images without labels: files, or any source, whose labels are not looked at."""

import hashlib
import pathlib
from collections.abc import Sequence

from vit_jax.data import sources
from vit_jax.data.config import DataConfig
from vit_jax.data.image_files import image_files
from vit_jax.data.sources.base import NamedSource, Record
from vit_jax.data.sources.folder_listing import version_of
from vit_jax.foundation import foreign_files
from vit_jax.foundation.errors import UserError


class Unlabelled:
  """Images with random access, from several threads.

  Attributes:
    identity: which images they are, by their paths or their source.
    version: what differs once others are at the same places: the same predictions belong to the same identity
      and version.
    is_remote: whether each is a request over a network.
  """

  identity: str
  version: str
  is_remote: bool = False

  def __len__(self) -> int:
    """The number of images."""
    raise NotImplementedError

  def __getitem__(self, number: int) -> Record:
    """An image, whose label means nothing.

    Raises:
      UserError: it cannot be read; the error names it.
      OSError: likewise.
    """
    raise NotImplementedError


class _Files(Unlabelled):
  def __init__(self, paths: Sequence[pathlib.Path]):
    self._paths = paths
    digest = hashlib.sha256('\n'.join(map(str, paths)).encode(errors='surrogateescape')).hexdigest()
    self.identity = f'{len(paths)} files, sha256 of their paths {digest}'
    self.version = version_of([str(path) for path in paths])

  def __len__(self) -> int:
    return len(self._paths)

  def __getitem__(self, number: int) -> Record:
    path = self._paths[number]
    return Record(foreign_files.read_bytes(path, foreign_files.LARGEST_IMAGE), -1, str(path))


class _OfSource(Unlabelled):
  def __init__(self, spec: str, source: NamedSource):
    self._source = source
    self.identity, self.version = f'{len(source)} images of {spec}', source.version()
    self.is_remote = source.is_remote

  def __len__(self) -> int:
    return len(self._source)

  def __getitem__(self, number: int) -> Record:
    return self._source[number]


def opened(arguments: Sequence[str]) -> Unlabelled:
  """The images that a command line names.

  Args:
    arguments: files and folders, or one source with its split, such as 'tfds:cifar10:train[10%:]'.

  Raises:
    UserError: there is no such thing.
  """
  kinds = sources.SOURCES.names()
  first = arguments[0]
  if first.partition(':')[0] in kinds and not pathlib.Path(first).exists():
    if len(arguments) > 1:
      raise UserError(f'{arguments[1]!r} stands behind a source; name one source, or files and folders.')
    kind, place, split = sources.parse(first, 'train')
    source = sources.SOURCES[kind].open(place, split, data=DataConfig(), class_names=None)
    return _OfSource(first, source)
  return _Files([path.absolute() for path in image_files(arguments)])
