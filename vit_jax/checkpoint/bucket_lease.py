"""One run at a time writes to a workdir in a bucket."""

import json
import logging
import secrets
import threading
import time

import jax

from vit_jax.checkpoint import lease
from vit_jax.foundation import buckets
from vit_jax.foundation.errors import OutOfReach, UserError, end_to_restart

_BEAT = 10.0  # seconds between two writes of the object
_LARGEST = 2**16  # bytes of the object that are read
_LIMIT = 45.0  # seconds without a change after which its writer counts as dead

_log = logging.getLogger(__name__)


class BucketLease:
  """Keeps other runs out of a workdir in a bucket, for as long as a `with` block lasts.

  It is an object, `lease.json`, that says who holds it and changes every ten seconds. It is written only where the
  version is there that the writer knows of, which the bucket checks: of two writers one is refused. A run that was
  killed leaves it behind; the next one watches it, by its own clock, and takes over when it has not changed for 45
  seconds. In a run of several processes only process 0 holds it, and all of them must enter the block.
  """

  def __init__(self, workdir: str):
    """`workdir`: its address; nothing is changed yet."""
    self._workdir, self._address = workdir, f'{workdir}/{lease.FILE_NAME}'
    self._bucket = buckets.Bucket(workdir, buckets.OF_RUNS)
    self._owner = lease.this_process() | {'token': secrets.token_hex(8)}
    self._beats = 0
    self._version: str | None = None  # of the object that this process wrote last
    self._writing = threading.Lock()
    self._over = threading.Event()

  def __enter__(self) -> 'BucketLease':
    """Takes the lease; UserError where another run has it, or the workdir cannot be written."""
    lease.take_on_process_0(self._acquire)
    if jax.process_index() == 0:
      self._thread = threading.Thread(target=self._beat, name='lease', daemon=True)
      self._thread.start()
    return self

  def __exit__(self, *_: object) -> None:
    self._over.set()
    if jax.process_index() == 0:
      with self._writing:  # a beat that is under way ends first
        self._release()

  def renew(self) -> None:
    """Writes the object again; ends the process with exit code 75 where another run has taken over.

    Raises UserError where the bucket cannot be written.
    """
    if jax.process_index() != 0:
      return
    with self._writing:
      if self._over.is_set() or self._write(self._version):
        return
      found = self._found()
      if found is None:  # somebody removed it
        taken = not self._write(None)
      else:
        taken = not self._is_own(found[1])  # it is our own where an answer was lost on its way
        self._version = found[0]
      if taken:
        end_to_restart(
          f'{self._workdir} was taken over by {lease.holder(found[1] if found else b"")}, since this run was not '
          'heard of for too long; it goes on there.'
        )

  def _acquire(self) -> str:
    """Writes the object; returns why not, or ''."""
    version = None
    while not self._write(version):
      found = self._found()
      if found is None:  # it was removed meanwhile
        version = None
        continue
      version, content = found
      if self._is_own(content):
        self._version = version
        break
      if self._changes(version):
        return lease.refusal(self._workdir, content)
      _log.warning('%s was held by %s, which has ended.', self._workdir, lease.holder(content))
    return ''

  def _changes(self, version: str) -> bool:
    """Watches the object for as long as a live writer may be silent."""
    end = time.monotonic() + _LIMIT
    while time.monotonic() < end:
      time.sleep(_LIMIT / 30)
      found = self._bucket.entry(self._address)
      if found is None:
        return False
      if found.version != version:
        return True
    return False

  def _write(self, version: str | None) -> bool:
    self._beats += 1  # Amazon's versions are digests of the content
    content = json.dumps(self._owner | {'beat': self._beats}) + '\n'
    written = self._bucket.write_if(self._address, content.encode(), version)
    self._version = written or self._version
    return written is not None

  def _found(self) -> tuple[str, bytes] | None:
    """Version and content of the object; None: there is none."""
    entry = self._bucket.entry(self._address)
    if entry is None:
      return None
    return entry.version, self._bucket.read(self._address, 0, min(entry.size, _LARGEST))

  def _is_own(self, content: bytes) -> bool:
    return f'"{self._owner["token"]}"'.encode() in content

  def _beat(self) -> None:
    while not self._over.wait(_BEAT):
      try:
        self.renew()
      except OutOfReach:  # which was said; perhaps it comes back
        continue
      except UserError as error:  # refused, as while credentials are replaced; `before_commit` asks once more
        _log.warning('%s', error)

  def _release(self) -> None:
    try:
      found = self._found()
      if found is not None and self._is_own(found[1]):
        self._bucket.remove([self._address])
    except UserError as error:
      _log.warning('%s', error)
