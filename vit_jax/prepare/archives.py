"""Images in tar and zip archives, listed and read in place; nothing is extracted."""

import bz2
import functools
import gzip
import itertools
import logging
import lzma
import math
import posixpath
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, cast

from vit_jax.data.sources.folder_layout import is_hidden
from vit_jax.data.sources.folder_listing import EXTENSIONS
from vit_jax.foundation.errors import UserError
from vit_jax.prepare import storage

_log = logging.getLogger(__name__)

_DECOMPRESSORS = {b'\x1f\x8b': gzip.open, b'BZh': bz2.open, b'\xfd7zXZ': lzma.open}  # by a file's first bytes
_COPY_BYTES = 2**20
_LARGEST_RATIO = 100  # of unpacked bytes to packed ones; bitmaps of one colour reach a few times ten
_SMALL = 2**20  # bytes of a packed archive that count at least
_LARGEST_READ = 2**28  # bytes; the directory of a zip of two million files has as many
_READABLE = ('.tar', '.zip')
_COMPRESSED = ('.tar.gz', '.tgz', '.tar.bz2', '.tbz2', '.tar.xz', '.txz', '.tar.zst', '.7z', '.rar')


class Member(NamedTuple):
  """A file in an archive."""

  name: str  # its path in the archive, with '/'
  location: int | str  # the byte at which its content begins in a tar, or its name in a zip
  size: int  # in bytes
  folder: str = ''  # that a tar within the tar around it stands for, such as 'images/n01440764'


class _CutShort(tarfile.ReadError):
  """A tar ends after a member, without the blocks that mark its end."""


def members(
  path: str, *, name: str | None = None, allow_cut: bool = False, limit: int | None = None
) -> Iterator[Member]:
  """Lists the regular files of a tar or zip.

  A tar within a tar stands for a folder of its name: 'n01440764.tar' for 'n01440764/'.

  Args:
    path: the path or address of the archive.
    name: what errors call it; None: its path.
    allow_cut: whether a tar that was cut off after a member is only warned of.
    limit: files of each tar within a tar; None: all.

  Raises:
    UserError: it is not an archive, is damaged, was cut off, or has links to images.
  """
  name = name or path
  try:
    with _opened(path) as file:
      if tarfile.is_tarfile(file):
        yield from _tar_members(file, name, 0, math.inf, allow_cut, limit)
      elif zipfile.is_zipfile(file):
        yield from _zip_members(file)
      else:
        raise UserError(f'{name} is neither a tar nor a zip; give one of these, a folder or a .csv file.')
  except UserError:
    raise
  except _CutShort as error:
    raise UserError(
      f'{name} cannot be read as an archive ({error}); restore it, or prepare the files that are left with '
      f'--bad_images=skip.'
    ) from error
  except Exception as error:  # tarfile and zipfile raise many types for a damaged archive
    reason = getattr(error, 'strerror', None) or str(error) or type(error).__name__
    raise UserError(f'{name} cannot be read as an archive ({reason}); restore it.') from error


def decompressed(path: str, folder: str) -> str:
  """Decompresses a tar that gzip, bzip2 or xz compressed into a folder, since such a tar has no random access.

  Returns:
    The path of the decompressed tar; `path` itself if it is not compressed.

  Raises:
    UserError: the file cannot be read or decompressed.
    OSError: the decompressed tar cannot be written.
  """
  try:
    file = storage.open_file(path)
  except OSError as error:
    raise UserError(f'{path} cannot be read ({error.strerror}); give a file that can.') from error
  with file:
    start = file.read(6)
    opener = next((opener for magic, opener in _DECOMPRESSORS.items() if start.startswith(magic)), None)
    if opener is None:
      return path
    file.seek(0)
    tar = storage.join(folder, 'source.tar')
    try:
      with opener(file) as content, storage.atomic_path(tar, folder) as local, open(local, 'wb') as copy:
        _copy(cast(BinaryIO, content), copy, file, path)
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
      if getattr(error, 'errno', None):  # of the system; bzip2's and gzip's own OSErrors have no number
        raise
      raise UserError(f'{path} cannot be decompressed ({error}); restore it.') from error
  return tar


def _copy(content: BinaryIO, copy: BinaryIO, packed: BinaryIO, path: str) -> None:
  """Copies what a packed file unpacks to; UserError (which calls it `path`) where that is far more than images do."""
  while block := content.read(_COPY_BYTES):
    copy.write(block)
    if copy.tell() > _LARGEST_RATIO * max(packed.tell(), _SMALL):
      raise UserError(
        f'{path} unpacks to more than {_LARGEST_RATIO} times its size, which images do not; check what it is.'
      )


def is_archive(name: str) -> bool:
  """Whether a file's name is that of an archive, readable in place or not."""
  return name.lower().endswith(_READABLE + _COMPRESSED)


def is_compressed(name: str) -> bool:
  """Whether a file's name is that of an archive that cannot be read in place."""
  return name.lower().endswith(_COMPRESSED)


def stem(name: str) -> str:
  """The name of an archive without its ending: 'images/n01440764.tar' -> 'images/n01440764'."""
  ending = next(ending for ending in _COMPRESSED + _READABLE if name.lower().endswith(ending))
  return name[: -len(ending)]


def is_data(name: str) -> bool:
  """Whether a file's name is that of an image, an archive or a parquet file."""
  return name.lower().endswith((*EXTENSIONS, '.parquet')) or is_archive(name)


def first_data(source: str) -> str:
  """The path or address of the first file of data in a folder, '' without one; a source that is a file itself."""
  if not storage.is_folder(source):
    return source
  name = next(_data_names(source), '')
  return name and storage.join(source, name)


