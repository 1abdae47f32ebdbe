"""Resizing a table of positions to another grid of patches, by each of the methods in use.

Every method is linear and works along rows and columns apart, so it is two small matrices: the same for a
checkpoint's arrays on the host and for a model that is called with images of another size.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

# 'linear': aligned corners, as the original code. 'bilinear': half-pixel centres. 'bicubic': torch's
# (half-pixel centres, a = -0.75, edges repeated). With '_antialias': torch's and Pillow's (bicubic with a = -0.5;
# widened where it shrinks, cut off at the edges). 'geometric': of relative positions, as BEiT's fine-tuning.
PositionResize = Literal[
  'linear', 'bilinear', 'bilinear_antialias', 'bicubic', 'bicubic_antialias', 'geometric'
]


@functools.cache
def weights(method: PositionResize, old: int, new: int) -> np.ndarray:
  """float64 (new, old): each new cell along one axis as a weighted sum of the old ones."""
  return weights_at(method, old, np.asarray(float(new)), np.arange(float(new))[:, None])


def weights_at(method: PositionResize, old: int, new: Any, places: Any) -> Any:
  """(..., old): the weights of the cells at `places` (..., 1), counted from 0, of an axis of `new` (..., 1) cells.

  The last two are floats, arrays of NumPy or of JAX, whose shapes go together.
  """
  return _WEIGHTS[method](old, new, places)


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


def _aligned(old: int, new: Any, places: Any) -> Any:
  """Linear, the first and the last sample stay where they are."""
  last = _numpy(new).maximum(new - 1, 1)
  return _hat((places * (old - 1) - np.arange(old) * last) / last)


def _half_pixel(old: int, new: Any, places: Any) -> Any:
  """Linear, samples are the centres of pixels; beyond the edges the last sample is repeated."""
  cells = np.arange(old)
  return _hat(_numpy(places).clip(_distances(old, new, places, cells), -cells, old - 1 - cells))


def _hat(x: Any) -> Any:
  return _numpy(x).maximum(0, 1 - abs(x))


def _bicubic(old: int, new: Any, places: Any) -> Any:
  """Keys' kernel with a = -0.75; beyond the edges the last sample is repeated."""
  numpy, result = _numpy(places), 0
  first = numpy.floor(_distances(old, new, places, 0))
  for tap in range(-1, 3):
    index = first + tap
    own = numpy.clip(index, 0, old - 1) == np.arange(old)
    result = result + own * _cubic(_distances(old, new, places, index), -0.75)
  return result


def _antialiased(kernel: Callable[[Any], Any], old: int, new: Any, places: Any) -> Any:
  """A kernel, widened where it shrinks and cut off at the edges."""
  widen = _numpy(new).maximum(old / new, 1.0)
  weights = kernel(_distances(old, new, places, np.arange(old)) / widen)
  return weights / weights.sum(axis=-1, keepdims=True)


def _geometric(old: int, new: Any, places: Any) -> Any:
  """Linear between old offsets of two patches: the nearest stay at 1, and they spread to the new edge geometrically."""
  low, high, ratio = 1.01, 1.5, 1.0
  while high - low > 1e-6:
    ratio = (low + high) / 2
    is_beyond = (ratio ** (old // 2) - 1) / (ratio - 1) > new // 2
    low, high = (low, ratio) if is_beyond else (ratio, high)
  offsets = np.cumsum(ratio ** np.arange(old // 2))
  known = np.concatenate([-offsets[::-1], [0], offsets])
  return np.stack([np.interp(places[..., 0] - new // 2, known, cell) for cell in np.eye(old)], axis=-1)


def _distances(old: int, new: Any, places: Any, cells: Any) -> Any:
  """From the centres of old cells to those of `places`, in old cells; float32 rounds the quotient alone."""
  return ((2 * places + 1) * old - (2 * cells + 1) * new) / (2 * new)


def _cubic(x: Any, a: float) -> Any:
  """'Cubic convolution interpolation for digital image processing' (Keys 1981), equation 4, in its factors."""
  numpy, x = _numpy(x), abs(x)
  near = (x - 1) * (((a + 2) * x - 1) * x - 1)
  far = a * (x - 1) * (x - 2) ** 2
  return numpy.where(x <= 1, near, numpy.where(x < 2, far, 0))


def _numpy(array: Any) -> Any:
  """NumPy, or JAX's, as the array is one of theirs."""
  return array.__array_namespace__()


_WEIGHTS: dict[str, Callable[[int, Any, Any], Any]] = {
  'linear': _aligned,
  'bilinear': _half_pixel,
  'bilinear_antialias': functools.partial(_antialiased, _hat),
  'bicubic': _bicubic,
  'bicubic_antialias': functools.partial(_antialiased, functools.partial(_cubic, a=-0.5)),
  'geometric': _geometric,
}
