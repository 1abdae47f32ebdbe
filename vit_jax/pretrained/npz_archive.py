"""The .npz container: arrays read one at a time, each failure said in one sentence; and written."""

import math
import os
import pathlib
import zipfile
from collections.abc import Callable, Mapping
from typing import IO, Any, NamedTuple, TypeVar

import ml_dtypes
import numpy as np

from vit_jax.foundation import files
from vit_jax.foundation.errors import UserError, first_line
from vit_jax.pretrained import file_kinds, tensor_names

T = TypeVar('T')

_CHUNK = 2**20
_LARGEST_HEADER = 1000  # bytes; Python's parser, which NumPy asks, fails in many ways on long ones
# Unpacked bytes of an .npz: a deflated file of nothing but zeros has 1,000 times its size, parameters not twice.
_ALWAYS_ALLOWED = 2**28
_LARGEST_RATIO = 8
# Arrays of bfloat16 lie in an .npz as two bytes of an unknown type.
_DTYPES = {np.dtype('V2'): np.dtype(ml_dtypes.bfloat16)}
_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class Header(NamedTuple):
  """What an array of an .npz says of itself."""

  shape: tuple[int, ...]
  fortran: bool
  dtype: np.dtype

  @property
  def read_dtype(self) -> np.dtype:
    """What its bytes are."""
    return _DTYPES.get(self.dtype, self.dtype)


class Archive:
  """An .npz whose arrays stay in the file until they are asked for."""

  def __init__(self, path: str | os.PathLike[str]):
    """Reads names and shapes; UserError where it is no sound .npz of floating point numbers."""
    self.path = pathlib.Path(path)
    if self.path.exists() and not self.path.is_file():
      raise UserError(f'{self.path} is not a regular file; check the path.')
    try:
      self._zip = zipfile.ZipFile(self.path)
    except FileNotFoundError:
      raise UserError(f'There is no file {self.path}; check the path.') from None
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
      what = file_kinds.fault(self.path, 'checkpoint') or f'is cut short, damaged or no .npz ({error})'
      raise UserError(f'{self.path} {what}; get the file again.') from error
    self.shapes: dict[str, tuple[int, ...]] = {}  # of each array by name
    self.dtypes: set[str] = set()  # the names of those that occur
    try:
      self._check_entries()
      for info in self._zip.infolist():
        self._add(info)
    except UserError:
      self._zip.close()
      raise

  def _check_entries(self) -> None:
    """Raises UserError for entries that cannot be what NumPy has written, before any of them is opened."""
    entries, size = self._zip.infolist(), self.path.stat().st_size
    for info in entries:
      tensor_names.check(self.path, info.filename)
      if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(f'{self.path} is damaged at {info.filename} (its compression); get the file again.')
    unpacked, allowed = sum(info.file_size for info in entries), _ALWAYS_ALLOWED + _LARGEST_RATIO * size
    if unpacked > allowed or len({info.filename for info in entries}) < len(entries):
      raise UserError(
        f'{self.path} holds an array twice, or unpacks from {size:,} to {unpacked:,} bytes, as no parameters do; '
        'check what the file holds.'
      )

  def _add(self, info: zipfile.ZipInfo) -> None:
    name = info.filename.removesuffix('.npy')
    if name == info.filename:
      raise UserError(f'{self.path} holds {name!r}, which is not an array; it is no .npz of parameters.')
    found = self._guarded(name, lambda file: self._header(file, info))
    self.shapes[name] = found.shape
    self.dtypes.add(found.read_dtype.name)

  def __enter__(self) -> 'Archive':
    return self

  def __exit__(self, *_) -> None:
    self._zip.close()

  def read(self, name: str) -> np.ndarray:
    """An array as float32; UserError where it is damaged or not finite."""
    out = np.empty(self.shapes[name], np.float32)
    self._guarded(name, lambda file: self._fill(file, name, out))
    tensor_names.check_finite(self.path, name, out)
    return out

  def _fill(self, file: IO[bytes], name: str, out: np.ndarray) -> None:
    header = self._header(file, self._zip.getinfo(name + '.npy'))
    in_place = header.dtype == out.dtype and not header.fortran
    stored = out.reshape(-1) if in_place else np.empty(math.prod(header.shape), header.dtype)
    target = stored.view(np.uint8)
    position = 0
    while chunk := file.read(_CHUNK):  # to the end, where the checksum is verified
      part = np.frombuffer(chunk, np.uint8)
      target[position : position + len(part)] = part
      position += len(part)
    if position != target.size:
      raise ValueError(f'{position} bytes where {target.size} belong')
    if not in_place:
      values = stored.view(header.read_dtype).reshape(header.shape, order='F' if header.fortran else 'C')
      out[...] = values.reshape(out.shape)

  def _header(self, file: IO[bytes], info: zipfile.ZipInfo) -> Header:
    """What an array says of itself, checked before anything is allocated for it."""
    read = _HEADER_READERS[np.lib.format.read_magic(file)]
    header = Header(*read(file, max_header_size=_LARGEST_HEADER))
    name = info.filename.removesuffix('.npy')
    if header.dtype.hasobject:
      raise UserError(
        f'{self.path} holds Python objects in {name} (a pickle, which could run code) and is refused; '
        f'save the parameters as plain arrays.'
      )
    if header.read_dtype.kind != 'f' and header.dtype not in _DTYPES:
      raise UserError(
        f'{self.path} holds {header.dtype} in {name}, and parameters are floating point numbers.'
      )
    if any(side < 0 for side in header.shape):
      raise ValueError(f'shape {header.shape} is negative')
    if math.prod(header.shape) * header.dtype.itemsize > info.file_size:
      raise ValueError(f'shape {header.shape} needs more bytes than there are')
    return header

  def _guarded(self, name: str, function: Callable[[IO[bytes]], T]) -> T:
    """`function` of an opened array; whatever it raises becomes one sentence."""
    try:
      with self._zip.open(name + '.npy') as file:
        return function(file)
    except (UserError, MemoryError):
      raise
    except Exception as error:  # zipfile and NumPy raise a dozen types on damaged data
      raise UserError(
        f'{self.path} is damaged at {name} ({first_line(error)[:200]}); get the file again.'
      ) from error


def write(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
  """Writes an .npz, which is at its place, durably, only when it is complete."""
  files.make_directories(os.path.dirname(os.path.abspath(path)))
  with files.atomic_write(path, 'wb') as file:
    contiguous: dict[str, Any] = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    np.savez(file, **contiguous)
