"""A checkpoint's parameters for a model of another head, resolution or number of channels."""

import dataclasses
import math
import re
from typing import Any

import numpy as np

from vit_jax import pytrees
from vit_jax.errors import UserError
from vit_jax.pretrained import position_resize
from vit_jax.pretrained.base import Portable
from vit_jax.pretrained.config import InitConfig

_POSITIONS, _CLASS_TOKEN = 'position_embedding', 'class_token'
# Other tables of positions, which say their grid by their shape.
_AXES = re.compile(r'position_embedding/(rows|columns)')  # (1, rows or columns, D / 2)
# (L, size, rows, columns)
_OFFSETS = re.compile(r'blocks/((row|column)/)?attention/position/(bias|keys)/patches')
# What sees the image, of a hybrid, a ResNet, and the others.
_FIRST_KERNELS = ('stem/root/kernel', 'root/kernel', 'patch_embedding/kernel')


@dataclasses.dataclass(frozen=True)
class Report:
  """What became of every tensor, of the checkpoint and of the model; each by its path."""

  loaded: tuple[str, ...]
  resized: tuple[str, ...]  # with the shapes before and after, and how
  reinitialised: tuple[str, ...]  # of the model: they keep their initial value
  ignored: tuple[str, ...]  # of the checkpoint

  def changes(self) -> bool:
    """Whether anything was not loaded as it is."""
    return bool(self.resized or self.reinitialised or self.ignored)

  def __str__(self) -> str:
    lines = [f'loaded: {len(self.loaded)} tensors']
    for name in ('resized', 'reinitialised', 'ignored'):
      if values := getattr(self, name):
        lines.append(f'{name}: {", ".join(values)}')
    return '\n'.join(lines)


def adapt(
  portable: Portable, shapes: dict[str, Any], image_size: tuple[int, int], init: InitConfig
) -> tuple[dict[str, np.ndarray], Report]:
  """The checkpoint's arrays in the model's shapes.

  A kernel for another number of channels: from n to 1, the sum over the channels, which is the same for
  gray images; from 1 to n, an n-th of it for each.

  Args:
    portable: the checkpoint; its arrays are given on where they fit, not copied.
    shapes: path -> shape (an array, or its ShapeDtypeStruct) of each of the model's parameters.
    image_size: height, width of the model.
    init: what may begin anew, what may be left out, and how positions are resized.

  Returns:
    path -> array of what is loaded or resized; the other parameters begin anew.

  Raises:
    UserError: a tensor on either side without a counterpart that fits, which `init` does not name.
  """
  source = pytrees.flatten(portable.params)
  arrays, resized, reinitialised, ignored = {}, [], [], []
  for path, leaf in shapes.items():
    if _named(path, init.reinitialise):
      reinitialised.append(_with_shape(path, leaf))
      if path in source:
        ignored.append(_with_shape(path, source[path]))
      continue
    if path not in source:
      raise UserError(
        f'The checkpoint has no {path}, which the model needs; change config.model, or name it in '
        f'config.init.reinitialise.'
      )
    arrays[path], how = _fitted(path, source, shapes, portable, image_size, init)
    if how:
      resized.append(f'{path} {source[path].shape} → {tuple(leaf.shape)} ({how})')
  for path in sorted(source.keys() - shapes.keys()):
    if not _named(path, init.ignore):
      raise UserError(
        f'The model has no place for {_with_shape(path, source[path])} of the checkpoint; change '
        f'config.model, or name it in config.init.ignore.'
      )
    ignored.append(_with_shape(path, source[path]))
  changed = {text.split(' ')[0] for text in resized}
  loaded = tuple(path for path in arrays if path not in changed)
  return arrays, Report(loaded, tuple(resized), tuple(reinitialised), tuple(ignored))


def _fitted(
  path: str,
  source: dict[str, np.ndarray],
  shapes: dict[str, Any],
  portable: Portable,
  image_size: tuple[int, int],
  init: InitConfig,
) -> tuple[np.ndarray, str]:
  """The checkpoint's array in the model's shape, and what was done to it ('' if nothing)."""
  array, shape = source[path], tuple(shapes[path].shape)
  if path == _POSITIONS and array.shape[-1] == shape[-1]:
    return _positions(source, shapes, portable, image_size, init)
  if array.shape == shape:
    return array, ''
  method = init.position_resize or portable.position_resize
  if _AXES.fullmatch(path) and array.shape[2] == shape[2]:
    return _resized(array, (array.shape[1], 1), (shape[1], 1), method)
  if _OFFSETS.fullmatch(path) and array.shape[:2] == shape[:2]:
    cells = np.moveaxis(array, (2, 3), (0, 1)).reshape(1, -1, math.prod(shape[:2]))
    cells, how = _resized(cells, array.shape[2:], shape[2:], method)
    return np.moveaxis(cells.reshape(*shape[2:], *shape[:2]), (0, 1), (2, 3)), how
  first = next((name for name in _FIRST_KERNELS if name in source), None)
  if path == first and array.shape[:2] + array.shape[3:] == shape[:2] + shape[3:]:
    return _channels(array, shape[2])
  hint = ''
  if '/token_mlp/' in path:
    hint = 'an MLP-Mixer works at one resolution only: '
  raise UserError(
    f'{path} is {array.shape} in the checkpoint and {shape} in the model; {hint}change config.model or '
    f'config.data, or name it in config.init.reinitialise.'
  )


def _positions(
  source: dict[str, np.ndarray],
  shapes: dict[str, Any],
  portable: Portable,
  image_size: tuple[int, int],
  init: InitConfig,
) -> tuple[np.ndarray, str]:
  array, shape = source[_POSITIONS], shapes[_POSITIONS].shape
  had, has = _CLASS_TOKEN in source, _CLASS_TOKEN in shapes
  old = _grid(portable.image_size, array.shape[1] - had)
  new = _grid(image_size, shape[1] - has)
  if (old, had) == (new, has):
    return array, ''
  method = init.position_resize or portable.position_resize
  array = position_resize.resize(array, old, new, old_class_token=had, new_class_token=has, method=method)
  done = [] if old == new else [f'{method}, {old[0]} × {old[1]} → {new[0]} × {new[1]}']
  if had != has:
    done.append('class token added' if has else 'class token dropped')
  return array, ', '.join(done)


def _resized(
  table: np.ndarray, old: tuple[int, int], new: tuple[int, int], method: str
) -> tuple[np.ndarray, str]:
  """(1, rows * columns, D) of another grid, and what was done."""
  table = position_resize.resize(table, old, new, old_class_token=False, new_class_token=False, method=method)
  return table, f'{method}, {old[0]} × {old[1]} → {new[0]} × {new[1]}'


def _grid(image_size: tuple[int, int], tokens: int) -> tuple[int, int]:
  """Rows and columns of so many patches, which are squares."""
  side = math.sqrt(image_size[0] * image_size[1] / tokens)
  return round(image_size[0] / side), round(image_size[1] / side)


def _channels(kernel: np.ndarray, channels: int) -> tuple[np.ndarray, str]:
  """(P, P, C, D) -> (P, P, channels, D)."""
  summed = kernel.sum(axis=2, keepdims=True, dtype=np.float64)
  spread = np.repeat(summed / channels, channels, axis=2).astype(kernel.dtype)
  return spread, f'summed over {kernel.shape[2]} channels' + (f', spread over {channels}' * (channels > 1))


def _named(path: str, patterns: tuple[str, ...]) -> bool:
  return any(re.search(pattern, path) for pattern in patterns)


def _with_shape(path: str, leaf: Any) -> str:
  return f'{path} {tuple(leaf.shape)}'
