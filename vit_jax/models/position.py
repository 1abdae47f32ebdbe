"""Position embeddings: fixed ones, and learned or fixed ones of another grid of patches."""

import jax
import numpy as np

from vit_jax.errors import UserError


def sincos2d(grid: tuple[int, int], width: int, *, class_token: bool = False) -> np.ndarray:
  """Sines and cosines of each patch's column and row, as MoCo v3 (arXiv 2104.02057) fixes them.

  Args:
    grid: rows, columns.
    width: D.
    class_token: whether it comes first; its position is zero.

  Returns:
    float32 (1, N, D): of each patch the sines and cosines of its column times D / 4 frequencies from 1 to
    1 / 10,000, then those of its row.

  Raises:
    UserError: a width that four does not divide.
  """
  if width % 4:
    raise UserError(
      f"config.model.position is 'sincos2d', and config.model.width {width} does not divide by 4; change it."
    )
  frequencies = 10_000.0 ** -(np.arange(width // 4) / max(width // 4 - 1, 1))
  rows, columns = (axis.reshape(-1, 1) * frequencies for axis in np.mgrid[: grid[0], : grid[1]])
  waves = [np.sin(columns), np.cos(columns), np.sin(rows), np.cos(rows)]
  patches = np.concatenate(waves, axis=1, dtype=np.float32)
  return np.concatenate([np.zeros((int(class_token), width), np.float32), patches])[None]


def resize(embedding: jax.Array, old: tuple[int, int], new: tuple[int, int]) -> jax.Array:
  """(1, rows * columns, D) of another grid: bilinear between the centres of patches."""
  width = embedding.shape[-1]
  cells = jax.image.resize(embedding.reshape(*old, width), (*new, width), 'linear', antialias=False)
  return cells.reshape(1, -1, width)
