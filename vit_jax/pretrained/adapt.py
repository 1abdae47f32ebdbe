"""A checkpoint's parameters for a model of another head, resolution or number of channels."""

import dataclasses
import math
import re
from typing import Any

import numpy as np

from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models import flexible_patches, position_resize
from vit_jax.models.base import Architecture, FirstLayer
from vit_jax.models.capabilities import PositionTable
from vit_jax.models.position_resize import PositionResize
from vit_jax.pretrained.base import Pretrained
from vit_jax.pretrained.config import InitConfig

# Of a masked autoencoder, of self-distillation, of compared views, and of two towers: other models never have these.
_OF_PRETRAINING = (
  'decoder/',
  'projection/',
  'patch_projection/',
  'predictor/',
  'centre/',
  'text_tower/',
  'logit_',
)


@dataclasses.dataclass(frozen=True)
class Report:
  """Every tensor of the checkpoint and of the model, by its path and what became of it."""

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
  pretrained: Pretrained, architecture: Architecture, init: InitConfig
) -> tuple[dict[str, np.ndarray], Report]:
  """The checkpoint's arrays in the shapes of another architecture.

  A kernel for another number of channels: from n to 1, the sum over the channels, which is the same for gray images
  that are normalised alike in all of them; from 1 to n, an n-th of it for each. Tables of positions are resized.

  Args:
    pretrained: the checkpoint; its arrays are given on where they fit, not copied.
    architecture: the network to fill.
    init: what may begin anew, what may be left out, and how positions are resized.

  Returns:
    path -> array of the parameters that are loaded or resized; the other parameters begin anew.

  Raises:
    UserError: a tensor on either side without a counterpart that fits, which `init` does not name.
  """
  source, shapes = pytrees.flatten(pretrained.params), architecture.shapes()
  arrays: dict[str, np.ndarray] = {}
  loaded, resized, reinitialised, ignored = [], [], [], []
  for path, leaf in shapes.items():
    if begins_anew(path, init):
      reinitialised.append(_with_shape(path, leaf))
      if path in source and source[path].size:
        ignored.append(_with_shape(path, source[path]))
      continue
    if path not in source:
      raise UserError(
        f'The checkpoint has no {path}, which the model needs; change config.model, or name it in '
        f'config.init.reinitialise.'
      )
    arrays[path], how = _fitted(path, source[path], leaf.shape, pretrained, architecture, init)
    if how:
      resized.append(f'{path} {source[path].shape} → {tuple(leaf.shape)} ({how})')
    else:
      loaded.append(path)
  for path in sorted(source.keys() - shapes.keys()):
    is_left_out = path.startswith(_OF_PRETRAINING) or _matches_any(path, init.ignore)
    if not is_left_out and not _is_fixed(path, source[path], pretrained, architecture):
      remedy = 'change config.model'
      if path == 'position_embedding':
        remedy = "set config.model.position='learned', as which it is resized"
      raise UserError(
        f'The model has no place for {_with_shape(path, source[path])} of the checkpoint; {remedy}, or name it in '
        f'config.init.ignore.'
      )
    ignored.append(_with_shape(path, source[path]))
  return arrays, Report(tuple(loaded), tuple(resized), tuple(reinitialised), tuple(ignored))


def _is_fixed(path: str, array: np.ndarray, pretrained: Pretrained, architecture: Architecture) -> bool:
  """Whether a table of the checkpoint holds the positions that the model computes, as formats read fixed ones."""
  model = architecture.model
  if path != 'position_embedding':
    return False
  grid = model.grid(architecture.image_size)
  if grid != model.grid(pretrained.architecture.image_size):
    return False  # at another size they are those of the checkpoint resized, wherever a model is loaded
  fixed = model.fixed_positions(grid)
  return fixed is not None and fixed.shape == array.shape and bool(np.allclose(fixed, array, atol=1e-6))


def begins_anew(path: str, init: InitConfig) -> bool:
  """Whether `init` says so of a parameter; the distillation token's head does with the other."""
  of_head = path.removeprefix('distillation_') if path.startswith('distillation_head/') else path
  return _matches_any(path, init.reinitialise) or _matches_any(of_head, init.reinitialise)


