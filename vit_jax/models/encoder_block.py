"""The encoder block of the Vision Transformer (paper, section 3.1, equations 2 and 3)."""

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import initializers

from vit_jax.foundation.registry import Registry
from vit_jax.models import axial
from vit_jax.models.base import Grid, Sharding
from vit_jax.models.dropout import Place, drop_path, dropout
from vit_jax.models.layers import XAVIER, layer_scale, scaled
from vit_jax.models.parts.attention import Attention, How
from vit_jax.models.parts.mlps import MLPS
from vit_jax.models.parts.norms import NORMS
from vit_jax.models.token_weights import Places

if TYPE_CHECKING:
  from vit_jax.models.vit_config import ViTConfig

BLOCKS: Registry[Any] = Registry(
  'block',
  {
    'sequential': 'vit_jax.models.encoder_block:Block',
    'post_norm': 'vit_jax.models.encoder_block:PostNormBlock',
    'parallel': 'vit_jax.models.parallel_blocks:ParallelBlock',
    'parallel_pairs': 'vit_jax.models.parallel_blocks:ParallelPairs',
  },
)


class Block(nnx.Module):
  """One encoder block (equations 2 and 3); with an axis, one half of an `axial.AxialBlock`."""

  # Whether it can compute the first tokens only.
  reads_first: ClassVar[bool] = True
  # What the paths of its parts begin with, of each of its attentions and MLPs.
  members: ClassVar[tuple[str, ...]] = ('',)

  def __init__(
    self,
    config: 'ViTConfig',
    *,
    grid: Grid,
    rngs: nnx.Rngs,
    sharding: Sharding | None = None,
    axis: axial.Axis | None = None,
  ):
    """`grid`: of the model's own image size; `axis`: attend along rows or columns only; None: to all tokens."""
    sizes, dtype = config.sizes, jnp.dtype(config.dtype)
    norm = functools.partial(NORMS[config.norm], epsilon=config.norm_epsilon)
    deviation = config.kernel_deviation
    kernel_init = XAVIER if deviation is None else initializers.normal(deviation)
    tokens = config.tokens(grid if axis is None else axial.line(grid, axis))
    self.axis: axial.Axis | None = axis
    self.attention_norm = norm(sizes.width)
    self.attention = Attention(
      sizes.width,
      sizes.heads,
      dtype=dtype,
      position=config.positions.in_attention(tokens, rngs),
      head_norm=norm if config.qk_norm else None,
      sub_norm=norm if config.attention_sub_norm else None,
      kernel_init=kernel_init,
      how=How(config.attention, config.attention_dropout, sharding),
      rngs=rngs,
    )
    self.attention_scale = layer_scale(sizes.width, config.layer_scale)
    self.mlp_norm: Any = norm(sizes.width)
    self.mlp = MLPS[config.mlp](
      sizes.width,
      sizes.mlp_dim,
      activation=config.activation,
      sub_norm=norm if config.mlp_sub_norm else None,
      kernel_init=kernel_init,
      dropout=config.dropout,
      dtype=dtype,
      sharding=sharding,
      rngs=rngs,
    )
    self.mlp_scale = layer_scale(sizes.width, config.layer_scale)
    self.dropout = config.dropout
    self.drops_path = config.stochastic_depth > 0

  def __call__(
    self,
    z: jax.Array,
    drop_path_rate: jax.Array | float,
    keys: jax.Array | None,
    grid: Places,
    moves: jax.Array | None = None,
    read: int | None = None,
  ) -> jax.Array:
    """(B, N, D) -> (B, N, D), or (B, read, D).

    Args:
      z: the tokens, the patches last.
      drop_path_rate: probability that an example skips the attention branch, and the MLP branch.
      keys: (B,) typed PRNG keys of dropout and drop path; None: nothing is dropped.
      grid: rows and columns of the patches; or the weights of the tokens, which are then on no grid.
      moves: float32 (B, 2, 2), of each image's positions in training (`Position.moves`); None: they stay.
      read: compute the first so many tokens only, for which the block must be without an axis and locality.
    """
    path_keys = keys if self.drops_path else None
    # Equation 2: z' = MSA(LN(z)) + z.
    with jax.named_scope('attention'):
      y = self.attention_branch(z, keys, grid, moves, read)
      z = z[:, :read] + drop_path(y, drop_path_rate, path_keys, Place.ATTENTION_PATH)
    # Equation 3: z = MLP(LN(z')) + z'.
    with jax.named_scope('mlp'):
      y = self.mlp_branch(z, keys, grid)
      return z + drop_path(y, drop_path_rate, path_keys, Place.MLP_PATH)

  def attention_branch(
    self,
    z: jax.Array,
    keys: jax.Array | None,
    grid: Places,
    moves: jax.Array | None = None,
    read: int | None = None,
  ) -> jax.Array:
    """(B, N, D) -> (B, N, D), or (B, read, D): what attention adds."""
    return self.attention_output(self.attend(self.attention_input(z), keys, grid, moves, read))

  def attention_input(self, z: jax.Array) -> jax.Array:
    return self.attention_norm(z)

  def attention_output(self, y: jax.Array) -> jax.Array:
    return y

  def mlp_branch(self, z: jax.Array, keys: jax.Array | None, grid: Places) -> jax.Array:
    """(B, N, D) -> (B, N, D): what the MLP adds."""
    return scaled(self.mlp(self.mlp_norm(z), keys=keys, grid=grid), self.mlp_scale)

  def attend(
    self,
    y: jax.Array,
    keys: jax.Array | None,
    grid: Places,
    moves: jax.Array | None = None,
    read: int | None = None,
  ) -> jax.Array:
    """MSA of the tokens (B, N, D), or of the first ones, or of those of each row or column, as its branch adds it."""
    if self.axis is None:
      out = self.attention(y[:, :read], y, dropout_keys=keys, grid=grid, moves=moves)
    else:
      assert isinstance(grid, tuple), 'rows and columns are those of a grid'
      lines = axial.to_lines(y, grid, self.axis)
      line_keys = axial.line_keys(keys, grid, self.axis)
      out = self.attention(lines, lines, dropout_keys=line_keys, grid=axial.line(grid, self.axis))
      out = axial.from_lines(out, grid, self.axis)
    return scaled(dropout(out, self.dropout, keys, Place.ATTENTION_OUT), self.attention_scale)

  def weights(self, z: jax.Array, grid: Places) -> jax.Array:
    """(B, N, D) -> float32 (B, H, N, N): how much each token attends to each; zero where it cannot."""
    y = self.attention_input(z)
    if self.axis is None:
      return self.attention.weights(y, y, grid)
    assert isinstance(grid, tuple), 'rows and columns are those of a grid'
    lines = axial.to_lines(y, grid, self.axis)
    weights = self.attention.weights(lines, lines, axial.line(grid, self.axis))
    return axial.over_all_tokens(weights, grid, self.axis)


class PostNormBlock(Block):
  """A block whose norms are those of what its branches add, as in Swin v2 (arXiv 2111.09883)."""

  def attention_input(self, z: jax.Array) -> jax.Array:
    return z

  def attention_output(self, y: jax.Array) -> jax.Array:
    return self.attention_norm(y)

  def mlp_branch(self, z: jax.Array, keys: jax.Array | None, grid: Places) -> jax.Array:
    return self.mlp_norm(scaled(self.mlp(z, keys=keys, grid=grid), self.mlp_scale))
