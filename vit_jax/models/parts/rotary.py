"""Rotary positions: queries and keys turned by angles in proportion to their place (RoFormer, arXiv 2104.09864).

One half of a head's pairs of channels (i, i + Dh / 2) turns with the row of a patch, the other with its column; other
tokens are not turned. The kinds differ in how they number rows and columns, and in their frequencies. A project that
pairs channels otherwise, or has rows and columns in another order, computes the same from permuted channels.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Grid, ShardingRules
from vit_jax.models.parts.positions import AttentionPosition, Learned, Tokens


class Rotary(AttentionPosition):
  """As 'axial' in 'Rotary position embedding for Vision Transformer' (arXiv 2403.13298).

  Neighbours are one apart on every grid, as there, where it is shown to carry over to larger images.
  """

  turns_alike: ClassVar[bool] = True
  # Base of the frequencies, which go from 1 down to almost its inverse.
  temperature: ClassVar[float] = 100.0
  # Whether the first half of the pairs turns with the row, and not with the column.
  rows_first: ClassVar[bool] = False

  def __init__(self, tokens: Tokens, *, rngs: nnx.Rngs):
    """Raises UserError for heads of a size that four does not divide."""
    head_size = tokens.head_size
    if head_size % 4:
      raise UserError(
        f'config.model.position is a rotary one, and heads of {head_size} channels (config.model.width / heads) '
        f'do not divide by 4; change one of them.'
      )
    self.frequencies = tuple(self.temperature ** (-4 * i / head_size) for i in range(head_size // 4))
    self.rotary_grid: int | None = tokens.rotary_grid

  def places(self, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of rows (R,) and of columns (C,)."""
    return np.arange(grid[0]), np.arange(grid[1])

  def angles(self, grid: Grid) -> np.ndarray | jax.Array:
    """(R C, 1 or H, Dh / 2): of each patch, head and pair of channels."""
    rows, columns = (axis.reshape(-1, 1) for axis in np.meshgrid(*self.places(grid), indexing='ij'))
    order = (rows, columns) if self.rows_first else (columns, rows)
    return np.concatenate([places * np.array(self.frequencies) for places in order], axis=1)[:, None]

  def rotate(self, x: jax.Array, grid: Grid, moves: jax.Array | None = None) -> jax.Array:
    """(B, N, H, Dh) -> the same, in which all tokens but the patches are as they were."""
    return turned(x, *self.turns(x.shape[1], grid, moves))

  def turns(self, tokens: int, grid: Grid, moves: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    angles = self.angles(grid)
    if moves is not None:
      angles = self.moved(angles, moves)
    library = np if isinstance(angles, np.ndarray) else jnp
    others = ((tokens - angles.shape[-3], 0), (0, 0), (0, 0))
    angles = library.pad(angles, ((0, 0),) * (angles.ndim - 3) + others)
    cosines, sines = library.cos(angles), library.sin(angles)
    both = library.concatenate([cosines, cosines], axis=-1), library.concatenate([-sines, sines], axis=-1)
    return jnp.asarray(both[0], jnp.float32), jnp.asarray(both[1], jnp.float32)

  def moved(self, angles: np.ndarray | jax.Array, moves: jax.Array) -> jax.Array:
    """(P, 1, Dh / 2), rows first -> (B, P, 1, Dh / 2): each example's places times its factors, plus its offsets."""
    factors, offsets = jnp.repeat(moves, len(self.frequencies), axis=2)[:, :, None, None].swapaxes(0, 1)
    return angles * factors + offsets * np.tile(self.frequencies, 2)


def turned(x: jax.Array, cosines: jax.Array, sines: jax.Array) -> jax.Array:
  """(..., Dh) -> the same, each pair (i, i + Dh / 2) turned by an angle: (..., Dh), the sines of its first negative."""
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  partners = jnp.concatenate([second, first], axis=-1)
  return (x * cosines + partners * sines).astype(x.dtype)


class EvaRotary(Rotary):
  """As EVA-02 (arXiv 2303.11331): rows and columns stretched to those of the grid that was first trained on."""

  temperature: ClassVar[float] = 10_000.0
  rows_first: ClassVar[bool] = True
  # Number of the first row and column, which tells where tokens that are not turned are.
  first: ClassVar[int] = 0

  def places(self, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    side = self.rotary_grid
    rows, columns = ((np.arange(own) + self.first) * (side or own) / own for own in grid)
    return rows, columns


class PerceptionEncoderRotary(EvaRotary):
  """As the Perception Encoder (arXiv 2504.13181), which counts rows and columns from 1."""

  rows_first: ClassVar[bool] = False
  first: ClassVar[int] = 1


class DinoV3Rotary(Rotary):
  """As DINOv3 (arXiv 2508.10104): 2 pi times the centres of patches, where an image's sides go from -1 to 1."""

  rows_first: ClassVar[bool] = True
  can_move: ClassVar[bool] = True

  @staticmethod
  def moves(keys: jax.Array, limits: tuple[float, float, float]) -> jax.Array:
    """Factors of rows and columns, and offsets, which are added then (section 3.2, RoPE-box jittering, and its code).

    Args:
      keys: (B,) typed PRNG keys. DINOv3 draws once for all images of a step, we for each.
      limits: as config.model.rotary_moves.
    """
    draws = jax.vmap(lambda key: jax.random.uniform(key, (5,), minval=-1, maxval=1))(keys)
    return moves_of(draws, limits)

  def places(self, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = (2 * np.pi * ((2 * np.arange(own) + 1) / own - 1) for own in grid)
    return rows, columns


def moves_of(draws: jax.Array, limits: tuple[float, float, float]) -> jax.Array:
  """(B, 5) from -1 to 1, of the shift of rows and of columns, their jitter, and the scale -> float32 (B, 2, 2)."""
  shift, jitter, rescale = limits
  factors = jitter ** draws[:, 2:4] * rescale ** draws[:, 4:]
  return jnp.stack([factors, 2 * np.pi * shift * draws[:, :2] * factors], axis=1)


class MixedRotary(Rotary):
  """As 'mixed' in arXiv 2403.13298: learned frequencies of rows and columns for each pair of channels of each head."""

  attention_rules: ClassVar[ShardingRules] = ((r'waves', ('tensor', None)),)  # (2, H, Dh / 2)
  turns_alike: ClassVar[bool] = False
  temperature: ClassVar[float] = 10.0

  def __init__(self, tokens: Tokens, *, rngs: nnx.Rngs):
    """Begins with the axial frequencies, turned in each head by an angle of its own."""
    super().__init__(tokens, rngs=rngs)
    turn = jax.random.uniform(rngs.params(), (tokens.heads, 1), maxval=2 * np.pi)
    frequencies = jnp.asarray(self.frequencies)
    waves = [frequencies * wave(turn + quarter) for wave in (jnp.cos, jnp.sin) for quarter in (0, np.pi / 2)]
    self.waves = nnx.Param(jnp.concatenate(waves, axis=1).reshape(tokens.heads, 2, -1).swapaxes(0, 1))

  def angles(self, grid: Grid) -> jax.Array:
    rows, columns = (axis.reshape(-1, 1, 1) for axis in np.indices(grid))
    of_columns, of_rows = self.waves[...]
    return columns * of_columns + rows * of_rows


class LearnedAndRotary(Learned, Rotary):
  """Both: an embedding that is added to the tokens, and angles."""


class LearnedAndEvaRotary(Learned, EvaRotary):
  """Both, as EVA-02."""


class LearnedAndPerceptionEncoderRotary(Learned, PerceptionEncoderRotary):
  """Both, as the Perception Encoder."""


class LearnedAndDinoV3Rotary(Learned, DinoV3Rotary):
  """Both."""


class LearnedAndMixedRotary(Learned, MixedRotary):
  """Both."""
