"""Axial attention (paper, appendix D.6): self-attention along one axis of the grid of patches at a time.

Each block of the encoder becomes two, each with an MLP of its own: in the first a patch attends to those of its row, in
the second to those of its column. There is no class token and there are no registers, which would have no place on the
grid (the paper does not say what its model pools; ours takes the mean or attention pooling).
"""

from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.foundation.errors import UserError
from vit_jax.models import scanned_blocks
from vit_jax.models.base import Grid
from vit_jax.models.dropout import fold_in
from vit_jax.models.parts.pools import POOLS

if TYPE_CHECKING:
  from vit_jax.models.vit_config import ViTConfig

Axis = Literal['row', 'column']


class AxialBlock(nnx.Module):
  """A row block, then a column block, in the place of one block of the encoder."""

  def __init__(self, row: Any, column: Any, sharding: jax.sharding.NamedSharding | None):
    """`row` and `column` are blocks; the sharding, of the residual stream, is kept up between them."""
    self.row = row
    self.column = column
    self.sharding = sharding

  def __call__(
    self, z: jax.Array, drop_path_rate: jax.Array | float, keys: jax.Array | None, grid: Grid
  ) -> jax.Array:
    """(B, N, D) -> (B, N, D); the arguments are those of both blocks."""
    row_keys = None if keys is None else fold_in(keys, 0)
    column_keys = None if keys is None else fold_in(keys, 1)
    z = scanned_blocks.constrain(self.row(z, drop_path_rate, row_keys, grid), self.sharding)
    return self.column(z, drop_path_rate, column_keys, grid)

  def weights(self, z: jax.Array, grid: Grid) -> jax.Array:
    """(B, N, D) -> float32 (2, B, H, N, N): of the row block and of the column block."""
    between = self.row(z, 0.0, None, grid)
    return jnp.stack([self.row.weights(z, grid), self.column.weights(between, grid)])


def check(config: 'ViTConfig', path: str) -> None:
  """Raises UserError for axial attention with tokens that are in no row and no column, or with places that move."""
  if not config.axial:
    return
  if config.rotary_moves is not None:
    raise UserError(f'{path}.axial goes without {path}.rotary_moves; leave one of them out.')
  if POOLS[config.pool].reads_class_token:
    wrong, remedy = f'pool {config.pool!r}', "choose pool 'gap' or 'map'"
  elif config.class_token:
    wrong, remedy = 'class_token', 'leave it out'
  elif config.register_tokens:
    wrong, remedy = 'register_tokens', 'leave them out'
  else:
    return
  raise UserError(
    f'{path}.axial attends along rows and columns of patches, and {path}.{wrong} brings a token '
    f'that is in none; {remedy}.'
  )


def line(grid: Grid, axis: Axis) -> Grid:
  """The grid of one row or column, in which its tokens attend to each other."""
  rows, columns = grid
  return (1, columns) if axis == 'row' else (rows, 1)


def to_lines(x: jax.Array, grid: Grid, axis: Axis) -> jax.Array:
  """(B, N, D), row by row -> (B * lines, length, D): each row or column of the grid as an example of its own."""
  x = x.reshape(x.shape[0], *grid, -1)
  if axis == 'column':
    x = x.swapaxes(1, 2)
  return x.reshape(-1, *x.shape[2:])


def from_lines(x: jax.Array, grid: Grid, axis: Axis) -> jax.Array:
  """(B * lines, length, D) -> (B, N, D): the inverse of `to_lines`."""
  rows, columns = grid
  if axis == 'column':
    x = x.reshape(-1, columns, rows, x.shape[-1]).swapaxes(1, 2)
  return x.reshape(-1, rows * columns, x.shape[-1])


def line_keys(keys: jax.Array | None, grid: Grid, axis: Axis) -> jax.Array | None:
  """(B,) typed PRNG keys -> (B * lines,): a key for each line, split from its example's; None stays None."""
  if keys is None:
    return None
  lines = grid[0] if axis == 'row' else grid[1]
  return jax.vmap(lambda key: jax.random.split(key, lines))(keys).reshape(-1)


def over_all_tokens(weights: jax.Array, grid: Grid, axis: Axis) -> jax.Array:
  """(B * lines, H, length, length) -> (B, H, N, N): weights of all pairs of tokens, zero between lines."""
  rows, columns = grid
  heads = weights.shape[1]
  if axis == 'row':
    lines, pattern = rows, 'brhij,rs->bhrisj'
  else:
    lines, pattern = columns, 'bchij,cd->bhicjd'
  weights = weights.reshape(-1, lines, *weights.shape[1:])
  spread = jnp.einsum(pattern, weights, jnp.eye(lines, dtype=weights.dtype))
  return spread.reshape(-1, heads, rows * columns, rows * columns)
