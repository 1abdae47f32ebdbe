"""Attention pooling ('Scaling Vision Transformers', arXiv 2106.04560, section 3.3)."""

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import initializers

from vit_jax.models.attention import Attention
from vit_jax.models.layers import LayerNorm, Mlp, repeat_for_examples
from vit_jax.models.vit_config import ViTConfig


class MapPool(nnx.Module):
  """A learned probe attends to all tokens; an MLP with a residual connection follows."""

  def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs):
    sizes, dtype = config.sizes, jnp.dtype(config.dtype)
    self.probe = nnx.Param(initializers.xavier_uniform()(rngs.params(), (1, 1, sizes.width), jnp.float32))
    self.attention = Attention(sizes.width, sizes.heads, dtype=dtype, rngs=rngs)
    self.norm = LayerNorm(sizes.width, config.norm_epsilon)
    self.mlp = Mlp(sizes.width, sizes.mlp_dim, gelu=config.gelu, dtype=dtype, rngs=rngs)

  def __call__(self, tokens: jax.Array) -> jax.Array:
    """(B, N, D) -> (B, D)."""
    x = self.attention(repeat_for_examples(self.probe, tokens), tokens)
    return (x + self.mlp(self.norm(x)))[:, 0]
