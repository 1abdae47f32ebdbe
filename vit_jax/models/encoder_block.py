"""The encoder block of the Vision Transformer (paper, section 3.1, equations 2 and 3)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental.layout import Layout, with_layout_constraint

from vit_jax.models import axial, position
from vit_jax.models.attention import Attention
from vit_jax.models.axial import Axis
from vit_jax.models.base import Grid
from vit_jax.models.dropout import Place, drop_path, dropout
from vit_jax.models.layers import LayerNorm, Mlp
from vit_jax.models.softmax_attention import Groups
from vit_jax.models.vit_config import ViTConfig


class Block(nnx.Module):
  """One encoder block (equations 2 and 3); with an axis, one half of an `axial.AxialBlock`."""

  def __init__(
    self,
    config: ViTConfig,
    *,
    grid: Grid,
    rngs: nnx.Rngs,
    activation_sharding: jax.sharding.NamedSharding | None = None,
    axis: Axis | None = None,
  ):
    """
    Args:
      config: the model's.
      grid: rows and columns of patches of the model's own image size.
      rngs: of the initial parameters.
      activation_sharding: of the tokens.
      axis: attend along rows or columns only; None: to all tokens.
    """
    sizes, dtype = config.sizes, jnp.dtype(config.dtype)
    self.axis: Axis | None = axis
    self.attention_norm = LayerNorm(sizes.width, config.norm_epsilon)
    self.attention = Attention(
      sizes.width,
      sizes.heads,
      dropout=config.attention_dropout,
      dtype=dtype,
      implementation=config.attention,
      position=position.attention_position(
        config.position,
        heads=sizes.heads,
        head_size=sizes.width // sizes.heads,
        grid=grid if axis is None else axial.line(grid, axis),
        others=config.leading_tokens,
        method=config.position_resize,
        rngs=rngs,
      ),
      norm_epsilon=config.norm_epsilon if config.qk_norm else None,
      sharding=activation_sharding,
      unrolled=bool(config.unroll),
      rngs=rngs,
    )
    self.attention_scale = _layer_scale(config)
    self.mlp_norm = LayerNorm(sizes.width, config.norm_epsilon)
    self.mlp = Mlp(
      sizes.width,
      sizes.mlp_dim,
      gelu=config.gelu,
      dropout=config.dropout,
      locality=config.mlp_locality,
      dtype=dtype,
      sharding=activation_sharding,
      rngs=rngs,
    )
    self.mlp_scale = _layer_scale(config)
    self.dropout = config.dropout
    self.drops_path = config.stochastic_depth > 0

  def __call__(
    self,
    z: jax.Array,
    drop_path_rate: jax.Array | float,
    keys: jax.Array | None,
    grid: Grid,
    read: int | None = None,
  ) -> jax.Array:
    """(B, N, D) -> (B, N, D), or (B, read, D).

    Args:
      z: the tokens, the patches last.
      drop_path_rate: probability that an example skips the attention branch, and the MLP branch.
      keys: (B,) typed PRNG keys of dropout and drop path; None: nothing is dropped.
      grid: rows and columns of the patches.
      read: compute the first so many tokens only, for which the block must be without an axis and locality.
    """
    path_keys = keys if self.drops_path else None
    # Equation 2: z' = MSA(LN(z)) + z.
    with jax.named_scope('attention'):
      y = self._attend(self.attention_norm(z), keys, grid, read)
      y = dropout(y, self.dropout, keys, Place.ATTENTION_OUT)
      z = z if read is None else z[:, :read]
      y = _scaled(y, self.attention_scale)
      z = z + drop_path(y, drop_path_rate, path_keys, Place.ATTENTION_PATH)
    # Equation 3: z = MLP(LN(z')) + z'.
    with jax.named_scope('mlp'):
      y = _scaled(self.mlp(self.mlp_norm(z), keys=keys, grid=grid), self.mlp_scale)
      return z + drop_path(y, drop_path_rate, path_keys, Place.MLP_PATH)

  def of_groups(self, groups: Groups) -> Groups:
    """The block for tokens in the groups of `softmax_attention.grouped`, (B, Ni, D) each; nothing is dropped."""
    with jax.named_scope('attention'):
      # Left to itself the compiler puts the tokens before the examples, which every product of attention then undoes.
      first = with_layout_constraint(groups[0], Layout((0, 1, 2)))
      groups = first, *groups[1:]
      y = tuple(self.attention_norm(z) for z in groups)
      outs = self.attention.of_groups(y, y)
      groups = tuple(z + _scaled(out, self.attention_scale) for z, out in zip(groups, outs, strict=True))
    with jax.named_scope('mlp'):
      return tuple(z + _scaled(self.mlp(self.mlp_norm(z)), self.mlp_scale) for z in groups)

  def _attend(self, y: jax.Array, keys: jax.Array | None, grid: Grid, read: int | None) -> jax.Array:
    """Multi-head self-attention of the tokens (B, N, D), or of the first ones, or of those of each row or column."""
    if self.axis is None:
      return self.attention(y if read is None else y[:, :read], y, dropout_keys=keys, grid=grid)
    lines = axial.to_lines(y, grid, self.axis)
    line_keys = axial.line_keys(keys, grid, self.axis)
    out = self.attention(lines, lines, dropout_keys=line_keys, grid=axial.line(grid, self.axis))
    return axial.from_lines(out, grid, self.axis)

  def weights(self, z: jax.Array, grid: Grid) -> jax.Array:
    """(B, N, D) -> float32 (B, H, N, N): how much each token attends to each; zero where it cannot."""
    y = self.attention_norm(z)
    if self.axis is None:
      return self.attention.weights(y, y, grid)
    lines = axial.to_lines(y, grid, self.axis)
    weights = self.attention.weights(lines, lines, axial.line(grid, self.axis))
    return axial.over_all_tokens(weights, grid, self.axis)


def _layer_scale(config: ViTConfig) -> nnx.Param | None:
  """A factor for each channel of a branch (LayerScale), (D,)."""
  if config.layer_scale is None:
    return None
  return nnx.Param(jnp.full(config.sizes.width, config.layer_scale, jnp.float32))


def _scaled(y: jax.Array, scale: nnx.Param | None) -> jax.Array:
  return y if scale is None else y * scale[...].astype(y.dtype)
