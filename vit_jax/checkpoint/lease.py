"""One run at a time writes to a workdir."""

import contextlib
import datetime
import errno
import itertools
import json
import logging
import os
import pathlib
import socket
from collections.abc import Callable

import filelock
import jax
import orbax.checkpoint as ocp

from vit_jax.foundation import files
from vit_jax.foundation.errors import UserError

FILE_NAME = 'lease.json'

# What file systems without locks answer.
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})

_LONGEST_HOLDER = 500  # characters
_LEASES = itertools.count()  # that this process asked for, in the order of all processes

_log = logging.getLogger(__name__)


class Lease:
  """Keeps other runs out of a workdir, for as long as a `with` block lasts.

  It is a lock of the operating system (flock) on `<workdir>/lease.json`, whose content says who holds it. The
  kernel drops the lock when the process ends, even by SIGKILL or a crash of the machine, so nothing has to be
  cleaned up. In a run of several processes only process 0 holds it, and all of them must enter the block.

  The lock holds among the processes of one machine. On NFS, Linux asks the server for it, so that it also
  holds between hosts; when a host crashes, the server drops it after its lease time (often 90 seconds).
  NFS that is mounted with `nolock` or `local_lock=flock` does not protect against other hosts, nor does a
  mounted bucket. Where a file system has no locks at all, a warning says so and the run goes on.
  """

  def __init__(self, workdir: str | os.PathLike[str], *, read_only: bool = False):
    """Changes nothing yet; `read_only`, to look at a run: nothing is locked or made, and `check` is of the folder."""
    self._workdir, self._read_only = pathlib.Path(workdir).absolute(), read_only
    # Without flock, `fallback_to_soft` would make a file that outlives a killed process.
    self._lock = filelock.FileLock(self._workdir / FILE_NAME, timeout=0, fallback_to_soft=False)
    self._held: dict[pathlib.Path, int] = {}  # path -> a descriptor, so that nothing else gets its inode

  def __enter__(self) -> 'Lease':
    """Takes the lease; UserError where another run has it, or the workdir cannot be written."""
    if not self._read_only:
      take_on_process_0(self._acquire)
    elif self._workdir.is_dir():  # without JAX, whose processes may not have met yet
      self._hold(self._workdir)
    return self

  def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
    """Ends it; where the workdir was lost, that is the reason of whatever error is on its way."""
    try:
      if isinstance(error, Exception):
        self.check()
    finally:
      while self._held:
        os.close(self._held.popitem()[1])
      self._lock.release()

  def check(self) -> None:
    """Raises UserError where the workdir is no longer the folder that this process has the lease of.

    To be called before anything is written that another run could have written too; it costs two `stat`.
    """
    for path, descriptor in self._held.items():
      try:
        is_held = os.path.samestat(path.stat(), os.fstat(descriptor))
      except (FileNotFoundError, NotADirectoryError):
        is_held = False
      if not is_held:
        raise UserError(
          f'{self._workdir} was moved, removed or replaced while this command was at work in it, and may be another '
          f"run's now, so this command has ended; to go on, name the folder where its checkpoints are."
        )

  def _hold(self, path: pathlib.Path) -> None:
    self._held[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

  def _acquire(self) -> str:
    """Takes the lock; returns why not, or ''."""
    try:
      files.make_directories(self._workdir)
      self._lock.acquire()
      # In place: a renamed file would be one that is not locked.
      (self._workdir / FILE_NAME).write_text(json.dumps(this_process()) + '\n', encoding='utf-8')
      for path in (self._workdir, self._workdir / FILE_NAME):
        self._hold(path)
    except filelock.Timeout:
      with contextlib.suppress(OSError):
        return refusal(self._workdir, (self._workdir / FILE_NAME).read_bytes())
      return refusal(self._workdir, b'')
    except OSError as error:
      self._lock.release()
      if error.errno in files.DISK_FULL:
        return f'The disk is full: {self._workdir} cannot be written; free some space and start again.'
      if error.errno in files.UNWRITABLE:
        return f'{self._workdir} cannot be written ({error.strerror}); choose another --workdir.'
      if error.errno not in _NO_LOCKS:
        raise
      text = 'The file system of %s has no locks (%s); make sure that no other run uses that workdir.'
      _log.warning(text, self._workdir, error.strerror)
    return ''


def this_process() -> dict[str, str | int]:
  """What a lease says of the process that holds it."""
  since = datetime.datetime.now().astimezone().isoformat(' ', 'seconds')
  return {'host': socket.gethostname(), 'pid': os.getpid(), 'since': since}


def refusal(workdir: str | os.PathLike[str], lease: bytes) -> str:
  """The sentence for a workdir whose lease another process holds, as far as that has said who it is."""
  return f'{os.fspath(workdir)} is in use by {holder(lease)}; stop it, or choose another --workdir.'


def holder(lease: bytes) -> str:
  """Who holds a lease, for a sentence."""
  try:
    found = json.loads(lease)
    text = f'process {found["pid"]} on {found["host"]} since {found["since"]}'
  except (ValueError, TypeError, KeyError, RecursionError):
    return 'another process'
  return text if text.isprintable() and len(text) < _LONGEST_HOLDER else 'another process'


def take_on_process_0(acquire: Callable[[], str]) -> None:
  """Takes a lease there; raises UserError in all processes with the sentence that says why not, if there is one.

  Not by a collective: process 0 may wait for a minute.
  """
  sentence = acquire() if jax.process_index() == 0 else ''
  if jax.process_count() > 1:
    key, client = f'vit_jax/lease/{next(_LEASES)}', ocp.multihost.get_jax_distributed_client()
    if jax.process_index() == 0:
      client.key_value_set(key, f'={sentence}')
    sentence = client.blocking_key_value_get(key, 3_600_000)[1:]
  if sentence:
    raise UserError(sentence)
