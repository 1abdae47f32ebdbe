"""Local files that are written whole and durably, or not at all.

A power failure may lose whatever was not synced, in any order. So a file's content is synced before the file
gets its name, and the directory, which holds the name, is synced afterwards.
"""

import contextlib
import errno
import functools
import hashlib
import itertools
import json
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import IO, Any, BinaryIO, Literal, TextIO, overload

import numpy as np

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
UNWRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR})

# Some network and FUSE file systems have no sync of a directory; their renames are durable in their own way.
_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP})

Path = str | os.PathLike[str]


@overload
def atomic_write(path: Path, mode: Literal['w'] = 'w') -> AbstractContextManager[TextIO]: ...
@overload
def atomic_write(path: Path, mode: Literal['wb']) -> AbstractContextManager[BinaryIO]: ...
@contextlib.contextmanager
def atomic_write(path: Path, mode: Literal['w', 'wb'] = 'w') -> Iterator[IO[Any]]:
  """Opens `<path>.partial` for writing, and renames it to `path` when the block ends without an error.

  A reader sees the old content or all of the new one. When the block has ended, the new content survives a
  power failure. After an error, `path` is as it was and the partial file is gone. Only one process may write
  to `path` at a time.

  Args:
    path: the file. Its directory must exist.
    mode: 'w' for text, in UTF-8, or 'wb' for bytes.

  Raises:
    OSError: the file cannot be written; where only its content cannot, `filename` is `path`.
  """
  partial = pathlib.Path(f'{os.fspath(path)}.partial')
  try:
    with open(partial, mode, encoding=None if 'b' in mode else 'utf-8') as file:
      yield file
    move_into_place(partial, path)
  except BaseException as error:
    with contextlib.suppress(OSError):  # the first error matters
      partial.unlink()
    if isinstance(error, OSError) and error.filename is None:
      error.filename = os.fspath(path)  # write() and fsync() do not know the name
    raise


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
  """Gives an OSError of a file that is open already the file's name, which write() and fsync() do not know."""
  try:
    yield
  except OSError as error:
    error.filename = error.filename or os.fspath(path)
    raise


def write_text(path: Path, text: str) -> None:
  """Writes a text file in UTF-8, as `atomic_write` does."""
  with atomic_write(path) as file:
    file.write(text)


def write_bytes(path: Path, data: bytes) -> None:
  """Writes a binary file, as `atomic_write` does."""
  with atomic_write(path, 'wb') as file:
    file.write(data)


def write_json(path: Path, content: Any) -> None:
  """Writes a JSON file, as `atomic_write` does, with values by `as_json`."""
  write_text(path, json.dumps(as_json(content), indent=2, allow_nan=False) + '\n')


def move_into_place(partial: Path, path: Path) -> None:
  """Renames a complete file to `path`, on the same file system, so that it survives a power failure.

  For libraries that write to a path of their own. An OSError, as where a folder has that name, has the filename `path`.
  """
  fsync_file(partial)
  try:
    os.replace(partial, path)
  except OSError as error:
    error.filename = os.fspath(path)  # what the person named
    raise
  fsync_directory(os.path.dirname(os.path.abspath(path)))


def sync(paths: Iterable[Path]) -> None:
  """Makes complete files survive a power failure under the names that they have; for pictures and pages."""
  folders = set()
  for path in paths:
    fsync_file(path)
    folders.add(os.path.dirname(os.path.abspath(path)))
  for folder in folders:
    fsync_directory(folder)


def move_aside(path: Path) -> str:
  """Renames a damaged file to `<path>.damaged`, or `.damaged-2` and so on where that is taken; its new path."""
  aside, number = f'{os.fspath(path)}.damaged', 1
  while os.path.lexists(aside):
    number += 1
    aside = f'{os.fspath(path)}.damaged-{number}'
  os.rename(path, aside)
  fsync_directory(os.path.dirname(os.path.abspath(path)))
  return aside


def make_directories(path: Path) -> None:
  """Makes a directory and the missing ones above it, so that they survive a power failure."""
  missing = []
  directory = os.path.abspath(path)
  while not os.path.isdir(directory):
    missing.append(directory)
    directory = os.path.dirname(directory)
  try:
    os.makedirs(path, exist_ok=True)
  except FileNotFoundError as error:  # in a file system of the kernel's own, such as /proc
    raise PermissionError(errno.EPERM, 'no folder can be made there', error.filename) from error
  for made in missing:
    fsync_directory(os.path.dirname(made))


def make_new_directory(path: Path) -> pathlib.Path:
  """Makes a directory that was not there, and those above it: `path`, or `<path>-2` and so on; the one it has made."""
  path = pathlib.Path(path)
  make_directories(path.parent)
  made = path
  for number in itertools.count(2):
    try:
      made.mkdir()
      break
    except FileExistsError:
      made = path.with_name(f'{path.name}-{number}')
  fsync_directory(path.parent)
  return made


def fsync_file(path: Path) -> None:
  """Makes the content of a file durable."""
  with open(path, 'rb') as file:
    os.fsync(file.fileno())


def fsync_directory(path: Path) -> None:
  """Makes the names in a directory durable: files that were created, renamed or removed in it."""
  descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
  try:
    os.fsync(descriptor)
  except OSError as error:
    if error.errno not in _NO_DIRECTORY_SYNC:
      error.filename = os.fspath(path)
      raise
  finally:
    os.close(descriptor)


def digest(paths: Iterable[Path]) -> str:
  """A digest of the names and the contents of some files."""
  found = [(os.path.basename(path), _digest(os.fspath(path), *_state(path))) for path in paths]
  return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:32]


def _state(path: Path) -> tuple[int, int, int]:
  state = os.stat(path)
  return state.st_size, state.st_mtime_ns, state.st_ctime_ns


@functools.lru_cache(maxsize=1024)
def _digest(path: str, *state: int) -> str:
  """Of a file's content; a file of one state is read once."""
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def as_json(value: Any) -> Any:
  """`value` as JSON can hold it: NumPy scalars become numbers, NaN and infinity None."""
  if isinstance(value, np.generic):
    value = value.item()
  if isinstance(value, Mapping):
    return {key: as_json(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [as_json(item) for item in value]
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value
