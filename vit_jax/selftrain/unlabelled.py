"""Images without labels: files, or any source, whose labels are not looked at."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Sequence

from vit_jax.data import sources
from vit_jax.data.config import DataConfig
from vit_jax.data.image_files import image_files
from vit_jax.data.sources.base import Record
from vit_jax.data.sources.folder_listing import version_of
from vit_jax.foundation import foreign_files
from vit_jax.foundation.errors import UserError


@dataclasses.dataclass(frozen=True)
class Unlabelled:
  """Images with random access, from several threads."""

  identity: str  # which images they are, by their paths or their source
  # What differs once others are at the same places: the same predictions belong to the same identity and version.
  version: str
  is_remote: bool  # whether each is a request over a network
  count: int
  # Reads an image, whose label means nothing; UserError or OSError where it cannot be read.
  read: Callable[[int], Record]

  def __len__(self) -> int:
    return self.count

  def __getitem__(self, number: int) -> Record:
    return self.read(number)


def _of_files(paths: Sequence[pathlib.Path]) -> Unlabelled:
  def read(number: int) -> Record:
    path = paths[number]
    return Record(foreign_files.read_bytes(path, foreign_files.LARGEST_IMAGE), -1, str(path))

  digest = hashlib.sha256('\n'.join(map(str, paths)).encode(errors='surrogateescape')).hexdigest()
  identity = f'{len(paths)} files, sha256 of their paths {digest}'
  return Unlabelled(identity, version_of([str(path) for path in paths]), False, len(paths), read)


def opened(arguments: Sequence[str]) -> Unlabelled:
  """The images that a command line names: files and folders, or one source, such as 'tfds:cifar10:train[10%:]'."""
  kinds = sources.SOURCES.names()
  first = arguments[0]
  if first.partition(':')[0] in kinds and not pathlib.Path(first).exists():
    if len(arguments) > 1:
      raise UserError(f'{arguments[1]!r} stands behind a source; name one source, or files and folders.')
    kind, place, split = sources.parse(first, '')
    named = sources.SOURCES[kind]
    split = split or ('all' if named.holds_out(place) else 'train')
    source = named.open(place, split, data=DataConfig(), class_names=None)
    identity = f'{len(source)} images of {first}'
    return Unlabelled(identity, source.version(), source.is_remote, len(source), source.__getitem__)
  return _of_files([path.absolute() for path in image_files(arguments)])
