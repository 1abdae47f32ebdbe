"""Folders of safetensors files: arrays read one at a time, each failure said in one sentence."""

import contextlib
import hashlib
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy

from vit_jax.foundation import files
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import file_kinds, foreign, tensor_names
from vit_jax.pretrained.json_values import JsonObject

FILE = 'model.safetensors'
_INDEX = 'model.safetensors.index.json'
_DTYPES = ('F64', 'F32', 'F16', 'BF16')
_PARTIAL = '.partial'
_CHECKSUM = '.sha256'  # behind the name of the file; beside what `write` has written
# Of the files that an index names: nothing that leads out of the folder.
_NAME = re.compile(r'[\w][\w.-]{0,200}\.safetensors')
_SHA256 = re.compile('[0-9a-f]{64}')
_SHARD = re.compile(r'.*-\d{5}-of-\d{5}\.safetensors')
# How PyTorch's batch norms call the number of steps they have seen, an integer that no output depends on.
STEP_COUNT = 'num_batches_tracked'
# What transformers' TimmWrapper puts before timm's names.
_WRAPPED = 'timm_model.'
# Ends of the names of integers that follow from the sizes, beside it.
_INTEGERS = (f'.{STEP_COUNT}', 'position_ids', 'relative_position_index')
# Tokens of which a model may have none, as a tensor without elements.
_REGISTERS = 'register_tokens'


class TensorFiles:
  """The tensors of a .safetensors file, or of a folder that holds one or several of them."""

  def __init__(self, source: str | os.PathLike[str]):
    """Reads names and shapes; UserError where files are missing or damaged, or tensors twice there or no floats."""
    self.source = pathlib.Path(source)  # the folder or file
    self._stack = contextlib.ExitStack()
    self._file_of: dict[str, Any] = {}
    self._prefix = ''  # of all names in the files, which is not in those here
    self._paths, self.notes = paths_of(self.source)  # sentences for the person on which of the files are read
    self.shapes: dict[
      str, tuple[int, ...]
    ] = {}  # of each tensor by name, but for integers that follow from them
    self.dtypes: set[str] = set()  # 'F32', 'BF16', …: of what the tensors are stored in
    with contextlib.ExitStack() as undo:
      undo.enter_context(self._stack)
      for path in self._paths:
        self._open(path)
      undo.pop_all()
    if self.shapes and all(name.startswith(_WRAPPED) for name in self.shapes):
      self._prefix = _WRAPPED
      self.shapes = {name.removeprefix(_WRAPPED): shape for name, shape in self.shapes.items()}

  def prefix(self, prefix: str) -> str:
    """`prefix`, if names of tensors begin with it; else ''."""
    return prefix if any(name.startswith(prefix) for name in self.shapes) else ''

  def _open(self, path: pathlib.Path) -> None:
    fault = file_kinds.fault(path, 'checkpoint')  # before the library maps it into memory
    if fault:
      raise UserError(f'{path} {fault}; get it again.')
    try:
      file = self._stack.enter_context(safetensors.safe_open(path, framework='np'))
      for name in list(file.keys()):
        tensor_names.check(path, name)
        if name.endswith(_INTEGERS):
          continue
        view = file.get_slice(name)
        if view.get_dtype() not in _DTYPES:
          raise UserError(f'{path} holds {name} as {view.get_dtype()}, and parameters are floating point.')
        shape = tuple(view.get_shape())
        if name.endswith(_REGISTERS) and shape[1:2] == (0,):
          continue
        if name in self._file_of:
          raise UserError(
            f'{path} holds {name}, which another file beside it holds too; keep the files of one model.'
          )
        self._file_of[name] = file
        self.shapes[name] = shape
        if 0 in shape:
          raise UserError(f'{path} holds {name} of shape {shape}, which has no elements; check the file.')
        self.dtypes.add(view.get_dtype())
    except (safetensors.SafetensorError, OSError) as error:
      reason = str(error).strip().rstrip('.') or type(error).__name__
      raise UserError(f'{path} is cut short or no safetensors file ({reason}); get it again.') from error

  def check_sums(self) -> None:
    """Compares files with the SHA-256 beside them, or by which the Hub's cache names them; UserError: it is another."""
    for path in self._paths:
      beside, blob = path.with_name(path.name + _CHECKSUM), path.readlink().name if path.is_symlink() else ''
      if beside.is_file():
        if _stored_sum(beside) != _sha256(path):
          raise UserError(f'{path} is damaged: it does not match {beside.name}; get the file again.')
      elif _SHA256.fullmatch(blob) and blob != _sha256(path):
        real = path.resolve()
        raise UserError(f'{path} is damaged: its SHA-256 is not {blob}; remove {real} and load it again.')

  def read(self, name: str) -> np.ndarray:
    """A tensor as float32; UserError where not all of it is finite."""
    stored = self._prefix + name
    tensor = self._file_of[stored].get_tensor(stored).astype(np.float32, copy=False)
    tensor_names.check_finite(self.source, name, tensor)
    return tensor

  def __enter__(self) -> 'TensorFiles':
    return self

  def __exit__(self, *_: object) -> None:
    self._stack.close()


