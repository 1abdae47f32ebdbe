"""Images in tar and zip archives: listed, and read where they lie; nothing is ever extracted."""

import bz2
import functools
import gzip
import logging
import lzma
import math
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from vit_jax.errors import UserError
from vit_jax.prepare import storage

_COMPRESSED = {b'\x1f\x8b': gzip, b'BZh': bz2, b'\xfd7zXZ': lzma}  # first bytes -> how
_CHUNK = 2**20


class Member(NamedTuple):
  """A file in an archive."""

  name: str  # with '/', below the archive
  within: int | str  # a tar's byte at which it begins, or the member's name in a zip
  size: int


def members(path: str) -> Iterator[Member]:
  """The regular files of a tar or zip; of a tar within a tar, its files, below a folder of its name.

  Raises:
    UserError: no such archive, or a damaged one.
  """
  try:
    with storage.open_file(path) as file:
      if tarfile.is_tarfile(file):
        yield from _tar_members(file, 0)
      elif zipfile.is_zipfile(file):
        yield from _zip_members(file)
      else:
        raise UserError(f'{path} is neither a tar nor a zip; give one of these, a folder or a .csv file.')
  except UserError:
    raise
  except Exception as error:  # both modules raise what they like for a damaged one
    raise UserError(f'{path} cannot be read as an archive ({error}); restore it.') from error


def decompressed(path: str, folder: str) -> str:
  """A tar that gzip, bzip2 or xz compressed, decompressed into a folder, for there is no other way to read
  it in any order; the path itself, if it is not compressed."""
  with storage.open_file(path) as file:
    start = file.read(6)
    opened = next((module.open for magic, module in _COMPRESSED.items() if start.startswith(magic)), None)
    if opened is None:
      return path
    file.seek(0)
    tar = storage.join(folder, 'source.tar')
    try:
      with opened(file) as content, storage.writing(tar, folder) as local, open(local, 'wb') as copy:
        shutil.copyfileobj(content, copy, _CHUNK)
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
      if getattr(error, 'errno', None):  # of the system, and not bzip2's or gzip's own
        raise
      raise UserError(f'{path} cannot be decompressed ({error}); restore it.') from error
  return tar


def is_archive(name: str) -> bool:
  return name.lower().endswith(('.tar', '.zip'))


def stem(name: str) -> str:
  """'images/n01440764.tar' -> 'images/n01440764'."""
  return name[:-4]


def read(path: str, within: int | str, size: int) -> bytes:
  """A member's content.

  Raises:
    OSError, zipfile.BadZipFile, EOFError, RuntimeError: it cannot be read, by a damage or a password.
  """
  if isinstance(within, str):
    with _opened_zip(path).open(within) as file:
      return file.read()
  with storage.open_file(path) as file:
    file.seek(within)
    content = file.read(size)
  if len(content) < size:
    raise EOFError('the archive ends within it')
  return content


def _zip_members(file: BinaryIO) -> Iterator[Member]:
  with zipfile.ZipFile(file) as archive:
    for info in archive.infolist():
      if not info.is_dir():
        yield Member(info.filename, info.filename, info.file_size)


def _tar_members(file: BinaryIO, start: int, end: float = math.inf) -> Iterator[Member]:
  """The members of the tar that lies from byte `start` to `end` of a file."""
  file.seek(start)
  with tarfile.open(fileobj=file, mode='r:') as archive:
    while (info := archive.next()) is not None and info.offset < end:
      archive.members.clear()  # tarfile keeps them all
      if not info.isreg() or info.sparse is not None:
        continue
      if not info.name.lower().endswith('.tar'):
        yield Member(info.name, info.offset_data, info.size)
        continue
      for inner in _tar_members(file, info.offset_data, info.offset_data + info.size):
        yield inner._replace(name=f'{stem(info.name)}/{inner.name}')
    if archive.offset < end:
      file.seek(archive.offset)
      block = file.read(tarfile.BLOCKSIZE)
      if any(block):
        raise tarfile.ReadError(f'damaged at byte {archive.offset}')  # where tarfile would just stop
      if not block:
        logging.warning(
          '%s has no mark of its end; perhaps it was cut short.', getattr(file, 'name', 'The tar')
        )


@functools.lru_cache(maxsize=8)
def _opened_zip(path: str) -> zipfile.ZipFile:
  """Kept open: its directory takes long to read."""
  return zipfile.ZipFile(storage.open_file(path))
