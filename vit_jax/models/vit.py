"""The Vision Transformer: 'An Image is Worth 16x16 Words' (arXiv 2010.11929), equations 1 to 4."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx import initializers

from vit_jax import config
from vit_jax.errors import UserError
from vit_jax.models.attention import Attention
from vit_jax.models.dropout import Place, drop_path, dropout, fold_in
from vit_jax.models.layers import LayerNorm, Mlp, PatchEmbedding
from vit_jax.models.variants import Sizes, resolve


class Block(nnx.Module):
  """One layer of the encoder (equations 2 and 3)."""

  def __init__(self, sizes: Sizes, model: config.Model, *, rngs: nnx.Rngs):
    dtype = jnp.dtype(model.dtype)
    self.attention_norm = LayerNorm(sizes.width)
    self.attention = Attention(
      sizes.width, sizes.heads, dropout=model.attention_dropout, dtype=dtype, rngs=rngs
    )
    self.mlp_norm = LayerNorm(sizes.width)
    self.mlp = Mlp(sizes.width, sizes.mlp_dim, dropout=model.dropout, dtype=dtype, rngs=rngs)
    self.dropout = model.dropout
    self.skips = model.stochastic_depth > 0

  def __call__(self, z: jax.Array, skip_rate: jax.Array, keys: jax.Array | None) -> jax.Array:
    """(B, N, D) -> (B, N, D); each branch is skipped with probability `skip_rate`."""
    path_keys = keys if self.skips else None
    y = self.attention_norm(z)
    y = dropout(self.attention(y, y, keys=keys), self.dropout, keys, Place.ATTENTION_OUT)
    z = z + drop_path(y, skip_rate, path_keys, Place.ATTENTION_PATH)  # equation 2
    y = self.mlp(self.mlp_norm(z), keys=keys)
    return z + drop_path(y, skip_rate, path_keys, Place.MLP_PATH)  # equation 3


class MapPool(nnx.Module):
  """Attention pooling: a learned probe attends to all tokens ('Scaling Vision Transformers', 3.3)."""

  def __init__(self, sizes: Sizes, *, dtype: jnp.dtype, rngs: nnx.Rngs):
    width = sizes.width
    self.probe = nnx.Param(initializers.xavier_uniform()(rngs.params(), (1, 1, width), jnp.float32))
    self.attention = Attention(width, sizes.heads, dtype=dtype, rngs=rngs)
    self.norm = LayerNorm(width)
    self.mlp = Mlp(width, sizes.mlp_dim, dtype=dtype, rngs=rngs)

  def __call__(self, tokens: jax.Array) -> jax.Array:
    """(B, N, D) -> (B, D)."""
    probe = jnp.broadcast_to(self.probe[...].astype(tokens.dtype), (len(tokens), 1, tokens.shape[-1]))
    x = self.attention(probe, tokens)
    return (x + self.mlp(self.norm(x)))[:, 0]


class ViT(nnx.Module):
  """Images to logits. `build` makes one from a config."""

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
    sizes = resolve(model)
    grid = _grid(image_size, sizes.patch)
    dtype = jnp.dtype(model.dtype)
    width = sizes.width
    class_token = model.pool == 'token' if model.class_token is None else model.class_token

    self.patch_embedding = PatchEmbedding(sizes.patch, channels, width, dtype=dtype, rngs=rngs)
    self.class_token = nnx.Param(jnp.zeros((1, 1, width))) if class_token else None
    length = grid[0] * grid[1] + class_token
    position = initializers.normal(0.02)(rngs.params(), (1, length, width), jnp.float32)
    self.position_embedding = nnx.Param(position)
    self.blocks = _stack(sizes.depth, lambda rngs: Block(sizes, model, rngs=rngs), rngs)
    self.norm = LayerNorm(width)
    self.map_pool = MapPool(sizes, dtype=dtype, rngs=rngs) if model.pool == 'map' else None
    size = model.representation_size
    self.representation = nnx.Linear(width, size, dtype=dtype, rngs=rngs) if size else None
    head = {'kernel_init': initializers.zeros, 'bias_init': initializers.constant(model.head_bias)}
    self.head = nnx.Linear(size or width, num_classes, **head, rngs=rngs)

    self.config = model
    self.depth = sizes.depth
    self.activation_sharding = activation_sharding

  def __call__(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    """The logits of images.

    Args:
      images: float (B, H, W, C), in the value range the model was trained with.
      keys: (B,) typed PRNG keys, one per image, of everything that is dropped; None: nothing is.

    Returns:
      float32 (B, K); with pool 'none' (B, N, K).
    """
    tokens = self.encode(self.embed(images), keys)
    return self.head(self.represent(self.pool(tokens)).astype(jnp.float32))

  def embed(self, images: jax.Array) -> jax.Array:
    """(B, H, W, C) -> (B, N, D): patches, class token if there is one, and positions (equation 1)."""
    z = self.patch_embedding(images)
    if self.class_token is not None:
      token = jnp.broadcast_to(self.class_token[...].astype(z.dtype), (len(z), 1, z.shape[-1]))
      z = jnp.concatenate([token, z], axis=1)
    return self._constrain(z + self.position_embedding[...].astype(z.dtype))

  def encode(self, tokens: jax.Array, keys: jax.Array | None = None) -> jax.Array:
    """(B, N, D) -> (B, N, D): dropout, the L blocks and the last LayerNorm (equations 2 and 3)."""
    model = self.config
    if not (model.dropout or model.attention_dropout or model.stochastic_depth):
      keys = None
    z = dropout(tokens, model.dropout, keys, self.depth)  # 0 ... depth - 1 are the blocks' numbers
    graphdef, blocks = nnx.split(self.blocks)

    def body(z, inputs):
      block, layer, skip_rate = inputs
      layer_keys = None if keys is None else fold_in(keys, layer)
      return self._constrain(nnx.merge(graphdef, block)(z, skip_rate, layer_keys)), None

    skip_rates = np.linspace(model.stochastic_depth, 0, self.depth, dtype=np.float32)[::-1]
    inputs = blocks, np.arange(self.depth), skip_rates
    z, _ = jax.lax.scan(self._rematerialised(body), z, inputs, unroll=self.depth if model.unroll else 1)
    return self.norm(z)

  def pool(self, tokens: jax.Array) -> jax.Array:
    """(B, N, D) -> (B, D): y of equation 4; with pool 'none' the tokens themselves."""
    match self.config.pool:
      case 'token':
        return tokens[:, 0]
      case 'gap':
        return tokens.mean(axis=1)
      case 'map':
        return self.map_pool(tokens)
      case 'none':
        return tokens

  def represent(self, pooled: jax.Array) -> jax.Array:
    """(..., D) -> (..., R): the tanh layer of pre-training, if there is one."""
    return pooled if self.representation is None else jnp.tanh(self.representation(pooled))

  def _constrain(self, z: jax.Array) -> jax.Array:
    """Keeps the residual stream split as it should be; left alone, the partitioner chooses badly."""
    if self.activation_sharding is None:
      return z
    return jax.lax.with_sharding_constraint(z, self.activation_sharding)

  def _rematerialised(self, body):
    """The scan's body, of which the backward pass computes again what `remat` says."""
    # Only a loop keeps XLA from merging what is computed again with what was computed first.
    checkpoint = functools.partial(jax.checkpoint, prevent_cse=self.config.unroll)
    match self.config.remat:
      case 'none':
        return body
      case 'block':
        return checkpoint(body)
      case 'dots':
        # Saves the products with kernels. Those of attention have batch dimensions (example, head)
        # and are computed again: B*H*N*N numbers are the largest of a block, and cheap.
        return checkpoint(body, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)


