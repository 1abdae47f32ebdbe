"""Files by local path, or by address (gs://bucket/data) through fsspec, written whole or not at all."""

import contextlib
import errno
import json
import os
import pathlib
import shutil
import stat
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import fsspec

from vit_jax.data.sources.folder_layout import is_hidden
from vit_jax.data.sources.folder_listing import files_below
from vit_jax.foundation import buckets, files
from vit_jax.foundation.errors import UserError
from vit_jax.prepare.bucket_file_system import BucketFileSystem


def is_address(path: str) -> bool:
  """Whether a path is an address, such as gs://bucket/data, and not local."""
  return '://' in path


def join(folder: str, *names: str) -> str:
  """The path or address of what is called `names` below a folder."""
  if is_address(folder):
    return '/'.join((folder.rstrip('/'), *names))
  return os.path.join(folder, *names)


def is_folder(path: str) -> bool:
  """Whether there is a folder at a path or address."""
  return _remote(path).isdir(path) if is_address(path) else os.path.isdir(path)


def exists(path: str) -> bool:
  """Whether there is a file or folder at a path or address."""
  return _remote(path).exists(path) if is_address(path) else os.path.exists(path)


def size(path: str) -> int | None:
  """The size of a local file in bytes. None if it is missing, or remote: asking would cost a request each."""
  try:
    return None if is_address(path) else os.path.getsize(path)
  except OSError:
    return None


def open_file(path: str) -> BinaryIO:
  """Opens a file, which can seek, for reading in binary mode.

  OSError where it cannot be, or is no regular file and could block forever; UserError for an unknown kind of address.
  """
  if is_address(path):
    return cast(BinaryIO, _remote(path).open(path, 'rb'))
  if not stat.S_ISREG(os.stat(path).st_mode):
    raise OSError(errno.EINVAL, 'it is not a regular file', path)
  return open(path, 'rb')


def read_json(path: str) -> Any:
  """The content of a JSON file."""
  with open_file(path) as file:
    return json.load(file)


def write_json(path: str, content: Any, work: str) -> None:
  """Writes a JSON file as `atomic_path` does."""
  with atomic_path(path, work) as local, open(local, 'w', encoding='utf-8') as file:
    json.dump(content, file)


def list_files(folder: str) -> Iterator[tuple[str, int]]:
  """Path (relative, with '/') and bytes of each file below a folder except hidden ones, in a fixed order."""
  if is_address(folder):
    system = _remote(folder)
    top = str(system._strip_protocol(folder)).rstrip('/') + '/'
    found = cast(dict[str, dict[str, Any]], system.find(folder, detail=True))
    for path, information in found.items():
      name = path.removeprefix(top)
      if not any(map(is_hidden, filter(None, name.split('/')))):
        yield name, information['size']
    return
  top = folder.rstrip(os.sep) + os.sep
  for path in files_below(pathlib.Path(top)):
    yield path.removeprefix(top).replace(os.sep, '/'), size(path) or 0


def names(folder: str) -> set[str]:
  """The names of the files and folders directly in a folder; empty if there is no such folder."""
  if not is_address(folder):
    return set(os.listdir(folder)) if os.path.isdir(folder) else set()
  if not exists(folder):
    return set()
  return {path.rsplit('/', 1)[-1] for path in _remote(folder).ls(folder, detail=False)}


@contextlib.contextmanager
def atomic_path(path: str, work: str) -> Iterator[str]:
  """Gives a local path to write to; when the block ends without an error, the file appears at `path`.

  For writers that need a path; the file is then durable, as with `files.atomic_write`.

  Args:
    path: the local path or the address of the file. A missing folder is made.
    work: a folder on the same file system as `path`, if that is local; unfinished files are kept below it.

  Raises:
    UserError: the bucket of an address cannot be written.
  """
  if is_address(path):
    with tempfile.TemporaryDirectory() as folder:
      local = os.path.join(folder, 'file')
      yield local
      _remote(path).put_file(local, path)  # object stores show an object once it is complete
    return
  scratch = _scratch(work)
  files.make_directories(scratch)
  files.make_directories(os.path.dirname(path))
  # The process id: a worker of a killed command may live a moment longer and still write its own file.
  partial = os.path.join(scratch, f'{os.path.basename(path)}.{os.getpid()}')
  yield partial
  files.move_into_place(partial, path)


def clear_unfinished(work: str) -> None:
  """Removes the files that killed processes left unfinished."""
  if not is_address(work):
    remove(_scratch(work))


def remove(path: str) -> None:
  """Removes a file, or a folder with all it holds; nothing happens if there is none."""
  if is_address(path):
    if exists(path):
      _remote(path).rm(path, recursive=True)
  elif os.path.isdir(path):
    shutil.rmtree(path, ignore_errors=True)
  else:
    pathlib.Path(path).unlink(missing_ok=True)


def _scratch(work: str) -> str:
  return os.path.join(work, 'scratch')


def _remote(path: str) -> fsspec.AbstractFileSystem | BucketFileSystem:
  if buckets.is_bucket(path):
    return BucketFileSystem(path)
  try:
    return fsspec.core.url_to_fs(path)[0]
  except (ImportError, ValueError) as error:
    reason = str(error).strip().rstrip('.')
    raise UserError(f'{path} cannot be reached ({reason}); install what that says, or mount it.') from error
