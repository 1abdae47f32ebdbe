"""Where the checkpoints of a run lie: in a folder or in a bucket. Nobody else asks which."""

import contextlib
import os
import pathlib
from collections.abc import Callable
from contextlib import AbstractContextManager

from etils import epath

from vit_jax.checkpoint.bucket_steps import BucketSteps
from vit_jax.checkpoint.bucket_writer import BucketWriter
from vit_jax.checkpoint.retention import Retention
from vit_jax.checkpoint.writer import Writer, committed_steps
from vit_jax.foundation import buckets


class FolderStore:
  """Steps in a folder, whose absolute path is `place`; `BucketStore` has the same methods."""

  def __init__(self, directory: str):
    """The directory need not exist."""
    self.place = os.path.abspath(directory)

  def path(self, step: int) -> str:
    """The directory or address of a step."""
    return f'{self.place}/{step}'

  def committed(self) -> list[int]:
    """The complete steps, sound or not, in ascending order."""
    return committed_steps(epath.Path(self.place))

  def fetched(self, step: int, item: str = '') -> AbstractContextManager[epath.Path]:
    """A local folder with a step, or with one item of it, for as long as the block lasts."""
    return contextlib.nullcontext(epath.Path(self.path(step)))

  def set_aside(self, step: int) -> None:
    """Moves a step to `damaged/`, beside the folder."""
    aside, number = pathlib.Path(self.place).parent / 'damaged', 0
    aside.mkdir(exist_ok=True)
    while (aside / f'{step}-{number}').exists():
      number += 1
    pathlib.Path(self.path(step)).rename(aside / f'{step}-{number}')

  def writer(self, retention: Retention, before_commit: Callable[[], None]) -> Writer:
    """Opens it to be written."""
    return Writer(epath.Path(self.place), retention, before_commit)


class BucketStore(BucketSteps):
  """Steps in a bucket: each is copied to this machine to be read."""

  def writer(self, retention: Retention, before_commit: Callable[[], None]) -> BucketWriter:
    """Opens it to be written."""
    return BucketWriter(self, retention, before_commit)


def open_store(place: str | os.PathLike[str]) -> FolderStore | BucketStore:
  """The checkpoints in a folder, or at an address in a bucket; nothing is read or changed yet."""
  place = os.fspath(place)
  return BucketStore(place) if buckets.is_bucket(place) else FolderStore(place)
