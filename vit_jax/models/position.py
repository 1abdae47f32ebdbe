"""Positions of patches: embeddings added to the tokens, and what attention knows of positions.

A grid is (rows, columns) of patches, which are the last of the tokens; the others (class token, registers)
have no place on it. For images of another size than the model's own, learned tables are interpolated between
the centres of their cells; rotary angles are those of the larger or smaller grid.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx import initializers

from vit_jax.errors import UserError
from vit_jax.models import position_resize
from vit_jax.models.base import Grid
from vit_jax.models.position_resize import PositionResize

_INIT = initializers.normal(0.02)


def learned_embedding(
  kind: str, width: int, grid: Grid, *, class_token: bool, method: PositionResize, rngs: nnx.Rngs
) -> 'nnx.Param | AxisEmbeddings | None':
  """The learned position embedding that is added to the tokens.

  Args:
    kind: config.model.position.
    width: D.
    grid: of the model's own image size.
    class_token: whether the class token has a position too.
    method: config.model.position_resize.
    rngs: of the initial values.

  Returns:
    'learned': (1, N, D) of class token and patches; 'learned2d': tables of rows and columns; else None.
  """
  if kind == 'learned':
    return nnx.Param(_INIT(rngs.params(), (1, math.prod(grid) + class_token, width), jnp.float32))
  if kind == 'learned2d':
    return AxisEmbeddings(width, grid, class_token=class_token, method=method, rngs=rngs)
  return None


def attention_position(
  kind: str,
  *,
  heads: int,
  head_size: int,
  grid: Grid,
  others: int,
  method: PositionResize,
  rngs: nnx.Rngs,
) -> 'RelativeBias | RelativeKeys | NumberedKeys | Rotary | None':
  """What the attention of a block knows of positions; None: nothing.

  Args:
    kind: config.model.position.
    heads: H.
    head_size: Dh.
    grid: of the tokens that attend to each other.
    others: tokens in front of the patches.
    method: config.model.position_resize.
    rngs: of the initial values.
  """
  if kind == 'relative':
    return RelativeBias(heads, grid, others, method=method, rngs=rngs)
  if kind == 'relative_query':
    return RelativeKeys(head_size, grid, others, method=method, rngs=rngs)
  if kind == 'relative_query_1d':
    return NumberedKeys(head_size, grid, others, method=method, rngs=rngs)
  if kind == 'rotary':
    return Rotary(head_size)
  return None


def resize_embedding(
  embedding: jax.Array, old: Grid, new: Grid, *, class_token: bool, method: PositionResize
) -> jax.Array:
  """(1, N, D) -> (1, N', D): an embedding of the patches, and perhaps a class token, for another grid."""
  if old == new:
    return embedding
  token, patches = jnp.split(embedding, [int(class_token)], axis=1)
  return jnp.concatenate([token, resize(patches, old, new, method)], axis=1)


class AxisEmbeddings(nnx.Module):
  """Half of a patch's D numbers are its column's, half its row's (paper, appendix D.4, '2-dimensional')."""

  def __init__(self, width: int, grid: Grid, *, class_token: bool, method: PositionResize, rngs: nnx.Rngs):
    """
    Raises:
      UserError: a width that two does not divide.
    """
    if width % 2:
      raise UserError(
        f"config.model.position is 'learned2d', and config.model.width {width} does not divide by 2; "
        f'change it.'
      )
    rows, columns = grid
    self.rows = nnx.Param(_INIT(rngs.params(), (1, rows, width // 2), jnp.float32))
    self.columns = nnx.Param(_INIT(rngs.params(), (1, columns, width // 2), jnp.float32))
    self.class_token = nnx.Param(_INIT(rngs.params(), (1, 1, width), jnp.float32)) if class_token else None
    self.method: PositionResize = method

  def __call__(self, grid: Grid) -> jax.Array:
    """float32 (1, N, D): of the class token, if there is one, and of the patches."""
    rows, columns = (
      resize(table[...], (table.shape[1], 1), (size, 1), self.method)
      for table, size in zip((self.rows, self.columns), grid, strict=True)
    )
    columns, rows = jnp.broadcast_arrays(columns[:, None], rows[:, :, None])
    patches = jnp.concatenate([columns, rows], axis=-1).reshape(1, math.prod(grid), -1)
    if self.class_token is None:
      return patches
    return jnp.concatenate([self.class_token[...], patches], axis=1)


class Offsets(nnx.Module):
  """`size` learned numbers for each offset (row, column) of a query from a key.

  A token that is no patch has numbers of its own as a query of patches, as their key, and with each other
  such token, as BEiT's class token has (arXiv 2106.08254).
  """

  def __init__(self, size: int, grid: Grid, others: int, *, method: PositionResize, rngs: nnx.Rngs):
    def make(*shape: int) -> nnx.Param:
      return nnx.Param(_INIT(rngs.params(), (size, *shape), jnp.float32))

    rows, columns = grid
    self.patches = make(2 * rows - 1, 2 * columns - 1)  # the middle is the offset (0, 0)
    self.from_others = make(others) if others else None
    self.to_others = make(others) if others else None
    self.among_others = make(others, others) if others else None
    self.method: PositionResize = method

  def __call__(self, grid: Grid) -> jax.Array:
    """float32 (size, N, N), of all pairs: query, key."""
    size, *own = self.patches.shape
    wanted = (2 * grid[0] - 1, 2 * grid[1] - 1)
    table = self.patches[...]
    if tuple(own) != wanted:
      table = resize(table.reshape(size, -1).T[None], (own[0], own[1]), wanted, self.method)[0].T
    of_patches = table.reshape(size, -1)[:, _offsets(grid)]
    if self.from_others is None or self.to_others is None or self.among_others is None:
      return of_patches
    patches, others = of_patches.shape[1], self.from_others.shape[1]
    from_others = jnp.broadcast_to(self.from_others[...][:, :, None], (size, others, patches))
    to_others = jnp.broadcast_to(self.to_others[...][:, None], (size, patches, others))
    above = jnp.concatenate([self.among_others[...], from_others], axis=2)
    return jnp.concatenate([above, jnp.concatenate([to_others, of_patches], axis=2)], axis=1)


@functools.cache
def _offsets(grid: Grid) -> np.ndarray:
  """(P, P): the cell of `Offsets.patches`, row by row, of each query and key."""
  rows, columns = (axis.reshape(-1) for axis in np.indices(grid))
  row_offsets = rows[:, None] - rows + grid[0] - 1
  column_offsets = columns[:, None] - columns + grid[1] - 1
  return row_offsets * (2 * grid[1] - 1) + column_offsets


class RelativeBias(nnx.Module):
  """Each head's bias of the logits for each offset, as in Swin (arXiv 2103.14030, equation 4) and BEiT."""

  def __init__(self, heads: int, grid: Grid, others: int, *, method: PositionResize, rngs: nnx.Rngs):
    self.bias = Offsets(heads, grid, others, method=method, rngs=rngs)

  def logits(self, query: jax.Array, grid: Grid) -> jax.Array:
    """float32 (1, H, N, N), the same for every query."""
    return self.bias(grid)[None]


class RelativeKeys(nnx.Module):
  """The query's product with a learned key for each offset (row, column).

  The paper's 'relative' positions (appendix D.4) in two dimensions. All heads share the keys, which are scaled with the
  query (arXiv 1803.02155, equation 4).
  """

  def __init__(self, head_size: int, grid: Grid, others: int, *, method: PositionResize, rngs: nnx.Rngs):
    self.keys = Offsets(head_size, grid, others, method=method, rngs=rngs)

  def logits(self, query: jax.Array, grid: Grid) -> jax.Array:
    """(B, N, H, Dh), already scaled -> float32 (B, H, N, N)."""
    keys = self.keys(grid).astype(query.dtype)
    return jnp.einsum('bqhd,dqk->bhqk', query, keys, preferred_element_type=jnp.float32)


class NumberedKeys(RelativeKeys):
  """The same for each difference of two patches' numbers, counted row by row (paper, appendix D.4, 'relative').

  The last patch of a row is next to the first one of the next row, and an offset means another thing on a grid of
  another width.
  """

  def __init__(self, head_size: int, grid: Grid, others: int, *, method: PositionResize, rngs: nnx.Rngs):
    super().__init__(head_size, (1, math.prod(grid)), others, method=method, rngs=rngs)

  def logits(self, query: jax.Array, grid: Grid) -> jax.Array:
    """(B, N, H, Dh), already scaled -> float32 (B, H, N, N)."""
    return super().logits(query, (1, math.prod(grid)))


class Rotary(nnx.Module):
  """Queries and keys rotated by angles in proportion to their place (RoFormer, arXiv 2104.09864), on a grid.

  As 'axial' in 'Rotary position embedding for Vision Transformer' (arXiv 2403.13298): one half of the pairs
  of channels turns with the column, the other with the row, at frequencies from 1 down to almost 1 / 100.
  Neighbours are one apart on every grid, as there, where it is shown to carry over to larger images.
  """

  def __init__(self, head_size: int):
    """
    Raises:
      UserError: heads of a size that four does not divide.
    """
    if head_size % 4:
      raise UserError(
        f"config.model.position is 'rotary', and heads of {head_size} channels (config.model.width / heads) "
        f'do not divide by 4; change one of them.'
      )
    self.frequencies = tuple(100.0 ** (-4 * i / head_size) for i in range(head_size // 4))

  def rotate(self, x: jax.Array, grid: Grid) -> jax.Array:
    """(B, N, H, Dh) -> the same, in which all tokens but the patches are as they were."""
    rows, columns = (axis.reshape(-1, 1) * np.array(self.frequencies) for axis in np.indices(grid))
    angles = np.concatenate([columns, rows], axis=1)
    angles = np.pad(angles, ((x.shape[1] - len(angles), 0), (0, 0)))[:, None]
    cosines, sines = (jnp.asarray(wave(angles), jnp.float32) for wave in (np.cos, np.sin))
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = [first * cosines - second * sines, first * sines + second * cosines]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


def sincos2d(grid: Grid, width: int, *, class_token: bool = False) -> np.ndarray:
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


def resize(embedding: jax.Array, old: Grid, new: Grid, method: PositionResize) -> jax.Array:
  """(1, rows * columns, D) -> (1, new rows * new columns, D): a table of cells for another grid."""
  rows, columns = (position_resize.weights(method, o, n) for o, n in zip(old, new, strict=True))
  cells = embedding.reshape(*old, embedding.shape[-1])
  cells = jnp.einsum(
    'ih,jw,hwd->ijd', rows.astype(np.float32), columns.astype(np.float32), cells, precision='highest'
  )
  return cells.reshape(1, -1, embedding.shape[-1])