def names(path: pathlib.Path) -> frozenset[str]:
  """The names of a file's tensors; UserError as of `TensorFiles`."""
  with TensorFiles(path) as tensors:
    return frozenset(tensors.shapes)


def write(
  folder: pathlib.Path, tensors: Mapping[str, np.ndarray], texts: Mapping[str, str], name: str = FILE
) -> None:
  """Writes the texts, by the names of their files, and then the tensors, in a file of that `name`, with its SHA-256.

  Until it is complete there is no such file. What an interrupted call has left is written over.

  Raises:
    UserError: the folder holds something else already.
    OSError: it cannot be written.
  """
  partial, checksum = folder / (name + _PARTIAL), folder / (name + _CHECKSUM)
  own = {*texts, checksum.name}
  if folder.is_file() or (folder.is_dir() and _in_use(folder, name, own)):
    raise UserError(f'{folder} is there already and not empty; choose another folder.')
  files.make_directories(folder)
  contiguous = {key: np.asarray(tensor, order='C') for key, tensor in tensors.items()}
  try:
    partial.touch()  # first: it tells that what lies beside it is not complete
    mode = partial.stat().st_mode
    for file, text in texts.items():
      files.write_text(folder / file, text)
    try:  # with the metadata that transformers and timm write
      safetensors.numpy.save_file(contiguous, partial, metadata={'format': 'pt'})
    except safetensors.SafetensorError as error:
      raise _os_error(error, folder / name) from error
    partial.chmod(mode)  # safetensors lets nobody but the owner read it
    # As the command sha256sum writes and checks it.
    files.write_text(checksum, f'{_sha256(partial)}  {name}\n')
    files.move_into_place(partial, folder / name)
  except BaseException:
    for file in (*own, partial.name):
      (folder / file).unlink(missing_ok=True)
    raise


def _os_error(error: Exception, path: pathlib.Path) -> Exception:
  """The system's error behind one of safetensors, which tells its number in its text only; else the same error."""
  number = re.search(r'\(os error (\d+)\)', str(error))
  return OSError(int(number[1]), os.strerror(int(number[1])), str(path)) if number else error


def _in_use(folder: pathlib.Path, name: str, own: set[str]) -> bool:
  """Whether a folder holds more than what an interrupted `write` of the files `own` has left."""
  names = {path.name for path in folder.iterdir()}
  left = own | {file + _PARTIAL for file in (name, *own)}
  return bool(names) and not (name + _PARTIAL in names and names <= left)


def _sha256(path: pathlib.Path) -> str:
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _stored_sum(path: pathlib.Path) -> str:
  """The hexadecimal digits that a file of sha256sum begins with."""
  with open(path, 'rb') as file:
    return file.read(64).decode('ascii', errors='replace').lower()


def paths_of(source: pathlib.Path) -> tuple[list[pathlib.Path], tuple[str, ...]]:
  """The files to read, as transformers chooses them, and sentences on those that are not read."""
  if source.is_file():
    index = source.with_name(_INDEX)
    if not _SHARD.fullmatch(source.name):
      return [source], ()
    if not index.exists():
      raise UserError(f'{source} is one of several files of a model; name a folder that has {_INDEX} too.')
    return _shards(source.parent, index), ()
  if not source.is_dir():
    raise UserError(f'There is no folder or file {source}; check the path.')
  index = source / _INDEX
  if (source / FILE).is_file():
    both = (
      f'{source} has both {FILE}, which is read, and {_INDEX}, which is left aside, as transformers does.'
    )
    return [source / FILE], (both,) if index.exists() else ()
  if index.exists():
    return _shards(source, index), ()
  foreign.refuse_folder(source)
  raise UserError(f'{source} has no {FILE}; check the path.')


def _shards(source: pathlib.Path, index: pathlib.Path) -> list[pathlib.Path]:
  """The files that an index names."""
  names = JsonObject.read(index).raw('weight_map')
  found: list[Any] = [*names.values()] if isinstance(names, dict) else [None]
  if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in found):
    raise UserError(
      f'{index} has no weight_map from tensors to .safetensors files of its folder; check the file.'
    )
  for name in sorted(set(found)):
    if not (source / name).is_file():
      raise UserError(f'{source} lacks {name}, which {_INDEX} names; get the folder again.')
  return [source / name for name in sorted(set(found))]