def build(
  model: config.Model,
  *,
  image_size: tuple[int, int],
  channels: int,
  num_classes: int,
  rngs: nnx.Rngs,
  activation_sharding: jax.sharding.Sharding | None = None,
) -> ViT:
  """The Vision Transformer of a config, with initial parameters.

  Args:
    model: its sizes and options.
    image_size: height and width in pixels, multiples of the patch.
    channels: of the images.
    num_classes: K.
    rngs: where the initial parameters come from; `nnx.eval_shape` of a build allocates nothing.
    activation_sharding: of the residual stream (B, N, D), kept up after the embedding and every block.

  Raises:
    UserError: sizes that are unknown, missing, or do not go together.
  """
  return ViT(
    model,
    image_size=image_size,
    channels=channels,
    num_classes=num_classes,
    rngs=rngs,
    activation_sharding=activation_sharding,
  )


def _stack(depth: int, make, rngs: nnx.Rngs) -> nnx.Module:
  """`depth` modules as one, whose parameters have a leading axis of that size."""
  return nnx.split_rngs(splits=depth)(nnx.vmap(make, in_axes=0, out_axes=0))(rngs)


def _grid(image_size: tuple[int, int], patch: int) -> tuple[int, int]:
  """Patches down and across."""
  if all(side % patch == 0 for side in image_size):
    return image_size[0] // patch, image_size[1] // patch
  below = tuple(max(side // patch, 1) * patch for side in image_size)
  above = tuple(-(-side // patch) * patch for side in image_size)
  nearest = ' or '.join(str(size) for size in dict.fromkeys((below, above)))
  raise UserError(
    f'config.data.image_size {tuple(image_size)} does not divide into patches of {patch} pixels; '
    f'the nearest sizes that do are {nearest}.'
  )
