"""Resizing a position embedding to another grid of patches."""

from collections.abc import Callable

import numpy as np


def resize(
  embedding: np.ndarray,
  old: tuple[int, int],
  new: tuple[int, int],
  *,
  old_class_token: bool,
  new_class_token: bool,
  method: str,
) -> np.ndarray:
  """The position embedding of another grid.

  Args:
    embedding: (1, N, D); the first position is the class token's, if there is one.
    old: rows and columns of its grid.
    new: of the grid wanted.
    old_class_token: whether `embedding` has a position of the class token.
    new_class_token: whether the result has one: copied, or zero where there was none.
    method: 'linear' (aligned corners, as the original), 'bilinear' (half-pixel centres), 'bicubic'
      (torch's) or 'bicubic_antialias' (torch's and Pillow's); all but the last without antialiasing.

  Returns:
    (1, N', D), of the same dtype.
  """
  width = embedding.shape[-1]
  first, patches = embedding[0, :old_class_token], embedding[0, old_class_token:]
  if old != new:
    rows, columns = (_WEIGHTS[method](o, n) for o, n in zip(old, new, strict=True))
    grid = patches.reshape(*old, width).astype(np.float64)
    grid = np.einsum('ih,jw,hwd->ijd', rows, columns, grid, optimize=True)
    patches = grid.reshape(-1, width).astype(embedding.dtype)
  if new_class_token and not old_class_token:
    first = np.zeros((1, width), embedding.dtype)
  return np.concatenate([first[:new_class_token], patches])[None]


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
  widen = max(old / new, 1.0)
  weights = _cubic((_centres(old, new)[:, None] - np.arange(old)) / widen, -0.5)
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
  'bicubic': _bicubic,
  'bicubic_antialias': _bicubic_antialias,
}
