"""Positions of patches, by the names that config.model.position has: added to the tokens, or known to attention.

A grid is (rows, columns) of patches, which are the last of the tokens; the others (class token, registers)
have no place on it. For images of another size than the model's own, learned tables are interpolated between
the centres of their cells; rotary angles are those of the larger or smaller grid.
"""

import functools
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx import initializers

from vit_jax.foundation.errors import UserError
from vit_jax.foundation.registry import Registry
from vit_jax.models import naflex, position_resize
from vit_jax.models.base import Grid, ShardingRules
from vit_jax.models.position_resize import PositionResize

POSITIONS: Registry['Position'] = Registry(
  'position',
  {
    'none': 'vit_jax.models.parts.positions:Position',
    'learned': 'vit_jax.models.parts.positions:Learned',
    'learned2d': 'vit_jax.models.parts.positions:Learned2d',
    'sincos2d': 'vit_jax.models.parts.positions:SinCos2d',
    'sincos2d_mae': 'vit_jax.models.parts.positions:MaeSinCos2d',
    'relative': 'vit_jax.models.parts.positions:RelativeBias',
    'relative_query': 'vit_jax.models.parts.positions:RelativeKeys',
    'relative_query_1d': 'vit_jax.models.parts.positions:NumberedKeys',
    'rotary': 'vit_jax.models.parts.rotary:Rotary',
    'rotary_eva': 'vit_jax.models.parts.rotary:EvaRotary',
    'rotary_pe': 'vit_jax.models.parts.rotary:PerceptionEncoderRotary',
    'rotary_dinov3': 'vit_jax.models.parts.rotary:DinoV3Rotary',
    'rotary_mixed': 'vit_jax.models.parts.rotary:MixedRotary',
    'learned+rotary': 'vit_jax.models.parts.rotary:LearnedAndRotary',
    'learned+rotary_eva': 'vit_jax.models.parts.rotary:LearnedAndEvaRotary',
    'learned+rotary_pe': 'vit_jax.models.parts.rotary:LearnedAndPerceptionEncoderRotary',
    'learned+rotary_dinov3': 'vit_jax.models.parts.rotary:LearnedAndDinoV3Rotary',
    'learned+rotary_mixed': 'vit_jax.models.parts.rotary:LearnedAndMixedRotary',
  },
)

_INIT = initializers.normal(0.02)


class Tokens(NamedTuple):
  """What positions depend on."""

  grid: Grid  # rows and columns of patches of the model's own image size; along an axis, of one row or column
  others: int  # tokens in front of the patches: class token, distillation token and registers
  class_token: bool  # whether one of these is a class token, which is then the first
  width: int  # D
  heads: int  # H
  resize: PositionResize  # config.model.position_resize
  rotary_grid: int | None = None  # config.model.rotary_grid

  @property
  def head_size(self) -> int:
    return self.width // self.heads


class Position:
  """A kind of position, asked by its class. This one, 'none', knows nothing."""

  # Sharding rules of the parameters that every block's attention has.
  attention_rules: ClassVar[ShardingRules] = ()
  # Whether something is added to the logits of attention, which only 'xla' does.
  adds_to_logits: ClassVar[bool] = False
  # Products of all queries with something as large as all keys, beside those with keys.
  more_products: ClassVar[int] = 0
  # Whether config.model.rotary_moves goes with it: it has `moves`.
  can_move: ClassVar[bool] = False

  @classmethod
  def embedding(cls, tokens: Tokens, rngs: nnx.Rngs) -> Any:
    """The parameters that are added to the tokens: a Param, a module, or None."""

  @classmethod
  def fixed(cls, tokens: Tokens) -> np.ndarray | None:
    """float32 (1, N, D) that are added to the tokens and are no parameter, or None."""

  @classmethod
  def added(cls, embedding: Any, tokens: Tokens, grid: Grid) -> jax.Array | None:
    """float32 (1, N, D) that are added to the class token and the patches of a grid, or None."""

  @classmethod
  def in_attention(cls, tokens: Tokens, rngs: nnx.Rngs) -> 'AttentionPosition | None':
    """What the attention of one block knows, or None."""

  @staticmethod
  def moves(keys: jax.Array, limits: tuple[float, float, float]) -> jax.Array:
    """float32 (B, 2, 2): how a training step moves each example's positions, in all blocks alike; see `can_move`."""
    raise NotImplementedError


