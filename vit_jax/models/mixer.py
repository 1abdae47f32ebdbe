"""The MLP-Mixer (arXiv 2105.01601): MLPs over tokens and MLPs over channels, in turn.

Its parameters, those of the L blocks stacked; N tokens of D channels:

  patch_embedding/{kernel (P, P, C, D), bias}
  blocks/token_norm/{scale,bias} (L, D)    blocks/channel_norm/{scale,bias} (L, D)
  blocks/token_mlp/dense_in/{kernel (L, N, tokens_mlp_dim), bias}, dense_out/{kernel, bias (L, N)}
  blocks/channel_mlp/dense_in/{kernel (L, D, mlp_dim), bias}, dense_out/{kernel, bias (L, D)}
  norm/{scale,bias}, head/{kernel (D, K), bias}
"""

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import initializers

from vit_jax import config
from vit_jax.errors import UserError
from vit_jax.models import stack
from vit_jax.models.dropout import Place, drop_path
from vit_jax.models.layers import LayerNorm, Mlp, PatchEmbedding
from vit_jax.models.variants import Sizes, check_options, grid, resolve


class MixerBlock(nnx.Module):
  """A layer: each channel's MLP over the tokens, then each token's over the channels (equation 1)."""

  def __init__(self, tokens: int, sizes: Sizes, model: config.Model, *, rngs: nnx.Rngs):
    options = {
      'gelu': model.gelu,
      'init': {'kernel_init': initializers.lecun_normal(), 'bias_init': initializers.zeros},
      'dtype': jnp.dtype(model.dtype),
      'rngs': rngs,
    }
    self.token_norm = LayerNorm(sizes.width, model.norm_epsilon)
    self.token_mlp = Mlp(tokens, sizes.tokens_mlp_dim, **options)
    self.channel_norm = LayerNorm(sizes.width, model.norm_epsilon)
    self.channel_mlp = Mlp(sizes.width, sizes.mlp_dim, **options)
    self.skips = model.stochastic_depth > 0

  def __call__(self, z: jax.Array, skip_rate: jax.Array, keys: jax.Array | None) -> jax.Array:
    """(B, N, D) -> (B, N, D); each branch is skipped with probability `skip_rate`."""
    keys = keys if self.skips else None
    y = self.token_mlp(self.token_norm(z).swapaxes(1, 2)).swapaxes(1, 2)
    z = z + drop_path(y, skip_rate, keys, Place.ATTENTION_PATH)  # whose place it takes
    return z + drop_path(self.channel_mlp(self.channel_norm(z)), skip_rate, keys, Place.MLP_PATH)


class Mixer(nnx.Module):
  """Images to logits. `models.build` makes one from a config; what it can do is what `ViT` can."""

  def __init__(
    self,
    model: config.Model,
    *,
    image_size: tuple[int, int],
    channels: int,
    num_classes: int,
    rngs: nnx.Rngs,
    activation_sharding: jax.sharding.Sharding | None = None,
  ):
    _check(model)
    sizes = resolve(model)
    rows, columns = grid(sizes, image_size)
    dtype = jnp.dtype(model.dtype)
    make = lambda rngs: MixerBlock(rows * columns, sizes, model, rngs=rngs)
    self.patch_embedding = PatchEmbedding(sizes.patch, channels, sizes.width, dtype=dtype, rngs=rngs)
    self.blocks = stack.stack(sizes.depth, make, rngs)
    self.norm = LayerNorm(sizes.width, model.norm_epsilon)
    head = {'kernel_init': initializers.zeros, 'bias_init': initializers.constant(model.head_bias)}
    self.head = nnx.Linear(sizes.width, num_classes, **head, rngs=rngs)

    self.config = model
    self.depth = sizes.depth
    self.activation_sharding = activation_sharding

  def __call__(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    """The logits of images.

    Args:
      images: float (B, H, W, C), of the size the model was built for.
      keys: (B,) typed PRNG keys of stochastic depth, one per image; None: nothing is skipped.

    Returns:
      float32 (B, K).
    """
    tokens = self.encode(self.embed(images), keys)
    return self.head(self.pool(tokens).astype(jnp.float32))

  def embed(self, images: jax.Array) -> jax.Array:
    """(B, H, W, C) -> (B, N, D): the patches."""
    return stack.constrain(self.patch_embedding(images), self.activation_sharding)

  def encode(self, tokens: jax.Array, keys: jax.Array | None = None) -> jax.Array:
    """(B, N, D) -> (B, N, D): the L blocks and the last LayerNorm."""
    return self.norm(self._blocks(tokens, keys))

  def features(self, images: jax.Array, layer: int | None = None) -> jax.Array:
    """(B, H, W, C) -> (B, N, D): tokens after block `layer` (from 0); None, -1: after the last LayerNorm."""
    tokens, layers = self.embed(images), stack.count(layer, self.depth)
    return self.encode(tokens) if layers is None else self._blocks(tokens, layers=layers)

  def attention(self, images: jax.Array) -> jax.Array:
    """Raises UserError: there is none."""
    raise UserError('An MLP-Mixer has no attention to show; choose a Vision Transformer or a hybrid.')

  def pool(self, tokens: jax.Array, how: str | None = None) -> jax.Array:
    """(B, N, D) -> (B, D): their mean, the only way of a Mixer."""
    del how
    return tokens.mean(axis=1)

  def represent(self, pooled: jax.Array) -> jax.Array:
    """What the head reads is what was pooled."""
    return pooled

  def _blocks(self, tokens: jax.Array, keys: jax.Array | None = None, layers: int | None = None) -> jax.Array:
    z, _ = stack.apply(
      self.blocks,
      tokens,
      keys if self.config.stochastic_depth else None,
      model=self.config,
      depth=self.depth,
      layers=layers,
      sharding=self.activation_sharding,
    )
    return z


_OPTIONS = {
  *('variant', 'patch', 'width', 'mlp_dim', 'depth', 'tokens_mlp_dim', 'stem_width', 'pool', 'gelu'),
  *('norm_epsilon', 'stochastic_depth', 'head_bias', 'dtype', 'remat', 'unroll'),
}


def _check(model: config.Model) -> None:
  """Raises UserError where an option is set that would do nothing."""
  if model.pool != 'gap':
    raise UserError(f"config.model.pool is {model.pool!r}; an MLP-Mixer has 'gap', the mean of its tokens.")
  check_options(model, _OPTIONS, 'an MLP-Mixer')
