"""Reads small files from elsewhere whole, in bounded time and memory, whatever lies at their path."""

import errno
import os
import stat

LARGEST_IMAGE = 256 * 2**20  # bytes of an encoded image
LARGEST_TEXT = 64 * 2**20  # bytes of JSON or of names
_PIECE = 2**20  # bytes
REFUSED = frozenset({errno.EINVAL, errno.EFBIG})  # errors of `read_bytes`: no regular file, too large


def read_bytes(path: str | os.PathLike[str], at_most: int) -> bytes:
  """The content of a regular file of at most so many bytes; a named pipe or a device might never end, and is not read.

  OSError where it cannot be read, is no regular file or too large; `strerror` says which.
  """
  descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for a writer
  try:
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
      raise OSError(errno.EINVAL, 'it is not a regular file', os.fspath(path))
    # In few calls, since behind each of them threads that decode images wait for Python's lock.
    fits = state.st_size <= at_most
    content = os.read(descriptor, state.st_size + 1) if fits else b''
    # It came in parts, has grown since, or tells no size, as in /proc. `at_most` bytes are never asked for: they would
    # be allocated.
    while fits and len(content) != state.st_size and (more := os.read(descriptor, _PIECE)):
      content += more
      fits = len(content) <= at_most
    if max(state.st_size, len(content)) > at_most:
      raise OSError(errno.EFBIG, f'it has more than {at_most // 2**20} MiB', os.fspath(path))
    return content
  finally:
    os.close(descriptor)


def read_text(path: str | os.PathLike[str]) -> str:
  """The content of a regular file in UTF-8, without the mark (BOM) that programs of Windows put before it.

  Raises OSError as `read_bytes`, and UnicodeDecodeError.
  """
  return read_bytes(path, LARGEST_TEXT).decode('utf-8-sig')
