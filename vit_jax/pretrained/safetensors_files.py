"""Folders of safetensors files: arrays read one at a time, each failure said in one sentence."""

import contextlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.errors import UserError

FILE = 'model.safetensors'
_INDEX = 'model.safetensors.index.json'
_DTYPES = ('F64', 'F32', 'F16', 'BF16')


class TensorFiles:
  """The tensors of a .safetensors file, or of a folder that holds one or several of them."""

  def __init__(self, source: str | os.PathLike):
    """Reads names and shapes.

    Attributes:
      source: the folder or file.
      shapes: name -> shape of each tensor.
      dtypes: 'F32', 'BF16', …: of what the tensors are stored in.

    Raises:
      UserError: no such files, damaged ones, or tensors that are not floating point numbers.
    """
    self.source = pathlib.Path(source)
    self._stack = contextlib.ExitStack()
    self._file_of: dict[str, Any] = {}
    self.shapes: dict[str, tuple[int, ...]] = {}
    self.dtypes: set[str] = set()
    with contextlib.ExitStack() as undo:
      undo.enter_context(self._stack)
      for path in _paths(self.source):
        self._open(path)
      undo.pop_all()

  def _open(self, path: pathlib.Path) -> None:
    library = _library()
    try:
      file = self._stack.enter_context(library.safe_open(path, framework='np'))
      for name in file.keys():  # noqa: SIM118 (it is no dict)
        view = file.get_slice(name)
        if view.get_dtype() not in _DTYPES:
          raise UserError(f'{path} holds {name} as {view.get_dtype()}, and parameters are floating point.')
        self._file_of[name] = file
        self.shapes[name] = tuple(view.get_shape())
        self.dtypes.add(view.get_dtype())
    except (library.SafetensorError, OSError) as error:
      reason = str(error).strip().rstrip('.') or type(error).__name__
      raise UserError(f'{path} is cut short or no safetensors file ({reason}); get it again.') from error

  def read(self, name: str) -> np.ndarray:
    """A tensor as float32.

    Raises:
      UserError: not all of it is finite.
    """
    tensor = self._file_of[name].get_tensor(name).astype(np.float32, copy=False)
    if not np.isfinite(tensor).all():
      raise UserError(
        f'{self.source} has NaN or infinite values in {name}; its training diverged or the file is damaged, '
        f'use another.'
      )
    return tensor

  def __enter__(self) -> 'TensorFiles':
    return self

  def __exit__(self, *_) -> None:
    self._stack.close()


def write(folder: pathlib.Path, tensors: Mapping[str, np.ndarray], texts: Mapping[str, str]) -> None:
  """Writes `model.safetensors`, and beside it the files whose content is given by name.

  Raises:
    UserError: the folder holds something already.
  """
  from_numpy = _library('numpy')
  if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
    raise UserError(f'{folder} is there already and not empty; choose another folder.')
  folder.mkdir(parents=True, exist_ok=True)
  partial = folder / (FILE + '.partial')
  contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
  try:
    from_numpy.save_file(contiguous, partial, metadata={'format': 'pt'})  # as transformers and timm write
    partial.replace(folder / FILE)
  finally:
    partial.unlink(missing_ok=True)
  for name, text in texts.items():
    (folder / name).write_text(text, encoding='utf-8')


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """The object in a JSON file.

  Raises:
    UserError: it is none.
  """
  try:
    values = json.loads(path.read_text(encoding='utf-8'))
  except (ValueError, OSError) as error:
    raise UserError(f'{path} cannot be read as JSON ({error}); get the file again.') from error
  if not isinstance(values, dict):
    raise UserError(f'{path} holds a {type(values).__name__} and not a JSON object; get the file again.')
  return values


def _paths(source: pathlib.Path) -> list[pathlib.Path]:
  if source.is_file():
    return [source]
  if not source.is_dir():
    raise UserError(f'There is no folder or file {source}; check the path.')
  index = source / _INDEX
  if index.exists():
    shards = read_json(index).get('weight_map')
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
      raise UserError(f'{index} has no weight_map from tensors to files; get the folder again.')
    paths = [source / name for name in sorted(set(shards.values()))]
    for path in paths:
      if not path.is_file():
        raise UserError(f'{source} lacks {path.name}, which {_INDEX} names; get the folder again.')
    return paths
  if (source / FILE).is_file():
    return [source / FILE]
  if any(source.glob('pytorch_model*.bin')):
    raise UserError(
      f'{source} holds its tensors as pytorch_model.bin, a pickle, which could run code and is not read; '
      f'where PyTorch is installed, AutoModel.from_pretrained(folder).save_pretrained(another) of '
      f'transformers writes {FILE} (AutoModelForImageClassification, to keep the head).'
    )
  raise UserError(f'{source} has no {FILE}; check the path.')


def _library(module: str | None = None) -> Any:
  """safetensors, which only those need who read or write such files."""
  try:
    import safetensors
    import safetensors.numpy
  except ImportError:
    raise UserError(
      "Hugging Face's files need the package safetensors: pip install 'vit_jax[huggingface]'."
    ) from None
  return safetensors if module is None else getattr(safetensors, module)
