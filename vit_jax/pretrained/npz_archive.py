"""The .npz container: arrays read one at a time, each failure said, and written one at a time."""

import math
import os
import pathlib
import zipfile
import zlib
from collections.abc import Callable

import ml_dtypes
import numpy as np

from vit_jax.errors import UserError

_CHUNK = 2**20
# Arrays of bfloat16 lie in an .npz as two bytes of an unknown type.
_DTYPES = {np.dtype('V2'): np.dtype(ml_dtypes.bfloat16)}


class Archive:
  """An .npz whose arrays stay in the file until they are asked for."""

  def __init__(self, path: str | os.PathLike):
    """Reads names and shapes.

    Attributes:
      path: the file.
      shapes: name -> shape of each array.
      dtypes: the names of those that occur.

    Raises:
      UserError: there is no such file, or it is not a sound .npz of floating point numbers.
    """
    self.path = pathlib.Path(path)
    try:
      self._zip = zipfile.ZipFile(self.path)
    except FileNotFoundError:
      raise UserError(f'There is no file {self.path}; check the path.') from None
    except IsADirectoryError:
      raise UserError(f'{self.path} is a directory and not an .npz file.') from None
    except (zipfile.BadZipFile, OSError, EOFError) as error:
      raise UserError(_not_an_archive(self.path, error)) from error
    self.shapes: dict[str, tuple[int, ...]] = {}
    self.dtypes: set[str] = set()
    for info in self._zip.infolist():
      name = info.filename.removesuffix('.npy')
      if name == info.filename:
        raise UserError(f'{self.path} holds {name!r}, which is not an array; it is no .npz of parameters.')
      shape, dtype, _ = self._guarded(name, lambda file, info=info: self._header(file, info))
      self.shapes[name] = shape
      self.dtypes.add(_DTYPES.get(dtype, dtype).name)

  def __enter__(self) -> 'Archive':
    return self

  def __exit__(self, *_) -> None:
    self._zip.close()

  def read_into(self, name: str, out: np.ndarray) -> None:
    """Fills `out`, contiguous float32 of as many elements, with an array of the file.

    Raises:
      UserError: the array is damaged, or not all of it is finite.
    """
    self._guarded(name, lambda file: self._fill(file, name, out))
    if not np.isfinite(out).all():
      raise UserError(
        f'{self.path} has NaN or infinite values in {name}; its training diverged or the file is damaged, '
        f'use another.'
      )

  def _fill(self, file: zipfile.ZipExtFile, name: str, out: np.ndarray) -> None:
    shape, dtype, fortran = self._header(file, self._zip.getinfo(name + '.npy'))
    if dtype == out.dtype and not fortran:
      target = out.reshape(-1).view(np.uint8)
    else:
      stored = np.empty(math.prod(shape), dtype)
      target = stored.view(np.uint8)
    position = 0
    while chunk := file.read(_CHUNK):  # to the end, where the checksum is verified
      part = np.frombuffer(chunk, np.uint8)
      target[position : position + len(part)] = part
      position += len(part)
    if position != target.size:
      raise ValueError(f'{position} bytes where {target.size} belong')
    if target.base is not out and not np.shares_memory(target, out):
      values = stored.view(_DTYPES.get(dtype, dtype)).reshape(shape, order='F' if fortran else 'C')
      out[...] = values.reshape(out.shape)

  def _header(
    self, file: zipfile.ZipExtFile, info: zipfile.ZipInfo
  ) -> tuple[tuple[int, ...], np.dtype, bool]:
    """Shape, dtype and whether the order is Fortran's."""
    reader: Callable = {
      (1, 0): np.lib.format.read_array_header_1_0,
      (2, 0): np.lib.format.read_array_header_2_0,
    }[np.lib.format.read_magic(file)]
    shape, fortran, dtype = reader(file)
    name = info.filename.removesuffix('.npy')
    if dtype.hasobject:
      raise UserError(
        f'{self.path} holds Python objects in {name} (a pickle, which could run code) and is refused; '
        f'save the parameters as plain arrays.'
      )
    if dtype.kind != 'f' and dtype not in _DTYPES:
      raise UserError(f'{self.path} holds {dtype} in {name}, and parameters are floating point numbers.')
    if math.prod(shape) * dtype.itemsize > info.file_size:
      raise ValueError(f'shape {shape} needs more bytes than there are')
    return shape, dtype, fortran

  def _guarded(self, name: str, function: Callable):
    """`function` of an opened array, whatever it raises in one sentence."""
    try:
      with self._zip.open(name + '.npy') as file:
        return function(file)
    except UserError:
      raise
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, RuntimeError) as error:
      reason = (str(error).strip().rstrip('.') or type(error).__name__).splitlines()[0]
      raise UserError(f'{self.path} is damaged at {name} ({reason}); get the file again.') from error


class Writer:
  """Writes an .npz, one array at a time; it is at its place only when it is complete."""

  def __init__(self, path: str | os.PathLike):
    self._path = pathlib.Path(path)
    self._path.parent.mkdir(parents=True, exist_ok=True)
    self._partial = self._path.with_name(self._path.name + '.partial')
    self._zip = zipfile.ZipFile(self._partial, 'w', zipfile.ZIP_STORED)

  def write(self, name: str, array: np.ndarray) -> None:
    with self._zip.open(name + '.npy', 'w', force_zip64=True) as file:
      np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)

  def __enter__(self) -> 'Writer':
    return self

  def __exit__(self, kind: type | None, *_) -> None:
    self._zip.close()
    if kind is None:
      self._partial.replace(self._path)
    else:
      self._partial.unlink()


def _not_an_archive(path: pathlib.Path, error: Exception) -> str:
  with open(path, 'rb') as file:
    start = file.read(4)
  if start[:2] == b'PK':
    return f'{path} is cut short or damaged ({error}); get the file again.'
  if not start:
    return f'{path} is empty (0 bytes); get the file again.'
  return f'{path} is not an .npz file (it begins with {start!r}); check what was downloaded.'