class Learned(Position):
  """A learned embedding of each token, (1, N, D) (paper, section 3.1)."""

  @classmethod
  def embedding(cls, tokens: Tokens, rngs: nnx.Rngs) -> nnx.Param:
    shape = (1, math.prod(tokens.grid) + tokens.class_token, tokens.width)
    return nnx.Param(_INIT(rngs.params(), shape, jnp.float32))

  @classmethod
  def added(cls, embedding: Any, tokens: Tokens, grid: Grid) -> jax.Array:
    return _resized(embedding[...], tokens, grid)


class SinCos2d(Position):
  """Fixed sines and cosines of row and column (MoCo v3, arXiv 2104.02057)."""

  # Whether the lowest frequency is 1 / 10,000, and not a little above.
  to_lowest: ClassVar[bool] = True

  @classmethod
  def fixed(cls, tokens: Tokens) -> np.ndarray:
    return sincos2d(tokens.grid, tokens.width, class_token=tokens.class_token, to_lowest=cls.to_lowest)

  @classmethod
  def added(cls, embedding: Any, tokens: Tokens, grid: Grid) -> jax.Array:
    return _resized(jnp.asarray(cls.fixed(tokens)), tokens, grid)


class MaeSinCos2d(SinCos2d):
  """The same with the frequencies of MAE's code (arXiv 2111.06377)."""

  to_lowest: ClassVar[bool] = False


def _resized(embedding: jax.Array, tokens: Tokens, grid: Grid) -> jax.Array:
  """(1, N, D) -> (1, N', D): an embedding of the patches, and perhaps a class token, for another grid."""
  if grid == tokens.grid:
    return embedding
  token, patches = jnp.split(embedding, [int(tokens.class_token)], axis=1)
  return jnp.concatenate([token, resize(patches, tokens.grid, grid, tokens.resize)], axis=1)


def of_each(
  position: type[Position], embedding: Any, tokens: Tokens, grids: jax.Array, patches: int
) -> jax.Array | None:
  """float32 (B, N, D): `Position.added` for images of which each has its own grid, int (B, 2), and padding.

  For positions that are one table of cells, or none.
  """
  table = position.added(embedding, tokens, tokens.grid)
  if table is None:
    return None
  token, cells = jnp.split(table, [int(tokens.class_token)], axis=1)
  resized = naflex.positions(cells, tokens.grid, grids, patches, tokens.resize)
  return jnp.concatenate([jnp.broadcast_to(token, (len(grids), *token.shape[1:])), resized], axis=1)


