"""The steps of a run in a bucket: objects below `checkpoints/<step>/`, and one that says that they are all there.

A bucket has neither folders nor renames. So a step's objects are written under their final names, and the step
counts once its commit object is there, which is written last and removed first.
"""

import contextlib
import pathlib
import re
import tempfile
from collections.abc import Iterator

from etils import epath

from vit_jax.foundation import buckets
from vit_jax.foundation.bucket_paths import local_place
from vit_jax.foundation.buckets import Bucket
from vit_jax.foundation.errors import UserError

_COMMIT = 'commit_success.txt'  # Orbax's own name for it
# What Orbax writes last on a disk: in a run that was copied to the bucket.
_OF_A_COPY = '_CHECKPOINT_METADATA'
_STEP = re.compile('0|[1-9][0-9]{0,17}')  # the one name of a step


class BucketSteps:
  """Lists, reads and writes the steps of one run below the address `place`. Methods raise as those of `Bucket`."""

  def __init__(self, address: str):
    self.place = address.rstrip('/')
    self._bucket = Bucket(address, buckets.OF_RUNS)

  def path(self, step: int) -> str:
    """The address of a step."""
    return f'{self.place}/{step}'

  def committed(self) -> list[int]:
    """The complete steps in ascending order."""
    return [step for step in self._all() if self.is_committed(step)]

  def newest(self) -> int | None:
    """The last complete step."""
    return next((step for step in reversed(self._all()) if self.is_committed(step)), None)

  def is_committed(self, step: int) -> bool:
    """Whether a step is complete."""
    names = (_COMMIT, _OF_A_COPY)
    return any(self._bucket.entry(f'{self.path(step)}/{name}') is not None for name in names)

  @contextlib.contextmanager
  def fetched(self, step: int, item: str = '') -> Iterator[epath.Path]:
    """A local copy of a step, or of one item of it, for as long as the block lasts; its errors name the address."""
    with tempfile.TemporaryDirectory(prefix='vit_jax_step_') as folder:
      copy = epath.Path(folder, str(step))
      self.fetch(step, pathlib.Path(copy), item)
      try:
        yield copy
      except UserError as error:
        raise type(error)(str(error).replace(str(copy), self.path(step))) from error

  def fetch(self, step: int, folder: pathlib.Path, item: str = '') -> None:
    """Copies a step, or one item of it, to a folder."""
    top = self.path(step)

    def download(entry: buckets.Entry) -> None:
      self._bucket.download(entry, local_place(folder, entry.address, top))

    buckets.at_once(download, self._bucket.below(f'{top}/{item}'))

  def push(self, folder: pathlib.Path, step: int) -> None:
    """Copies the files of a folder to a step that is not committed yet."""

    def upload(file: pathlib.Path) -> None:
      self._bucket.upload(file, f'{self.path(step)}/{file.relative_to(folder).as_posix()}')

    buckets.at_once(upload, [path for path in folder.rglob('*') if path.is_file()])

  def commit(self, step: int) -> None:
    """Declares a step complete; it survives from now on."""
    self._bucket.write(f'{self.path(step)}/{_COMMIT}', b'All objects of this step are written.\n')

  def remove(self, step: int) -> None:
    """Removes a step; if this is broken off, what is left is no complete step."""
    top = self.path(step)
    self._bucket.remove([f'{top}/{_COMMIT}', f'{top}/{_OF_A_COPY}'])
    self._bucket.remove(entry.address for entry in self._bucket.below(top))

  def remove_partial(self) -> None:
    """Removes the steps that a killed process left half written, or half removed."""
    for step in self._all():
      if not self.is_committed(step):
        self.remove(step)

  def set_aside(self, step: int) -> None:
    """Moves a step to `damaged/`, beside `checkpoints/`."""
    top, number = f'{self.place.rpartition("/")[0]}/damaged/{step}', 0
    while self._bucket.below(f'{top}-{number}'):
      number += 1
    for entry in self._bucket.below(self.path(step)):
      self._bucket.copy(entry.address, f'{top}-{number}{entry.address.removeprefix(self.path(step))}')
    self.remove(step)

  def _all(self) -> list[int]:
    """The steps in ascending order, complete or not."""
    folders = self._bucket.listing(self.place)[1]
    names = [folder.rpartition('/')[2] for folder in folders]
    return sorted(int(name) for name in names if _STEP.fullmatch(name))
