"""Where a run lives: `open_workdir` gives a folder, or a local copy of what is in a bucket. Nobody else asks which.

In a bucket, all but the checkpoints is written to the copy as to any workdir, and what has changed is uploaded:
before a checkpoint counts, every so often, and at the end. Objects are written whole, so `metrics.jsonl` is too.
Where the two differ, the bucket is right.
"""

import contextlib
import logging
import os
import pathlib
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from vit_jax.checkpoint.bucket_lease import BucketLease
from vit_jax.checkpoint.bucket_steps import BucketSteps
from vit_jax.checkpoint.lease import FILE_NAME, Lease
from vit_jax.foundation import buckets, cache
from vit_jax.foundation.bucket_paths import local_place
from vit_jax.foundation.errors import UserError

CHECKPOINTS = 'checkpoints'
_PAUSE = 10.0  # seconds between two copies, at least
_SHARE = 20  # the pause is also at least so many times as long as the last copy took
# What a resumed run does not read, such as TensorBoard's files, of which each start has its own.
_NOT_READ = ('events.out.tfevents', FILE_NAME, 'profile', 'wandb', 'damaged', CHECKPOINTS)
_UNFINISHED = '.partial'

_log = logging.getLogger(__name__)


class Workdir:
  """A run's workdir that is a folder; `BucketWorkdir` is the other kind."""

  def __init__(self, folder: pathlib.Path, lease: Lease | None = None):
    """`lease`: of the folder, perhaps one to read only."""
    self.folder = folder  # where all but the checkpoints is read and written
    self.checkpoints = str(folder / CHECKPOINTS)  # their path or address
    self._lease = lease

  def check(self) -> None:
    """Raises UserError where the workdir is another run's now; to be called before a file of it is replaced."""
    if self._lease is not None:
      self._lease.check()

  def checked(self, batches: Iterable[Any]) -> Iterator[Any]:
    """Passes batches on, and then raises as `check`: what they took long to give is written next."""
    yield from batches
    self.check()

  def before_commit(self) -> None:
    """Makes what belongs to a checkpoint safe before it counts; raises as `check`."""
    self.check()

  def upload(self) -> None:
    """Brings what was written to `folder` to where the run lives."""

  def discard(self, name: str) -> None:
    """Removes a folder of the workdir that the run needs no longer, if it is there; process 0 does it for all."""
    if jax.process_index() == 0:
      shutil.rmtree(self.folder / name, ignore_errors=True)

  def named(self, text: str) -> str:
    """A text in which the workdir is called as the person called it."""
    return text


@contextlib.contextmanager
def open_workdir(place: Workdir | str | os.PathLike[str], *, read_only: bool = False) -> Iterator[Workdir]:
  """A workdir, for as long as the block lasts.

  Args:
    place: a folder or an address in a bucket. One that is open already is returned as it is.
    read_only: to look at a run, which may be going on; without, the lease is taken.

  Raises:
    UserError: another run has the lease, or the workdir cannot be read or written.
  """
  with contextlib.ExitStack() as stack:
    if isinstance(place, Workdir):
      yield place
    elif not buckets.is_bucket(os.fspath(place)):
      lease = stack.enter_context(Lease(place, read_only=read_only))
      yield Workdir(pathlib.Path(place), lease)
    elif read_only:
      # Below the whole address, by which `compare` tells runs apart whose names end alike.
      *above, _ = os.fspath(place).rstrip('/').partition('://')[2].split('/')
      copy = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()), *above)
      yield stack.enter_context(BucketWorkdir(os.fspath(place), copy))
    else:
      copy = cache.folder_of('runs', os.fspath(place)) / str(jax.process_index())
      lease = stack.enter_context(BucketLease(os.fspath(place)))
      yield stack.enter_context(BucketWorkdir(os.fspath(place), copy, lease))