def _fitted(
  path: str,
  array: np.ndarray,
  shape: tuple[int, ...],
  pretrained: Pretrained,
  architecture: Architecture,
  init: InitConfig,
) -> tuple[np.ndarray, str]:
  """The checkpoint's array in the model's shape, and how it was changed ('' if it was not)."""
  theirs, ours = pretrained.architecture, architecture
  old, new = (each.model.position_table(path) for each in (theirs, ours))
  if old is not None and new is not None:
    method = init.position_resize or old.resize
    if method == 'geometric' and len(old.axes) != 2:
      raise UserError(
        f"position_resize 'geometric' is for relative positions, not for {path}; choose another."
      )
    fitted = _fitted_positions(array, shape, old, new, theirs.image_size, ours.image_size, method)
    if fitted is not None:
      return fitted
  if array.shape == tuple(shape):
    return array, ''
  if path == ours.model.first_layer.kernel and array.shape[:2] + array.shape[3:] == shape[:2] + shape[3:]:
    return _with_channels(array, shape[2])
  if path == FirstLayer().kernel and array.shape[2:] == tuple(shape[2:]):
    return _with_patches(array, shape[0]), 'pseudo-inverse resize'
  hint = ''
  if not ours.model.any_image_size and theirs.image_size != ours.image_size:
    hint = f'{ours.model.title} works at one resolution only: '
  raise UserError(
    f'{path} is {array.shape} in the checkpoint and {tuple(shape)} in the model; {hint}change config.model or '
    f'config.data, or name it in config.init.reinitialise.'
  )


def _fitted_positions(
  array: np.ndarray,
  shape: tuple[int, ...],
  old: PositionTable,
  new: PositionTable,
  old_size: tuple[int, int],
  new_size: tuple[int, int],
  method: PositionResize,
) -> tuple[np.ndarray, str] | None:
  """A table of positions for another grid, and how it was changed.

  None: the shapes differ in more than that. Rows and columns are in proportion to the images' height and width
  (`old_size`, `new_size`).
  """
  if old.axes != new.axes or len(array.shape) != len(shape):
    return None
  others = [axis for axis in range(array.ndim) if axis not in old.axes]
  if any(array.shape[axis] != shape[axis] for axis in others):
    return None
  cells = np.moveaxis(array, old.axes, range(len(old.axes)))
  rest = cells.shape[len(old.axes) :]
  if len(old.axes) == 2:
    old_grid, new_grid = cells.shape[:2], (shape[new.axes[0]], shape[new.axes[1]])
    extra = np.zeros((0, math.prod(rest)), array.dtype)
    table = cells.reshape(math.prod(old_grid), -1)
  else:
    flat = cells.reshape(len(cells), -1)
    extra, table = flat[: old.extra], flat[old.extra :]
    new_cells = shape[new.axes[0]] - new.extra
    old_grid = (len(table), 1) if old.line else _grid(old_size, len(table))
    new_grid = (new_cells, 1) if new.line else _grid(new_size, new_cells)
  if old_grid == new_grid and old.extra == new.extra:
    return array, ''
  table = position_resize.resize(table, old_grid, new_grid, method)
  changes = []
  if old_grid != new_grid:
    changes.append(f'{method}, {old_grid[0]} × {old_grid[1]} → {new_grid[0]} × {new_grid[1]}')
  if old.extra > new.extra:
    extra = extra[: new.extra]
    changes.append('class token dropped')
  elif old.extra < new.extra:  # its position is zero
    extra = np.zeros((new.extra, table.shape[1]), array.dtype)
    changes.append('class token added')
  if len(new.axes) == 2:
    cells = table.reshape(*new_grid, *rest)
  else:
    cells = np.concatenate([extra, table]).reshape(-1, *rest)
  return np.moveaxis(cells, range(len(new.axes)), new.axes), ', '.join(changes)


def _grid(image_size: tuple[int, int], cells: int) -> tuple[int, int]:
  """Rows and columns of so many square patches of an image, at whose edges less than a patch may be left over."""
  height, width = image_size
  side = math.sqrt(height * width / cells)
  for pixels in range(int(side), 0, -1):
    if height // pixels * (width // pixels) == cells:
      return height // pixels, width // pixels
  return round(height / side), round(width / side)  # of feature maps whose edges are padded


def _with_channels(kernel: np.ndarray, channels: int) -> tuple[np.ndarray, str]:
  """(P, P, C, D) -> (P, P, channels, D), and how it was changed."""
  summed = kernel.sum(axis=2, keepdims=True, dtype=np.float64)
  spread = np.repeat(summed / channels, channels, axis=2).astype(kernel.dtype)
  how = f'summed over {kernel.shape[2]} channels'
  return spread, f'{how}, spread over {channels}' if channels > 1 else how


def _with_patches(kernel: np.ndarray, size: int) -> np.ndarray:
  """(P, P, C, D) -> (size, size, C, D), as models/flexible_patches.py says."""
  matrix = flexible_patches.resize_matrix(len(kernel), size)
  resized = np.einsum('ih,jw,hwcd->ijcd', matrix, matrix, kernel.astype(np.float64), optimize=True)
  return resized.astype(kernel.dtype)


def _matches_any(path: str, patterns: tuple[str, ...]) -> bool:
  return any(re.search(pattern, path) for pattern in patterns)


def _with_shape(path: str, leaf: Any) -> str:
  return f'{path} {tuple(leaf.shape)}'