def data_files(source: str, ending: str) -> Iterator[tuple[str, str]]:
  """Name (relative) and path or address of the files of a source with an ending; UserError where it has other data."""
  if not storage.is_folder(source):
    yield posixpath.basename(source), source
    return
  for name in _data_names(source):
    if not name.lower().endswith(ending):
      remedy = 'decompress it' if is_compressed(name) else f'give a folder of the {ending} files alone'
      raise UserError(f'{source} holds {name} beside {ending} files; {remedy}.')
    yield name, storage.join(source, name)


def _data_names(folder: str) -> Iterator[str]:
  """The names of a folder's data; img2dataset's NAME.parquet, which tells how NAME.tar was downloaded, is none."""
  names_in = functools.cache(storage.names)  # a folder is listed once, rather than asked for each tar
  for name, _ in storage.list_files(folder):
    stem, ending = posixpath.splitext(storage.join(folder, name))
    beside, tar = posixpath.split(f'{stem}.tar')
    if is_data(name) and not (ending.lower() == '.parquet' and tar in names_in(beside)):
      yield name


def read(path: str, location: int | str, size: int | None) -> bytes:
  """The content of a member; of a tar's, `size` is needed.

  Raises:
    OSError, zipfile.BadZipFile, EOFError, RuntimeError: it is damaged, or protected by a password.
  """
  if isinstance(location, str):
    with _opened_zip(path).open(location) as file:
      return file.read()
  assert size is not None, 'a tar states the size of each member'
  with storage.open_file(path) as file:
    file.seek(location)
    content = file.read(size)
  if len(content) < size:
    raise EOFError('the archive ends within it')
  return content


def _zip_members(file: BinaryIO) -> Iterator[Member]:
  with zipfile.ZipFile(file) as archive:
    for info in archive.infolist():
      if not info.is_dir():
        yield Member(info.filename, info.filename, info.file_size)


def _tar_members(
  file: BinaryIO, name: str, start: int, end: float, allow_cut: bool, limit: int | None
) -> Iterator[Member]:
  """Lists the members of the tar from byte `start` to byte `end` (or infinity) of a file, as `members`."""
  file.seek(start)
  with tarfile.open(fileobj=file, mode='r:') as archive:
    while (info := archive.next()) is not None and info.offset < end:
      # tarfile would keep all of them; its stubs lack the list.
      archive.members.clear()  # pyright: ignore[reportAttributeAccessIssue]
      if info.size < 0:
        raise tarfile.ReadError(f'damaged at byte {info.offset}')
      if _is_lost_image(info):
        raise UserError(
          f'{name} has {info.name} as a link or with holes, which is not read; pack it with '
          f'`tar --dereference --hard-dereference`, or give the folder that was packed.'
        )
      if not info.isreg() or info.sparse is not None:
        continue
      if not info.name.lower().endswith('.tar'):
        yield Member(info.name, info.offset_data, info.size)
        continue
      folder = stem(info.name)
      inner_end = min(info.offset_data + info.size, end)  # no byte belongs to two tars beside each other
      content = _tar_members(file, f'{name}/{info.name}', info.offset_data, inner_end, allow_cut, limit)
      for inner in itertools.islice(content, limit):
        yield inner._replace(
          name=f'{folder}/{inner.name}', folder=f'{folder}/{inner.folder}' if inner.folder else folder
        )
    _check_end(file, name, archive.offset, end, allow_cut)


def _is_lost_image(info: tarfile.TarInfo) -> bool:
  """Whether a member that is not read is an image, or a link to what may be a folder of images."""
  is_link = info.islnk() or info.issym()
  extension = posixpath.splitext(info.name)[1].lower()
  if is_hidden(posixpath.basename(info.name)):
    return False
  return (is_link and extension in ('', *EXTENSIONS)) or (info.sparse is not None and extension in EXTENSIONS)


def _check_end(file: BinaryIO, name: str, offset: int, end: float, allow_cut: bool) -> None:
  """Raises ReadError unless the block at which tarfile stopped is one of zeros, which marks the end of a tar."""
  block = b''
  if offset < end:
    file.seek(offset)
    block = file.read(tarfile.BLOCKSIZE)
  if any(block):
    raise tarfile.ReadError(f'damaged at byte {offset}')
  if block:
    return
  if not allow_cut:
    raise _CutShort(f'cut short at byte {offset}: the mark of its end is missing')
  _log.warning('%s was cut short; files that were behind byte %d are left out.', name, offset)


@functools.lru_cache(maxsize=8)
def _opened_zip(path: str) -> zipfile.ZipFile:
  """An open zip, kept open because reading its directory takes long."""
  return zipfile.ZipFile(_opened(path))


class _Bounded:
  """A file of which only so much is read at a time: archives state sizes, and what claims more is damaged."""

  def __init__(self, file: BinaryIO):
    self._file = file

  def read(self, size: int | None = -1) -> bytes:
    if size is not None and 0 <= size <= _LARGEST_READ:
      return self._file.read(size)
    content = self._file.read(_LARGEST_READ + 1)
    if len(content) > _LARGEST_READ:
      raise OSError(f'a part of it has more than {_LARGEST_READ // 2**20} MiB')
    return content

  def __getattr__(self, name: str) -> Any:
    return getattr(self._file, name)

  def __enter__(self) -> '_Bounded':
    return self

  def __exit__(self, *_: object) -> None:
    self._file.close()


def _opened(path: str) -> BinaryIO:
  return cast(BinaryIO, _Bounded(storage.open_file(path)))