class BucketWorkdir(Workdir):
  """A local copy of a workdir in a bucket without its checkpoints' arrays, kept in step while a `with` block lasts.

  In a run of several processes each has its own, and copies what it wrote itself. Of each checkpoint, the copy has
  `meta`.
  """

  def __init__(self, address: str, place: pathlib.Path, lease: BucketLease | None = None):
    """`place` is a folder for the copy, and what is in it is removed; `lease` is of a run that trains."""
    self._bucket_lease = lease
    self._address = address.rstrip('/')
    self._place = place
    self._bucket = buckets.Bucket(address, buckets.OF_RUNS)
    self._copied: dict[pathlib.Path, tuple[int, int]] = {}  # time and size of each file as the bucket has it
    self._copying = threading.Lock()
    self._over = threading.Event()
    super().__init__(place / self._address.rpartition('/')[2])
    self.checkpoints = f'{self._address}/{CHECKPOINTS}'

  def __enter__(self) -> 'BucketWorkdir':
    """Copies what the bucket has; UserError where it cannot be read."""
    shutil.rmtree(self._place, ignore_errors=True)
    self.folder.mkdir(parents=True)
    self._download()
    self._copied = {file: _state(file) for file in self._files()}
    self._thread = threading.Thread(target=self._copy_periodically, name='workdir', daemon=True)
    self._thread.start()
    return self

  def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
    """Copies what is left; an error that names the local folder names the workdir instead."""
    self._over.set()
    try:
      self.upload()
    except UserError as failure:
      if error is None:
        raise
      _log.warning('%s', failure)  # the error that is on its way already matters more
    if isinstance(error, UserError) and self.named(str(error)) != str(error):
      raise type(error)(self.named(str(error))) from error

  def before_commit(self) -> None:
    """Uploads the log, and makes sure that this run still has the lease."""
    self.upload()
    self._renew()

  def upload(self) -> None:
    """Copies to the bucket what was written since the last copy; UserError where it cannot be written."""
    with self._copying:
      self._renew()
      buckets.at_once(self._copy_file, list(self._files()))

  def discard(self, name: str) -> None:
    if jax.process_index() == 0 and (self.folder / name).exists():
      with self._copying:
        super().discard(name)
        self._bucket.remove(entry.address for entry in self._bucket.below(f'{self._address}/{name}'))

  def named(self, text: str) -> str:
    """A text in which the address of the workdir stands for the local folder."""
    return text.replace(str(self.folder), self._address)

  def _renew(self) -> None:
    """Ends the process where another run has taken over: nothing of it is overwritten."""
    if self._bucket_lease is not None:
      self._bucket_lease.renew()

  def _copy_file(self, file: pathlib.Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # moved aside meanwhile
      state = _state(file)  # before the content, which may grow meanwhile
      if self._copied.get(file) != state:
        name = file.relative_to(self.folder).as_posix()
        self._bucket.write(f'{self._address}/{name}', file.read_bytes())
        self._copied[file] = state

  def _copy_periodically(self) -> None:
    pause = _PAUSE
    while not self._over.wait(pause):
      begin = time.monotonic()
      try:
        self.upload()
      except UserError as error:  # the next copy, or that before a checkpoint, has it all
        _log.warning('%s', error)
      pause = max(_PAUSE, _SHARE * (time.monotonic() - begin))

  def _download(self) -> None:
    """Copies what a run reads when it goes on: its small files, and `meta` of its checkpoints."""
    objects, folders = self._bucket.listing(self._address)
    wanted = [entry for entry in objects if not entry.address.rpartition('/')[2].startswith(_NOT_READ)]
    for folder in folders:
      if folder.rpartition('/')[2] not in _NOT_READ:
        wanted += self._bucket.below(folder)

    def download(entry: buckets.Entry) -> None:
      self._bucket.download(entry, local_place(self.folder, entry.address, self._address))

    buckets.at_once(download, wanted)
    steps = BucketSteps(self.checkpoints)
    for step in steps.committed():
      steps.fetch(step, self.folder / CHECKPOINTS / str(step), 'meta')

  def _files(self) -> list[pathlib.Path]:
    """The local files that belong into the bucket."""
    found = []
    for folder, folders, names in os.walk(self.folder):
      if folder == str(self.folder):
        folders[:] = [name for name in folders if name != CHECKPOINTS]
      found += [pathlib.Path(folder, name) for name in names if not name.endswith(_UNFINISHED)]
    return [file for file in found if file.is_file()]


def _state(file: pathlib.Path) -> tuple[int, int]:
  found = file.stat()
  return found.st_mtime_ns, found.st_size
