"""A file system that answers as a folder does, until it stalls and never answers again, or refuses what changes it.

  python tests/stalled_mount.py FOLDER MOUNTPOINT OPERATION TEXT [ERROR]

It speaks the kernel's FUSE protocol itself, without a library. It answers until an operation (such as READ, or
any) of a path with TEXT in it has been answered, and then nothing more; with an ERROR, such as EIO, that is then the
answer to all that would change such a path. On stdout it says `ready`, and `hanging` once a process waits for an
answer. It ends with its stdin; the requests that wait then fail.

A request that was never read may be left by a process that is killed, as on NFS. One that was read and is not
answered may not: such a process cannot be ended by anybody, also not with SIGKILL, before the file system is.

This needs /dev/fuse and the right to mount.
"""

import contextlib
import ctypes
import errno
import os
import pathlib
import select
import struct
import subprocess
import sys
from collections.abc import Iterator

OPERATIONS = {
  1: 'LOOKUP', 2: 'FORGET', 3: 'GETATTR', 4: 'SETATTR', 9: 'MKDIR', 10: 'UNLINK', 11: 'RMDIR', 12: 'RENAME',
  14: 'OPEN', 15: 'READ', 16: 'WRITE', 17: 'STATFS', 18: 'RELEASE', 20: 'FSYNC', 26: 'INIT', 27: 'OPENDIR',
  28: 'READDIR', 29: 'RELEASEDIR', 30: 'FSYNCDIR', 35: 'CREATE', 36: 'INTERRUPT', 42: 'BATCH_FORGET',
}  # fmt: skip
_SILENT = ('FORGET', 'BATCH_FORGET', 'INTERRUPT')  # the kernel expects no answer
_CHANGES = ('MKDIR', 'UNLINK', 'RMDIR', 'RENAME', 'WRITE', 'FSYNC', 'CREATE')
_LARGEST_WRITE = 2**17  # bytes
_ROOT = 1
_NO_FLUSH = 32  # of an open file: that it is closed is not asked, which could not be killed


class Stalling:
  """The mount as a process of its own.

  Raises:
    OSError: this machine does not allow it.
  """

  def __init__(self, folder: pathlib.Path, root: pathlib.Path, operation: str, text: str, *error: str):
    root.mkdir()
    self._root = root
    command = [sys.executable, __file__, folder, root, operation, text, *error]
    self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert self._process.stdout is not None
    line = self._process.stdout.readline()
    if line != 'ready\n':
      self._process.communicate()
      raise OSError(line or 'the file system could not be mounted')

  def hangs_within(self, seconds: float) -> bool:
    """Whether a process waits for an answer that does not come."""
    assert self._process.stdout is not None
    if not select.select([self._process.stdout], [], [], seconds)[0]:
      return False
    return self._process.stdout.readline() == 'hanging\n'

  def close(self) -> None:
    """Ends the file system; who waits for it gets an error."""
    self._process.communicate()
    subprocess.run(['umount', '-l', self._root], capture_output=True)


