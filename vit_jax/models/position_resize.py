"""Resizing a table of positions to another grid of patches, by each of the methods in use.

Every method is linear and works along rows and columns apart, so it is two small matrices: the same for a
checkpoint's arrays on the host and for a model that is called with images of another size.
"""

import functools
from collections.abc import Callable
from typing import Literal

import numpy as np

# 'linear': aligned corners, as the original code. 'bilinear': half-pixel centres. 'bicubic': torch's
# (half-pixel centres, a = -0.75, edges repeated). With '_antialias': torch's and Pillow's (bicubic with a = -0.5;
# widened where it shrinks, cut off at the edges).
PositionResize = Literal['linear', 'bilinear', 'bilinear_antialias', 'bicubic', 'bicubic_antialias']


@functools.cache
def weights(method: PositionResize, old: int, new: int) -> np.ndarray:
  """float64 (new, old): each new cell along one axis as a weighted sum of the old ones."""
  return _WEIGHTS[method](old, new)


def resize(
  table: np.ndarray, old: tuple[int, int], new: tuple[int, int], method: PositionResize
) -> np.ndarray:
  """(old rows * columns, D) -> (new rows * columns, D), row by row: a table for another grid, computed in float64."""
  if old == new:
    return table
  rows, columns = (weights(method, o, n) for o, n in zip(old, new, strict=True))
  cells = table.reshape(*old, -1).astype(np.float64)
  cells = np.einsum('ih,jw,hwd->ijd', rows, columns, cells, optimize=True)
  return cells.reshape(-1, table.shape[-1]).astype(table.dtype)


def _aligned(old: int, new: int) -> np.ndarray:
  """(new, old): linear, the first and the last sample stay where they are."""
  return _hat(np.linspace(0, old - 1, new), old)


def _half_pixel(old: int, new: int) -> np.ndarray:
  """(new, old): linear, samples are the centres of pixels."""
  return _hat(np.clip(_centres(old, new), 0, old - 1), old)


def _hat(source: np.ndarray, old: int) -> np.ndarray:
  return np.maximum(0, 1 - np.abs(source[:, None] - np.arange(old)))


def _bicubic(old: int, new: int) -> np.ndarray:
  """(new, old): Keys' kernel with a = -0.75; beyond the edges the last sample is repeated."""
  source = _centres(old, new)
  first = np.floor(source).astype(int)
  weights = np.zeros((new, old))
  for tap in range(-1, 3):
    index = first + tap
    np.add.at(weights, (np.arange(new), np.clip(index, 0, old - 1)), _cubic(source - index, -0.75))
  return weights


def _bicubic_antialias(old: int, new: int) -> np.ndarray:
  """(new, old): Keys' kernel with a = -0.5, widened where it shrinks and cut off at the edges."""
  return _antialiased(lambda x: _cubic(x, -0.5), old, new)


def _bilinear_antialias(old: int, new: int) -> np.ndarray:
  """(new, old): a triangle, widened where it shrinks and cut off at the edges."""
  return _antialiased(lambda x: np.maximum(0, 1 - np.abs(x)), old, new)


def _antialiased(kernel: Callable[[np.ndarray], np.ndarray], old: int, new: int) -> np.ndarray:
  widen = max(old / new, 1.0)
  weights = kernel((_centres(old, new)[:, None] - np.arange(old)) / widen)
  return weights / weights.sum(axis=1, keepdims=True)


def _centres(old: int, new: int) -> np.ndarray:
  return (np.arange(new) + 0.5) * old / new - 0.5


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
  """'Cubic convolution interpolation for digital image processing' (Keys 1981), equation 4."""
  x = np.abs(x)
  near = ((a + 2) * x - (a + 3)) * x * x + 1
  far = a * (((x - 5) * x + 8) * x - 4)
  return np.where(x <= 1, near, np.where(x < 2, far, 0))


_WEIGHTS: dict[str, Callable[[int, int], np.ndarray]] = {
  'linear': _aligned,
  'bilinear': _half_pixel,
  'bilinear_antialias': _bilinear_antialias,
  'bicubic': _bicubic,
  'bicubic_antialias': _bicubic_antialias,
}