class Learned2d(nnx.Module, Position):
  """Half of a patch's D numbers are its column's, half its row's (paper, appendix D.4, '2-dimensional')."""

  @classmethod
  def embedding(cls, tokens: Tokens, rngs: nnx.Rngs) -> 'Learned2d':
    return cls(tokens, rngs=rngs)

  @classmethod
  def added(cls, embedding: Any, tokens: Tokens, grid: Grid) -> jax.Array:
    return embedding(grid)

  def __init__(self, tokens: Tokens, *, rngs: nnx.Rngs):
    """Raises UserError for a width that two does not divide."""
    width, (rows, columns) = tokens.width, tokens.grid
    if width % 2:
      raise UserError(
        f"config.model.position is 'learned2d', and config.model.width {width} does not divide by 2; "
        f'change it.'
      )
    self.rows = nnx.Param(_INIT(rngs.params(), (1, rows, width // 2), jnp.float32))
    self.columns = nnx.Param(_INIT(rngs.params(), (1, columns, width // 2), jnp.float32))
    self.class_token = (
      nnx.Param(_INIT(rngs.params(), (1, 1, width), jnp.float32)) if tokens.class_token else None
    )
    self.method: PositionResize = tokens.resize

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


class AttentionPosition(nnx.Module, Position):
  """What the attention of every block knows of positions: each block has a module of this class."""

  @classmethod
  def in_attention(cls, tokens: Tokens, rngs: nnx.Rngs) -> 'AttentionPosition':
    return cls(tokens, rngs=rngs)

  def __init__(self, tokens: Tokens, *, rngs: nnx.Rngs):
    del tokens, rngs

  # Whether all it does is to turn queries and keys, all heads alike and by nothing that is learned.
  turns_alike: ClassVar[bool] = False

  def rotate(self, x: jax.Array, grid: Grid, moves: jax.Array | None = None) -> jax.Array:
    """Queries or keys (B, N, H, Dh) -> the same with their positions, moved by float32 (B, 2, 2) in training."""
    return x

  def turns(self, tokens: int, grid: Grid, moves: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines by which `rotate` turns so many tokens (`rotary.turned`): float32 ([B,] N, 1 or H, Dh)."""
    raise NotImplementedError

  def logits(self, query: jax.Array, grid: Grid) -> jax.Array | None:
    """Queries (B, N, H, Dh), already scaled -> float32 (B or 1, H, N, N), added to the logits; None: nothing is."""


class Offsets(nnx.Module):
  """`size` learned numbers for each offset (row, column) of a query from a key.

  A token that is no patch has numbers of its own as a query of patches, as their key, and with each other
  such token, as BEiT's class token has (arXiv 2106.08254).
  """

  def __init__(self, size: int, tokens: Tokens, *, rngs: nnx.Rngs):
    def make(*shape: int) -> nnx.Param:
      return nnx.Param(_INIT(rngs.params(), (size, *shape), jnp.float32))

    others, (rows, columns) = tokens.others, tokens.grid
    self.patches = make(2 * rows - 1, 2 * columns - 1)  # the middle is the offset (0, 0)
    self.from_others = make(others) if others else None
    self.to_others = make(others) if others else None
    self.among_others = make(others, others) if others else None
    self.method: PositionResize = tokens.resize

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


class RelativeBias(AttentionPosition):
  """Each head's bias of the logits for each offset, as in Swin (arXiv 2103.14030, equation 4) and BEiT."""

  attention_rules: ClassVar[ShardingRules] = (
    (r'bias/(patches|among_others)', ('tensor', None, None)),  # (H, rows, columns)
    (r'bias/(from|to)_others', ('tensor', None)),  # (H, tokens)
  )
  adds_to_logits: ClassVar[bool] = True

  def __init__(self, tokens: Tokens, *, rngs: nnx.Rngs):
    self.bias = Offsets(tokens.heads, tokens, rngs=rngs)

  def logits(self, query: jax.Array, grid: Grid) -> jax.Array:
    """float32 (1, H, N, N), the same for every query."""
    return self.bias(grid)[None]


class RelativeKeys(AttentionPosition):
  """The query's product with a learned key for each offset (row, column).

  The paper's 'relative' positions (appendix D.4) in two dimensions. All heads share the keys, which are scaled with the
  query (arXiv 1803.02155, equation 4).
  """

  attention_rules: ClassVar[ShardingRules] = ((r'keys/\w+', ()),)  # (Dh, ...)
  adds_to_logits: ClassVar[bool] = True
  more_products: ClassVar[int] = 1

  def __init__(self, tokens: Tokens, *, rngs: nnx.Rngs):
    self.keys = Offsets(tokens.head_size, tokens, rngs=rngs)

  def logits(self, query: jax.Array, grid: Grid) -> jax.Array:
    """(B, N, H, Dh), already scaled -> float32 (B, H, N, N)."""
    keys = self.keys(grid).astype(query.dtype)
    return jnp.einsum('bqhd,dqk->bhqk', query, keys, preferred_element_type=jnp.float32)


class NumberedKeys(RelativeKeys):
  """The same for each difference of two patches' numbers, counted row by row (paper, appendix D.4, 'relative').

  The last patch of a row is next to the first one of the next row, and an offset means another thing on a grid of
  another width.
  """

  def __init__(self, tokens: Tokens, *, rngs: nnx.Rngs):
    super().__init__(tokens._replace(grid=(1, math.prod(tokens.grid))), rngs=rngs)

  def logits(self, query: jax.Array, grid: Grid) -> jax.Array:
    """(B, N, H, Dh), already scaled -> float32 (B, H, N, N)."""
    return super().logits(query, (1, math.prod(grid)))


def sincos2d(grid: Grid, width: int, *, class_token: bool = False, to_lowest: bool = True) -> np.ndarray:
  """float32 (1, N, D): sines and cosines of each patch's column and row, as MoCo v3 (arXiv 2104.02057) fixes them.

  They are those of its column times D / 4 frequencies from 1 to 1 / 10,000 (`to_lowest`: included), then those of its
  row; a class token before them has zeros. Raises UserError for a width that four does not divide.
  """
  if width % 4:
    raise UserError(
      f"config.model.position is 'sincos2d', and config.model.width {width} does not divide by 4; change it."
    )
  frequencies = 10_000.0 ** -(np.arange(width // 4) / max(width // 4 - to_lowest, 1))
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
