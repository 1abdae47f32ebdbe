"""Axial attention (paper, appendix D.6): self-attention along one axis of the grid of patches at a time.

Each block of the encoder becomes two, each with an MLP of its own: in the first a patch attends to those of
its row, in the second to those of its column. All tokens have a place on the grid: there is no class token
and there are no registers (the paper does not say what its model pools; ours takes the mean or attention
pooling).
"""

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models import stack
from vit_jax.models.dropout import fold_in
from vit_jax.models.position import Grid


class AxialBlock(nnx.Module):
  """A row block, then a column block, in the place of one block of the encoder."""

  def __init__(self, row: nnx.Module, column: nnx.Module, sharding: jax.sharding.Sharding | None):
    """
    Args:
      row: a block whose attention is along rows.
      column: one whose attention is along columns.
      sharding: of the residual stream, kept up between the two.
    """
    self.row = row
    self.column = column
    self.sharding = sharding

  def __call__(self, z: jax.Array, skip_rate: jax.Array, keys: jax.Array | None, grid: Grid) -> jax.Array:
    """(B, N, D) -> (B, N, D); the arguments are those of both blocks."""
    row_keys, column_keys = (None if keys is None else fold_in(keys, number) for number in range(2))
    z = stack.constrain(self.row(z, skip_rate, row_keys, grid), self.sharding)
    return self.column(z, skip_rate, column_keys, grid)

  def weights(self, z: jax.Array, grid: Grid) -> jax.Array:
    """(B, N, D) -> float32 (2, B, H, N, N): of the row block and of the column block."""
    between = self.row(z, 0.0, None, grid)
    return jnp.stack([self.row.weights(z, grid), self.column.weights(between, grid)])


def line(grid: Grid, axis: str) -> Grid:
  """The grid of one row or column, which is what the positions in its attention are of."""
  rows, columns = grid
  return (1, columns) if axis == 'row' else (rows, 1)


def to_lines(x: jax.Array, grid: Grid, axis: str) -> jax.Array:
  """(B, N, D) -> (B * lines, length, D): the rows or the columns as examples of their own.

  Args:
    x: tokens, row by row.
    grid: rows and columns.
    axis: 'row' or 'column'.
  """
  x = x.reshape(len(x), *grid, -1)
  if axis == 'column':
    x = x.swapaxes(1, 2)
  return x.reshape(-1, *x.shape[2:])


def from_lines(x: jax.Array, grid: Grid, axis: str) -> jax.Array:
  """(B * lines, length, D) -> (B, N, D): what `to_lines` took apart."""
  rows, columns = grid
  if axis == 'column':
    x = x.reshape(-1, columns, rows, x.shape[-1]).swapaxes(1, 2)
  return x.reshape(-1, rows * columns, x.shape[-1])


def line_keys(keys: jax.Array | None, grid: Grid, axis: str) -> jax.Array | None:
  """(B,) typed PRNG keys -> (B * lines,), a line's own being made from its example's; or None."""
  if keys is None:
    return None
  lines = grid[axis == 'column']
  return jax.vmap(lambda key: jax.random.split(key, lines))(keys).reshape(-1)


def over_all_tokens(weights: jax.Array, grid: Grid, axis: str) -> jax.Array:
  """(B * lines, H, length, length) -> (B, H, N, N): the weights of pairs of tokens, zero across lines."""
  rows, columns = grid
  heads = weights.shape[1]
  if axis == 'row':
    lines, pattern = rows, 'brhij,rs->bhrisj'
  else:
    lines, pattern = columns, 'bchij,cd->bhicjd'
  weights = weights.reshape(-1, lines, *weights.shape[1:])
  spread = jnp.einsum(pattern, weights, jnp.eye(lines, dtype=weights.dtype))
  return spread.reshape(-1, heads, rows * columns, rows * columns)
