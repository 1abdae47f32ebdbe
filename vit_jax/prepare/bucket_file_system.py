"""A bucket as the file system that `storage` asks for of fsspec at other addresses, over a network that fails."""

import errno
import io
import os
import pathlib
from typing import Any, cast

from fsspec.spec import AbstractBufferedFile

from vit_jax.foundation.buckets import Bucket, Entry

_BUFFER = 4 * 2**20  # bytes that a read gets: the headers of a tar need no request each


class BucketFileSystem:
  """The part of an fsspec file system that `storage` uses; its methods raise as those of `Bucket`, as do reads."""

  def __init__(self, address: str):
    """`address`: of anything in the bucket."""
    self._bucket = Bucket(address)

  def isdir(self, address: str) -> bool:
    return any(self._bucket.listing(address))

  def exists(self, address: str) -> bool:
    return self._bucket.entry(address) is not None or self.isdir(address)

  def open(self, address: str, mode: str) -> io.BufferedReader:
    """Opens an object for reading; FileNotFoundError where there is none."""
    assert mode == 'rb', mode
    entry = self._bucket.entry(address)
    if entry is None:
      raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address)
    return io.BufferedReader(cast(io.RawIOBase, _Object(self._bucket, entry)), _BUFFER)

  def find(self, address: str, detail: bool) -> dict[str, dict[str, Any]]:
    """Address -> {'size': …} of all objects below one."""
    assert detail
    return {entry.address: {'size': entry.size} for entry in self._bucket.below(address)}

  def ls(self, address: str, detail: bool) -> list[str]:
    """The addresses directly below one."""
    assert not detail
    entries, folders = self._bucket.listing(address)
    return [entry.address for entry in entries] + folders

  def rm(self, address: str, recursive: bool) -> None:
    assert recursive
    self._bucket.remove([address, *(entry.address for entry in self._bucket.below(address))])

  def put_file(self, local: str, address: str) -> None:
    """Copies a file that nobody changes meanwhile to an address, where it appears when it is whole."""
    self._bucket.upload(pathlib.Path(local), address)

  def _strip_protocol(self, address: str) -> str:
    return address


class _Object(AbstractBufferedFile):
  """An object as an unbuffered file."""

  def __init__(self, bucket: Bucket, entry: Entry):
    super().__init__(None, entry.address, cache_type='none', size=entry.size)
    self._bucket = bucket

  def _fetch_range(self, start: int, end: int) -> bytes:
    return self._bucket.read(self.path, start, min(end, self.size))
