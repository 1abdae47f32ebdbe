"""Compiled programs are kept on this machine: a run that starts again does not compile again.

They are machine code that JAX runs as it is: one flipped bit ends a process by a signal, at every start. So each
is kept with a checksum (`CheckedPrograms`), and those that a process took before it crashed are removed by the
next start (`CrashRecord`).
"""

import contextlib
import faulthandler
import fcntl
import hashlib
import logging
import os
import pathlib
import re
import tempfile
import threading

import jax
from jax._src import compilation_cache as jax_cache
from jax._src.compilation_cache_interface import CacheInterface
from jax._src.lru_cache import LRUCache

from vit_jax.foundation import cache

_log = logging.getLogger(__name__)

_MIN_SECONDS = 0.3  # of compiling: an S/16 for one image takes about 0.6 s on a laptop
_MAX_BYTES = 2**30  # of all programs kept; the least recently used are dropped
_DIGEST_BYTES = hashlib.sha256().digest_size


def enable() -> None:
  """Makes JAX keep each program that takes it more than 0.3 seconds to compile, in ~/.cache/vit_jax/xla.

  Call it before the first compilation. JAX's own variables win: JAX_COMPILATION_CACHE_DIR (a place that all
  hosts of a pod share, so that not only process 0 finds what it wrote; there JAX alone reads and writes, without
  checksums), JAX_COMPILATION_CACHE_MAX_SIZE, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS,
  JAX_ENABLE_COMPILATION_CACHE=false. A place that cannot be written is a warning, and the run compiles.

  A program is found again only for the same computation, compiler, flags and kind of device; of a CPU, the
  same set of instructions.
  """
  settings = jax.config.values
  if settings['jax_compilation_cache_dir'] or not settings['jax_enable_compilation_cache']:
    return
  try:
    directory = _prepared()
    _drop_after_crashes(directory)
  except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
    _log.warning('Compiled programs are not kept for the next start: %s.', error)
    return
  if 'JAX_COMPILATION_CACHE_MAX_SIZE' not in os.environ:
    jax.config.update('jax_compilation_cache_max_size', _MAX_BYTES)
  threshold = 'jax_persistent_cache_min_compile_time_secs'
  is_default = threshold.upper() not in os.environ and settings[threshold] == 1.0
  if is_default:
    jax.config.update(threshold, _MIN_SECONDS)
  if 'JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES' not in os.environ:
    jax.config.update('jax_persistent_cache_enable_xla_caches', 'none')  # files that have no checksum
  jax.config.update('jax_compilation_cache_dir', str(directory))
  # JAX has no public way to install a cache of one's own. It makes its own where it finds none here.
  programs = LRUCache(str(directory), max_size=jax.config.values['jax_compilation_cache_max_size'])
  jax_cache._cache = CheckedPrograms(programs, CrashRecord(directory))


class CheckedPrograms(CacheInterface):
  """JAX's cache with a SHA-256 before each program; one that does not match is removed and compiled again."""

  def __init__(self, programs: CacheInterface, crashes: 'CrashRecord'):
    """`programs` is JAX's cache of local files; `crashes` is told of each program that is taken from it."""
    self._programs, self._crashes, self._path = programs, crashes, programs._path

  def get(self, key: str) -> bytes | None:  # pyright: ignore[reportIncompatibleMethodOverride]: JAX's has no type
    """The program of a key; None: there is no sound one."""
    content = self._programs.get(key)
    if content is None:
      return None
    digest, program = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(program).digest() != digest:
      _log.warning(
        'The compiled program %s in %s is damaged, or of an earlier version; it was removed and is '
        'compiled again.',
        key.rpartition('-')[0],
        self._path,
      )
      _remove(pathlib.Path(self._path), key)
      return None
    self._crashes.taken(key)
    return program

  def put(self, key: str, value: bytes) -> None:
    """Keeps a program."""
    self._programs.put(key, hashlib.sha256(value).digest() + value)


class CrashRecord:
  """A file with the keys of the programs that this process took from the cache, and its stacks if it crashes.

  Python's faulthandler writes those at SIGSEGV, SIGILL, SIGBUS, SIGFPE and SIGABRT, but not at a kill. Where it
  is in use already, as in joined processes or with PYTHONFAULTHANDLER, nothing is recorded.
  """

  def __init__(self, directory: pathlib.Path):
    """Makes no file yet."""
    self._directory = directory
    self._file = None
    self._lock = threading.Lock()  # two threads may compile

  def taken(self, key: str) -> None:
    """Records that the program of a key is about to run."""
    with self._lock:
      if self._file is None:
        if faulthandler.is_enabled():
          return
        # Open until this process ends, and removed then.
        self._file = tempfile.NamedTemporaryFile(  # noqa: SIM115
          'w', dir=self._directory, prefix='running-', suffix='.txt', encoding='utf-8'
        )
        _is_locked_by_us(self._file.fileno())
        faulthandler.enable(self._file)
      self._file.write(f'{key}\n')
      self._file.flush()


def _drop_after_crashes(directory: pathlib.Path) -> None:
  """Removes the programs that processes took which crashed then; says so."""
  for path in directory.glob('running-*.txt'):
    with contextlib.suppress(FileNotFoundError):  # another process that starts now saw to it
      _drop_after_crash(directory, path)


def _drop_after_crash(directory: pathlib.Path, record: pathlib.Path) -> None:
  """Sees to one process's record, or leaves it alone while that process is running; FileNotFoundError if it is gone."""
  with record.open('rb') as file:
    if not _is_locked_by_us(file.fileno()):
      return
    text = file.read().decode(errors='replace')
  crash = re.search(r'^Fatal Python error: (.*)$', text, re.MULTILINE)
  if crash is None:  # it was killed
    record.unlink()
    return
  keys = [key for key in text[: crash.start()].splitlines() if '/' not in key]
  for key in keys:
    _remove(directory, key)
  stacks = directory / 'last_crash.txt'
  record.replace(stacks)
  _log.warning(
    'An earlier start crashed (%s) after it had taken %d compiled programs from %s; they were removed and are '
    'compiled again. Its stacks are in %s.',
    crash[1],
    len(keys),
    directory,
    stacks,
  )


def _is_locked_by_us(descriptor: int) -> bool:
  """Takes the lock of a file, which ends with this process or its file; False where another process has it."""
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True


def _remove(directory: pathlib.Path, key: str) -> None:
  for suffix in ('-cache', '-atime'):
    (directory / f'{key}{suffix}').unlink(missing_ok=True)


def _prepared() -> pathlib.Path:
  """The directory: there, writable, and without what a killed process left half written."""
  # Not the workdir: what lies here is run as it is, so nobody else may write it or hand it on.
  directory = cache.directory() / 'xla'
  directory.mkdir(mode=0o700, parents=True, exist_ok=True)
  with tempfile.TemporaryFile(dir=directory):
    pass
  # JAX writes a program, then the time of its use. It would neither replace the one nor, without the other,
  # ever drop anything.
  for program in directory.glob('*-cache'):
    if not program.with_name(program.name.removesuffix('-cache') + '-atime').exists():
      program.unlink(missing_ok=True)
  return directory
