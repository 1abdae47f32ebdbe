"""What the head reads of the tokens (equation 4), by the names that config.model.pool has.

`POOLS[name](config, rngs=…)` makes one. It maps the tokens (B, N, D), and their weights where they have any, to
(B, D'). Its parameters, if it has any, are the model's 'NAME_pool'.
"""

from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import initializers

from vit_jax.foundation.registry import Registry
from vit_jax.models import flops
from vit_jax.models.layers import repeat_for_examples
from vit_jax.models.parts.attention import Attention
from vit_jax.models.parts.mlps import MLPS, Mlp
from vit_jax.models.parts.norms import NORMS
from vit_jax.models.token_weights import TokenWeights, largest, mean

if TYPE_CHECKING:
  from vit_jax.models.vit_config import ViTConfig

POOLS: Registry['Pool'] = Registry(
  'pool',
  {
    'token': 'vit_jax.models.parts.pools:TokenPool',
    'gap': 'vit_jax.models.parts.pools:GapPool',
    'token_gap': 'vit_jax.models.parts.pools:TokenGapPool',
    'leading': 'vit_jax.models.parts.pools:LeadingPool',
    'map': 'vit_jax.models.parts.pools:MapPool',
    'gap_patches': 'vit_jax.models.parts.pools:GapPatchesPool',
    'max_patches': 'vit_jax.models.parts.pools:MaxPatchesPool',
    'avgmax_patches': 'vit_jax.models.parts.pools:AvgMaxPatchesPool',
    'map_patches': 'vit_jax.models.parts.pools:MapPatchesPool',
    'none': 'vit_jax.models.parts.pools:Pool',
  },
)


class Pool(nnx.Module):
  """A pool; this one, 'none', leaves the tokens as they are, so that every one gets logits."""

  # Whether it reads the class token, and no token but that and the patches.
  reads_class_token: ClassVar[bool] = False
  # Whether it reads the first tokens only.
  reads_first: ClassVar[bool] = False
  # D' / D.
  widths: ClassVar[int] = 1
  # Whether it has parameters, so that only a model that was built with it can pool so.
  has_parameters: ClassVar[bool] = False

  def __init__(self, config: 'ViTConfig', *, rngs: nnx.Rngs | None = None):
    self.class_tokens = int(config.has_class_token)
    self.leading = config.leading_tokens

  def __call__(self, tokens: jax.Array, weights: TokenWeights | None = None) -> jax.Array:
    return tokens

  @staticmethod
  def multiplications(config: 'ViTConfig', tokens: int) -> int:
    """Multiplications for one image (models/flops.py)."""
    return 0


class TokenPool(Pool):
  """The class token (paper, section 3.1)."""

  reads_class_token: ClassVar[bool] = True
  reads_first: ClassVar[bool] = True

  def __call__(self, tokens: jax.Array, weights: TokenWeights | None = None) -> jax.Array:
    return tokens[:, 0]


class GapPool(Pool):
  """The mean of all tokens but the registers."""

  def __call__(self, tokens: jax.Array, weights: TokenWeights | None = None) -> jax.Array:
    if weights is None:
      return self._unregistered(tokens).mean(axis=1)
    return mean(self._unregistered(tokens), TokenWeights(self._unregistered(weights.values)))

  def _unregistered(self, tokens: jax.Array) -> jax.Array:
    if self.leading == self.class_tokens:
      return tokens
    return jnp.concatenate([tokens[:, : self.class_tokens], tokens[:, self.leading :]], axis=1)


class TokenGapPool(GapPool):
  """The class token beside the mean of the patches, as DINOv2's classifier (arXiv 2304.07193)."""

  reads_class_token: ClassVar[bool] = True
  widths: ClassVar[int] = 2

  def __call__(self, tokens: jax.Array, weights: TokenWeights | None = None) -> jax.Array:
    tokens = self._unregistered(tokens)
    weights = weights and weights[self.leading :]
    return jnp.concatenate([tokens[:, 0], mean(tokens[:, 1:], weights)], axis=-1)


class GapPatchesPool(Pool):
  """The mean of the patches."""

  def __call__(self, tokens: jax.Array, weights: TokenWeights | None = None) -> jax.Array:
    return mean(tokens[:, self.leading :], weights and weights[self.leading :])


class MaxPatchesPool(Pool):
  """The largest of the patches' numbers, channel by channel."""

  def __call__(self, tokens: jax.Array, weights: TokenWeights | None = None) -> jax.Array:
    return largest(tokens[:, self.leading :], weights and weights[self.leading :])


class AvgMaxPatchesPool(Pool):
  """The mean of both."""

  def __call__(self, tokens: jax.Array, weights: TokenWeights | None = None) -> jax.Array:
    patches, weights = tokens[:, self.leading :], weights and weights[self.leading :]
    return (mean(patches, weights) + largest(patches, weights)) / 2


class LeadingPool(Pool):
  """The mean of all tokens before the patches, as of the class tokens of Pixio, which are several."""

  def __call__(self, tokens: jax.Array, weights: TokenWeights | None = None) -> jax.Array:
    return tokens[:, : self.leading].mean(axis=1)


class MapPool(Pool):
  """A learned probe attends to all tokens; an MLP follows (arXiv 2106.04560, section 3.3)."""

  has_parameters: ClassVar[bool] = True

  def __init__(self, config: 'ViTConfig', *, rngs: nnx.Rngs | None = None):
    super().__init__(config)
    assert rngs is not None
    sizes, dtype, heads = config.sizes, jnp.dtype(config.dtype), config.pool_heads or config.sizes.heads
    self.probe = nnx.Param(initializers.xavier_uniform()(rngs.params(), (1, 1, sizes.width), jnp.float32))
    self.attention = Attention(sizes.width, heads, dtype=dtype, rngs=rngs)
    self.norm = NORMS[config.norm](sizes.width, config.norm_epsilon)
    self.mlp = _mlp(config)(
      sizes.width, config.pool_mlp_dim or sizes.mlp_dim, activation=config.activation, dtype=dtype, rngs=rngs
    )

  def __call__(self, tokens: jax.Array, weights: TokenWeights | None = None) -> jax.Array:
    probe = repeat_for_examples(self.probe, tokens)
    x = self.attention(probe, tokens, grid=weights)
    return (x + self.mlp(self.norm(x)))[:, 0]

  @staticmethod
  def multiplications(config: 'ViTConfig', tokens: int) -> int:
    sizes = config.sizes
    hidden = config.pool_mlp_dim or sizes.mlp_dim
    mlp = _mlp(config).multiplications(1, 0, sizes.width, hidden)
    return flops.attention(1, tokens, sizes.width) + mlp


def _mlp(config: 'ViTConfig') -> type[Mlp]:
  """The MLP of a pooled token, which has no place on the grid."""
  mlp = MLPS[config.mlp]
  return Mlp if mlp.needs_grid else mlp


class MapPatchesPool(MapPool):
  """The same of the patches."""

  def __call__(self, tokens: jax.Array, weights: TokenWeights | None = None) -> jax.Array:
    return super().__call__(tokens[:, self.leading :], weights and weights[self.leading :])

  @staticmethod
  def multiplications(config: 'ViTConfig', tokens: int) -> int:
    return MapPool.multiplications(config, tokens - config.leading_tokens)
