"""Files by path, or by address (gs://bucket/data) through fsspec; written whole or not at all."""

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

import fsspec

from vit_jax.data.sources.folder_listing import files_below
from vit_jax.errors import UserError


def is_address(path: str) -> bool:
  return '://' in path


def join(folder: str, *names: str) -> str:
  return '/'.join((folder.rstrip('/'), *names)) if is_address(folder) else os.path.join(folder, *names)


def is_folder(path: str) -> bool:
  return _remote(path).isdir(path) if is_address(path) else os.path.isdir(path)


def exists(path: str) -> bool:
  return _remote(path).exists(path) if is_address(path) else os.path.exists(path)


def size(path: str) -> int | None:
  """Bytes of a file; None: it is not there, or remote, where asking would take a request."""
  try:
    return None if is_address(path) else os.path.getsize(path)
  except OSError:
    return None


def open_file(path: str) -> BinaryIO:
  """Opens a file for reading; it can seek."""
  return _remote(path).open(path, 'rb') if is_address(path) else open(path, 'rb')


def files(folder: str) -> Iterator[tuple[str, int]]:
  """All files below a folder but hidden ones, in order: path relative to it, with '/'; bytes."""
  if is_address(folder):
    system = _remote(folder)
    top = system._strip_protocol(folder).rstrip('/') + '/'
    for path, information in system.find(folder, detail=True).items():
      name = path.removeprefix(top)
      if not any(part.startswith('.') for part in name.split('/')):
        yield name, information['size']
    return
  top = folder.rstrip(os.sep) + os.sep
  for path in files_below(pathlib.Path(top)):
    yield path.removeprefix(top).replace(os.sep, '/'), size(path) or 0


def names(folder: str) -> set[str]:
  """The names in a folder; none where it is not there."""
  if is_address(folder):
    system = _remote(folder)
    return {path.rsplit('/', 1)[-1] for path in system.ls(folder, detail=False)} if exists(folder) else set()
  return set(os.listdir(folder)) if os.path.isdir(folder) else set()


@contextlib.contextmanager
def writing(path: str, work: str) -> Iterator[str]:
  """Gives a local path to write to, of what becomes the file `path` unless there is an error.

  Args:
    path: the file; its folder is made if it is not there.
    work: a folder on the same disk as `path`, where that is local; unfinished files are below it.
  """
  if is_address(path):
    with tempfile.TemporaryDirectory() as folder:
      local = os.path.join(folder, 'file')
      yield local
      _remote(path).put_file(local, path)  # an object appears when all of it is there
    return
  scratch = _scratch(work)
  for folder in (scratch, os.path.dirname(path)):
    os.makedirs(folder, exist_ok=True)
  local = os.path.join(scratch, f'{os.path.basename(path)}.{os.getpid()}')
  yield local
  with open(local, 'rb') as file:
    os.fsync(file.fileno())
  os.replace(local, path)


def clear_unfinished(work: str) -> None:
  """Removes what killed processes were writing."""
  if not is_address(work):
    remove_folder(_scratch(work))


def remove_folder(folder: str) -> None:
  if not is_address(folder):
    shutil.rmtree(folder, ignore_errors=True)
  elif exists(folder):
    _remote(folder).rm(folder, recursive=True)


def _scratch(work: str) -> str:
  return os.path.join(work, 'scratch')


def _remote(path: str) -> fsspec.AbstractFileSystem:
  try:
    return fsspec.core.url_to_fs(path)[0]
  except (ImportError, ValueError) as error:
    reason = str(error).strip().rstrip('.')
    raise UserError(f'{path} cannot be reached ({reason}); install what that says, or mount it.') from error