class Files:
  """Answers the kernel's requests by the files of a folder."""

  def __init__(self, folder: str):
    self._paths = {_ROOT: folder}
    self._numbers = {folder: _ROOT}

  def path(self, operation: str, node: int, body: bytes) -> str:
    """What a request is about."""
    path = self._paths.get(node, '')
    if operation in ('LOOKUP', 'UNLINK', 'RMDIR'):
      return os.path.join(path, _name(body))
    if operation in ('MKDIR', 'CREATE'):
      return os.path.join(path, _name(body[8 if operation == 'MKDIR' else 16 :]))
    return path

  def answer(self, operation: str, path: str, body: bytes) -> bytes:
    """The answer to a request about a path.

    Raises:
      OSError: of the operation, as the process that asked shall see it.
    """
    method = getattr(self, f'_{operation.lower()}', None)
    if method is None:
      raise OSError(errno.ENOSYS, 'not there')
    return method(path, body)

  def _init(self, path: str, body: bytes) -> bytes:
    major, _, readahead, _ = struct.unpack_from('<4I', body)
    return struct.pack('<4I2H2I2H8I', major, 31, readahead, 0, 12, 9, _LARGEST_WRITE, 1, *[0] * 10)

  def _lookup(self, path: str, body: bytes) -> bytes:
    attributes = _attributes(path)
    number = self._numbers.setdefault(path, max(self._paths) + 1)
    self._paths[number] = path
    return struct.pack('<4Q2I', number, 0, 0, 0, 0, 0) + attributes

  def _getattr(self, path: str, body: bytes) -> bytes:
    return struct.pack('<Q2I', 0, 0, 0) + _attributes(path)

  def _setattr(self, path: str, body: bytes) -> bytes:
    valid, _, _, size = struct.unpack_from('<2I2Q', body)
    if valid & 8:
      os.truncate(path, size)
    return self._getattr(path, body)

  def _mkdir(self, path: str, body: bytes) -> bytes:
    os.mkdir(path)
    return self._lookup(path, body)

  def _create(self, path: str, body: bytes) -> bytes:
    flags, mode = struct.unpack_from('<2I', body)
    handle = os.open(path, flags | os.O_CREAT, mode)
    return self._lookup(path, body) + struct.pack('<Q2I', handle, _NO_FLUSH, 0)

  def _unlink(self, path: str, body: bytes) -> bytes:
    os.unlink(path)
    self._numbers.pop(path, None)
    return b''

  def _rmdir(self, path: str, body: bytes) -> bytes:
    os.rmdir(path)
    self._numbers.pop(path, None)
    return b''

  def _rename(self, path: str, body: bytes) -> bytes:
    (node,) = struct.unpack_from('<Q', body)
    source, target = body[8:].split(b'\0')[:2]
    old, new = os.path.join(path, os.fsdecode(source)), os.path.join(self._paths[node], os.fsdecode(target))
    os.rename(old, new)
    for number, name in list(self._paths.items()):
      if name == old or name.startswith(f'{old}/'):
        self._numbers.pop(name, None)
        self._paths[number] = new + name[len(old) :]
        self._numbers[self._paths[number]] = number
    return b''

  def _open(self, path: str, body: bytes) -> bytes:
    (flags,) = struct.unpack_from('<I', body)
    return struct.pack('<Q2I', os.open(path, flags & ~os.O_CREAT), _NO_FLUSH, 0)

  def _opendir(self, path: str, body: bytes) -> bytes:
    return struct.pack('<Q2I', os.open(path, os.O_RDONLY | os.O_DIRECTORY), 0, 0)

  def _readdir(self, path: str, body: bytes) -> bytes:
    _, offset, size = struct.unpack_from('<2QI', body)
    entries = b''
    for at, name in enumerate(sorted(os.listdir(path))[offset:], offset + 1):
      text = os.fsencode(name)
      entry = struct.pack('<2Q2I', at + 1, at, len(text), 0) + text
      entry += bytes(-len(entry) % 8)
      if len(entries) + len(entry) > size:
        break
      entries += entry
    return entries

  def _read(self, path: str, body: bytes) -> bytes:
    handle, offset, size = struct.unpack_from('<2QI', body)
    return os.pread(handle, size, offset)

  def _write(self, path: str, body: bytes) -> bytes:
    handle, offset, size = struct.unpack_from('<2QI', body)
    return struct.pack('<2I', os.pwrite(handle, body[40 : 40 + size], offset), 0)

  def _statfs(self, path: str, body: bytes) -> bytes:
    return struct.pack('<5Q4I6I', 2**24, 2**23, 2**23, 2**20, 2**20, 4096, 255, 4096, *[0] * 7)

  def _fsync(self, path: str, body: bytes) -> bytes:
    return b''

  _fsyncdir = _fsync

  def _release(self, path: str, body: bytes) -> bytes:
    os.close(struct.unpack_from('<Q', body)[0])
    return b''

  _releasedir = _release


def _name(body: bytes) -> str:
  return os.fsdecode(body.partition(b'\0')[0])


def _attributes(path: str) -> bytes:
  """`struct fuse_attr`."""
  s = os.lstat(path)
  times = [divmod(time, 10**9) for time in (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns)]
  sizes = (s.st_ino, s.st_size, s.st_blocks, *(seconds for seconds, _ in times))
  rest = (s.st_mode, s.st_nlink, s.st_uid, s.st_gid, 0, 4096, 0)
  return struct.pack('<6Q10I', *sizes, *(nano for _, nano in times), *rest)


@contextlib.contextmanager
def mounted(root: str) -> Iterator[int]:
  """The descriptor through which the kernel asks."""
  descriptor = os.open('/dev/fuse', os.O_RDWR)
  options = f'fd={descriptor},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}'
  libc = ctypes.CDLL(None, use_errno=True)
  if libc.mount(b'stalling', os.fsencode(root), b'fuse', 0, options.encode()):
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
  try:
    yield descriptor
  finally:
    os.close(descriptor)  # all that wait get an error


def serve(folder: str, root: str, operation: str, text: str, refusal: str = '') -> None:
  """Answers until it shall stall; then says only that somebody waits, or refuses what changes such a path."""
  files, stalled = Files(folder), False
  with mounted(root) as fuse:
    print('ready', flush=True)
    while 0 not in select.select([0, fuse], [], [])[0]:
      if stalled and not refusal:
        print('hanging', flush=True)
        os.read(0, 1)
        return
      request = os.read(fuse, _LARGEST_WRITE + 2**13)
      _, code, unique, node = struct.unpack_from('<2I2Q', request)
      name = OPERATIONS.get(code, str(code))
      if name in _SILENT:
        continue
      path = files.path(name, node, request[40:])
      try:
        if stalled and name in _CHANGES and text in path:
          raise OSError(getattr(errno, refusal), refusal)
        answer, error = files.answer(name, path, request[40:]), 0
        stalled = stalled or (name == operation and text in path)
      except OSError as failed:
        answer, error = b'', failed.errno or errno.EIO
      with contextlib.suppress(FileNotFoundError):  # who asked was interrupted
        os.write(fuse, struct.pack('<IiQ', 16 + len(answer), -error, unique) + answer)


if __name__ == '__main__':
  try:
    serve(*sys.argv[1:])
  except OSError as error:
    print(f'{error.strerror}: FUSE', flush=True)
