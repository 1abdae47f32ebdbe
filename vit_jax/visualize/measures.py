"""The numbers behind the pictures: principal components, similarities, distances, rollout.

'The paper' is arXiv 2010.11929. The N tokens are those without a place in the image (class token, registers),
then the P = rows * columns patches, row by row.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import linalg

from vit_jax.models.base import Grid

_TINY = np.finfo(np.float64).tiny  # the smallest divisor


def principal_filters(kernel: np.ndarray, count: int = 28) -> tuple[np.ndarray, np.ndarray]:
  """The principal components of D filters (height, width, C, D) (the paper's figure 7, left).

  Returns:
    (count, height, width, C), of length 1, the largest number of each positive; at most D, and height * width * C.
    (count,) their shares in the filters' variance.
  """
  filters = np.asarray(kernel, np.float64).reshape(-1, kernel.shape[-1]).T
  centred = filters - filters.mean(axis=0)
  components, squares = _principal(centred, count)
  return components.reshape(-1, *kernel.shape[:3]), squares / max((centred**2).sum(), _TINY)


def position_similarity(positions: np.ndarray, grid: Grid) -> np.ndarray:
  """Cosine similarity of each patch's position embedding to those of all (the paper's figure 7, centre).

  Of positions (N, D) it is (rows, columns, rows, columns).
  """
  patches = np.asarray(positions, np.float64)[-grid[0] * grid[1] :]
  lengths = np.linalg.norm(patches, axis=1, keepdims=True)
  unit = patches / np.maximum(lengths, _TINY)
  return (unit @ unit.T).reshape(*grid, *grid)


def patch_distances(grid: Grid, image_size: tuple[int, int]) -> np.ndarray:
  """float64 (P, P): pixels between the centres of two patches of an image of that height and width."""
  sides = [size / cells for size, cells in zip(image_size, grid, strict=True)]
  centres = np.stack(np.meshgrid(*(side * np.arange(n) for side, n in zip(sides, grid)), indexing='ij'), -1)
  centres = centres.reshape(-1, 2)
  return np.linalg.norm(centres[:, None] - centres[None], axis=-1)


def attention_distances(weights: jax.Array, grid: Grid, image_size: tuple[int, int]) -> jax.Array:
  """How far heads look, in pixels (the paper's figures 7, right, and 11; appendix D.7): (L, H, N, N) -> (L, H).

  The mean over all patches, as queries, of the distance to all patches, weighted by attention. Tokens without
  a place take no part: a patch's attention to patches is scaled to sum to one.
  """
  patches = grid[0] * grid[1]
  weights = weights[..., -patches:, -patches:]
  far = jnp.einsum('lhqn,qn->lhq', weights, jnp.asarray(patch_distances(grid, image_size), weights.dtype))
  return (far / jnp.maximum(weights.sum(axis=-1), jnp.finfo(weights.dtype).tiny)).mean(axis=-1)


def rollout(weights: jax.Array) -> jax.Array:
  """How much each token after the last block draws on each token before the first (Attention Rollout).

  Abnar & Zuidema, arXiv 2005.00928, section 3: in each block the mean of the heads plus the identity, for the
  residual connection, scaled so that rows sum to one; the product of all blocks. So are the paper's figures 6
  and 14 (appendix D.8). (L, H, N, N) -> (N, N), whose row i is of token i behind the last block, and sums to one.
  """
  identity = jnp.eye(weights.shape[-1], dtype=weights.dtype)

  def through(product: jax.Array, block: jax.Array) -> tuple[jax.Array, None]:
    mixed = block.mean(axis=0) + identity
    mixed /= mixed.sum(axis=-1, keepdims=True)
    return jnp.matmul(mixed, product, precision='highest'), None

  return jax.lax.scan(through, identity, weights)[0]


def attention_from(weights: jax.Array | np.ndarray, grid: Grid, *, class_token: bool) -> Any:
  """The attention to each patch of the class token, which comes first, or the mean over all patches.

  (..., N, N) -> (..., rows, columns).
  """
  patches = grid[0] * grid[1]
  query = weights[..., 0, :] if class_token else weights[..., -patches:, :].mean(axis=-2)
  return query[..., -patches:].reshape(*weights.shape[:-2], *grid)


def token_colours(tokens: np.ndarray, before: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
  """The first three principal components of an image's tokens (rows, columns, D) as red, green and blue.

  `before` are the components of the same places in the block before. The sign of a principal component means nothing,
  and is chosen to agree with these.

  Returns:
    (rows, columns, 3) in 0 … 1; each component's 2nd to 98th percentile fills the range.
    (rows, columns, 3) the components themselves.
  """
  rows, columns, width = tokens.shape
  flat = np.asarray(tokens, np.float64).reshape(-1, width)
  components = principal_components(flat, 3)
  if before is not None:
    components *= np.where((components * before.reshape(-1, 3)).sum(axis=0) < 0, -1, 1)
  colours = as_colours(components, np.abs(flat).max(initial=0))
  return colours.reshape(rows, columns, 3), components.reshape(rows, columns, 3)


def principal_components(points: np.ndarray, count: int) -> np.ndarray:
  """(n, D) -> (n, count): the first principal components of n points; zeros where there are not so many."""
  centred = points - points.mean(axis=0)
  directions, _ = _principal(centred, count)
  components = np.zeros((len(points), count))
  components[:, : len(directions)] = centred @ directions.T
  return components


def as_colours(components: np.ndarray, largest: float) -> np.ndarray:
  """(n, 3) -> (n, 3) in 0 … 1: each component's 2nd to 98th percentile fills the range.

  A component that is small beside the `largest` number of the points tells nothing apart and is 0.5.
  """
  low, high = np.percentile(components, (2, 98), axis=0)
  colours = np.clip((components - low) / np.maximum(high - low, _TINY), 0, 1)
  colours[:, high - low <= 1e-9 * largest] = 0.5
  return colours


def _principal(centred: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
  """The first right singular vectors, (count, m) of (n, m) of mean zero, and the squares of their singular values.

  Each is turned so that its largest number is positive; there are at most min(n, m).
  """
  wide = centred.shape[0] < centred.shape[1]
  product = centred @ centred.T if wide else centred.T @ centred
  size = len(product)
  squares, vectors = linalg.eigh(product, subset_by_index=(size - min(count, size), size - 1))
  directions = (centred.T @ vectors if wide else vectors).T[::-1]
  directions /= np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), _TINY)
  largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1)
  return directions * np.where(largest < 0, -1, 1), np.maximum(squares[::-1], 0)
