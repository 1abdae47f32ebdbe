"""The local copy that a run works in whose workdir is in a bucket; where they differ, the bucket is right.

All but the checkpoints is written to the copy as to any workdir, and what has changed is uploaded: before a checkpoint
counts, every so often, and at the end. Objects are written whole, so `metrics.jsonl` is too.
"""

import contextlib
import logging
import os
import pathlib
import shutil
import threading
import time

from vit_jax import buckets
from vit_jax.checkpoint.bucket_lease import BucketLease
from vit_jax.checkpoint.bucket_steps import BucketSteps
from vit_jax.checkpoint.lease import FILE_NAME
from vit_jax.errors import UserError
from vit_jax.object_names import local_place

CHECKPOINTS = 'checkpoints'
_PAUSE = 10.0  # seconds between two copies, at least
_SHARE = 20  # the pause is also at least so many times as long as the last copy took
# What a resumed run does not read, such as TensorBoard's files, of which each start has its own.
_NOT_READ = ('events.out.tfevents', FILE_NAME, 'profile', 'wandb', 'damaged', CHECKPOINTS)
_UNFINISHED = '.partial'

_log = logging.getLogger(__name__)


class LocalWorkdir:
  """A local copy of a workdir in a bucket without its checkpoints' arrays, kept in step while a `with` block lasts.

  In a run of several processes each has its own, and copies what it wrote itself.

  Attributes:
    folder: the copy, whose name is the workdir's. Of each checkpoint it has `meta`.
    checkpoints: the address of the checkpoints.
  """

  def __init__(self, address: str, place: pathlib.Path, lease: BucketLease | None = None):
    """
    Args:
      address: the workdir's.
      place: a folder for the copy; what is in it is removed.
      lease: of a run that trains.
    """
    self._lease = lease
    self._address = address.rstrip('/')
    self._place = place
    self._bucket = buckets.Bucket(address, buckets.OF_RUNS)
    self._copied: dict[pathlib.Path, tuple[int, int]] = {}  # time and size of each file as the bucket has it
    self._copying = threading.Lock()
    self._over = threading.Event()
    self.folder = place / self._address.rpartition('/')[2]
    self.checkpoints = f'{self._address}/{CHECKPOINTS}'

  def __enter__(self) -> 'LocalWorkdir':
    """Copies what the bucket has.

    Raises:
      UserError: the bucket cannot be read.
    """
    shutil.rmtree(self._place, ignore_errors=True)
    self.folder.mkdir(parents=True)
    self._download()
    self._copied = {file: _state(file) for file in self._files()}
    self._thread = threading.Thread(target=self._copy_periodically, name='local_workdir', daemon=True)
    self._thread.start()
    return self

  def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
    """Copies what is left; an error that names the local folder names the workdir instead."""
    self._over.set()
    try:
      self.copy()
    except UserError as failure:
      if error is None:
        raise
      _log.warning('%s', failure)  # the error that is on its way already matters more
    if isinstance(error, UserError) and self.named(str(error)) != str(error):
      raise type(error)(self.named(str(error))) from error

  def before_commit(self) -> None:
    """Makes what belongs to a checkpoint safe before it counts: the log, and that this run still has the lease."""
    self.copy()
    if self._lease is not None:
      self._lease.renew()

  def copy(self) -> None:
    """Copies to the bucket what was written since the last copy.

    Raises:
      UserError: the bucket cannot be written.
    """
    with self._copying:
      buckets.at_once(self._copy_file, list(self._files()))

  def named(self, text: str) -> str:
    """A text in which the address of the workdir stands for the local folder."""
    return text.replace(str(self.folder), self._address)

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
        self.copy()
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
