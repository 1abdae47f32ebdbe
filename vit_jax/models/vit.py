"""The Vision Transformer: 'An Image is Worth 16x16 Words' (arXiv 2010.11929), equations 1 to 4."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import initializers

from vit_jax import config
from vit_jax.models import axial, fused_attention, position, stack
from vit_jax.models.attention import Attention
from vit_jax.models.dropout import Place, drop_path, dropout
from vit_jax.models.layers import LayerNorm, Mlp, PatchEmbedding
from vit_jax.models.resnet import Stem
from vit_jax.models.variants import Sizes, grid, has_class_token, resolve


class Block(nnx.Module):
  """One layer of the encoder (equations 2 and 3); with an axis, a half of an `axial.AxialBlock`."""

  def __init__(
    self,
    sizes: Sizes,
    model: config.Model,
    *,
    rngs: nnx.Rngs,
    patches: position.Grid,
    activation_sharding: jax.sharding.Sharding | None = None,
    axis: str | None = None,
  ):
    dtype = jnp.dtype(model.dtype)
    self.axis = axis  # 'row' or 'column': attention along it only
    reach = patches if axis is None else axial.line(patches, axis)
    self.attention_norm = LayerNorm(sizes.width, model.norm_epsilon)
    self.attention = Attention(
      sizes.width,
      sizes.heads,
      dropout=model.attention_dropout,
      dtype=dtype,
      implementation=model.attention,
      position=position.in_attention(model, sizes, reach, rngs),
      norm_epsilon=model.norm_epsilon if model.qk_norm else None,
      sharding=activation_sharding,
      rngs=rngs,
    )
    self.attention_scale = _layer_scale(sizes.width, model)
    self.mlp_norm = LayerNorm(sizes.width, model.norm_epsilon)
    self.mlp = Mlp(
      sizes.width,
      sizes.mlp_dim,
      gelu=model.gelu,
      dropout=model.dropout,
      locality=model.mlp_locality,
      dtype=dtype,
      rngs=rngs,
    )
    self.mlp_scale = _layer_scale(sizes.width, model)
    self.dropout = model.dropout
    self.skips = model.stochastic_depth > 0

  def __call__(
    self, z: jax.Array, skip_rate: jax.Array, keys: jax.Array | None, grid: position.Grid
  ) -> jax.Array:
    """(B, N, D) -> (B, N, D).

    Args:
      z: the tokens, the patches last.
      skip_rate: with which probability each branch is skipped.
      keys: (B,) of dropout, or None.
      grid: rows and columns of the patches.
    """
    path_keys = keys if self.skips else None
    y = dropout(self._attend(self.attention_norm(z), keys, grid), self.dropout, keys, Place.ATTENTION_OUT)
    y = _scaled(y, self.attention_scale)
    z = z + drop_path(y, skip_rate, path_keys, Place.ATTENTION_PATH)  # equation 2
    y = _scaled(self.mlp(self.mlp_norm(z), keys=keys, grid=grid), self.mlp_scale)
    return z + drop_path(y, skip_rate, path_keys, Place.MLP_PATH)  # equation 3

  def _attend(self, y: jax.Array, keys: jax.Array | None, grid: position.Grid) -> jax.Array:
    if self.axis is None:
      return self.attention(y, y, keys=keys, grid=grid)
    lines, line = axial.to_lines(y, grid, self.axis), axial.line(grid, self.axis)
    out = self.attention(lines, lines, keys=axial.line_keys(keys, grid, self.axis), grid=line)
    return axial.from_lines(out, grid, self.axis)

  def weights(self, z: jax.Array, grid: position.Grid) -> jax.Array:
    """(B, N, D) -> float32 (B, H, N, N): how much each token attends to each; zero where it cannot."""
    y = self.attention_norm(z)
    if self.axis is None:
      return self.attention.weights(y, y, grid)
    lines, line = axial.to_lines(y, grid, self.axis), axial.line(grid, self.axis)
    return axial.over_all_tokens(self.attention.weights(lines, lines, line), grid, self.axis)


def _layer_scale(width: int, model: config.Model) -> nnx.Param | None:
  return None if model.layer_scale is None else nnx.Param(jnp.full(width, model.layer_scale, jnp.float32))


def _scaled(y: jax.Array, scale: nnx.Param | None) -> jax.Array:
  return y if scale is None else y * scale[...].astype(y.dtype)


def _layer(
  sizes: Sizes,
  model: config.Model,
  patches: position.Grid,
  sharding: jax.sharding.Sharding | None,
  rngs: nnx.Rngs,
) -> Block | axial.AxialBlock:
  """One of the L layers."""
  make = functools.partial(Block, sizes, model, rngs=rngs, patches=patches, activation_sharding=sharding)
  return axial.AxialBlock(make(axis='row'), make(axis='column'), sharding) if model.axial else make()


class MapPool(nnx.Module):
  """Attention pooling: a learned probe attends to all tokens ('Scaling Vision Transformers', 3.3)."""

  def __init__(self, sizes: Sizes, model: config.Model, *, rngs: nnx.Rngs):
    width, dtype = sizes.width, jnp.dtype(model.dtype)
    self.probe = nnx.Param(initializers.xavier_uniform()(rngs.params(), (1, 1, width), jnp.float32))
    self.attention = Attention(width, sizes.heads, dtype=dtype, rngs=rngs)
    self.norm = LayerNorm(width, model.norm_epsilon)
    self.mlp = Mlp(width, sizes.mlp_dim, gelu=model.gelu, dtype=dtype, rngs=rngs)

  def __call__(self, tokens: jax.Array) -> jax.Array:
    """(B, N, D) -> (B, D)."""
    probe = jnp.broadcast_to(self.probe[...].astype(tokens.dtype), (len(tokens), 1, tokens.shape[-1]))
    x = self.attention(probe, tokens)
    return (x + self.mlp(self.norm(x)))[:, 0]


class ViT(nnx.Module):
  """Images to logits. `models.build` makes one from a config."""

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
    fused_attention.check(model.attention, sizes.heads, sizes.width // sizes.heads, activation_sharding)
    self.grid = grid(sizes, image_size)
    dtype = jnp.dtype(model.dtype)
    width = sizes.width
    class_token = has_class_token(model)

    stem = None
    if sizes.stem_blocks is not None:
      stem = Stem(sizes, model, channels=channels, rngs=rngs, activation_sharding=activation_sharding)
      channels = stem.outputs
    self.stem = stem
    self.patch_embedding = PatchEmbedding(sizes.patch, channels, width, dtype=dtype, rngs=rngs)
    self.class_token = nnx.Param(jnp.zeros((1, 1, width))) if class_token else None
    self.position_embedding = position.embedding(model, width, self.grid, rngs)
    registers = (1, model.register_tokens, width)
    register = initializers.normal(1e-6)  # not zeros: registers that are equal stay equal
    self.register_tokens = nnx.Param(register(rngs.params(), registers)) if model.register_tokens else None
    mask = initializers.normal(0.02)
    self.mask_token = nnx.Param(mask(rngs.params(), (1, 1, width))) if model.mask_token else None
    make = functools.partial(_layer, sizes, model, self.grid, activation_sharding)
    self.blocks = stack.stack(sizes.depth, make, rngs)
    self.norm = LayerNorm(width, model.norm_epsilon)
    self.map_pool = MapPool(sizes, model, rngs=rngs) if model.pool == 'map' else None
    pooled = 2 * width if model.pool == 'token_gap' else width
    size = model.representation_size
    self.representation = nnx.Linear(pooled, size, dtype=dtype, rngs=rngs) if size else None
    head = {'kernel_init': initializers.zeros, 'bias_init': initializers.constant(model.head_bias)}
    self.head = nnx.Linear(size or pooled, num_classes, **head, rngs=rngs)

    self.config = model
    self.sizes = sizes
    self.depth = sizes.depth
    self.activation_sharding = activation_sharding

  def __call__(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    """The logits of images.

    Args:
      images: float (B, H, W, C), in the value range the model was trained with. For another size than the
        model's own, positions are as config.Model.position says.
      keys: (B,) typed PRNG keys, one per image, of everything that is dropped; None: nothing is.

    Returns:
      float32 (B, K); with pool 'none' (B, N, K).
    """
    tokens = self.encode(self.embed(images), keys, grid=self.grid_of(images.shape[1:3]))
    return self.head(self.represent(self.pool(tokens)).astype(jnp.float32))

  def embed(self, images: jax.Array) -> jax.Array:
    """(B, H, W, C) -> (B, N, D): class token, registers and patches, with positions (equation 1)."""
    return self.place(self.patches(images), images.shape[1:3])

  def patches(self, images: jax.Array) -> jax.Array:
    """(B, H, W, C) -> (B, N, D): the patches alone, without positions."""
    return self.patch_embedding(images if self.stem is None else self.stem(images))

  def place(self, z: jax.Array, image_size: tuple[int, int]) -> jax.Array:
    """(B, N, D) -> (B, N', D): the patches of images of that size with their positions, behind the others."""
    if self.class_token is not None:
      z = jnp.concatenate([_repeat(self.class_token, z), z], axis=1)
    if (positions := self.positions(image_size)) is not None:
      z = z + positions.astype(z.dtype)
    if self.register_tokens is not None:
      first = int(self.class_token is not None)
      z = jnp.concatenate([z[:, :first], _repeat(self.register_tokens, z), z[:, first:]], axis=1)
    return stack.constrain(z, self.activation_sharding)

  def grid_of(self, image_size: tuple[int, int]) -> position.Grid:
    """Rows and columns of the patches of images of that size."""
    return grid(self.sizes, image_size)

  def positions(self, image_size: tuple[int, int]) -> jax.Array | None:
    """float32 (1, N, D): of the class token, if there is one, and of the patches of an image of that size.

    None where nothing is added to the tokens: attention knows of positions, or there are none.
    """
    wanted = self.grid_of(image_size)
    return position.added(self.position_embedding, self.config, self.sizes.width, self.grid, wanted)

  def encode(
    self, tokens: jax.Array, keys: jax.Array | None = None, *, grid: position.Grid | None = None
  ) -> jax.Array:
    """(B, N, D) -> (B, N, D): dropout, the L blocks and the last LayerNorm (equations 2 and 3).

    Args:
      tokens: of `embed`.
      keys: (B,) typed PRNG keys, or None.
      grid: rows and columns of the patches, of `grid_of`; None: of images of the model's own size.
    """
    return self.norm(self._blocks(tokens, grid or self.grid, keys))

  def features(self, images: jax.Array, layer: int | None = None) -> jax.Array:
    """(B, H, W, C) -> (B, N, D): the tokens, in the order of `embed`, without dropout.

    Args:
      images: as for the logits.
      layer: after which block, from 0 to L - 1; None or -1: after the last LayerNorm.
    """
    tokens, patches = self.embed(images), self.grid_of(images.shape[1:3])
    layers = stack.count(layer, self.depth)
    if layers is None:
      return self.encode(tokens, grid=patches)
    return self._blocks(tokens, patches, layers=layers)

  def attention(self, images: jax.Array) -> jax.Array:
    """How much each token attends to each, in every head of every block (the softmax of equation 7).

    Nothing is dropped. The weights of pool 'map' are not among them.

    Args:
      images: as for the logits.

    Returns:
      float32 (L, B, H, N, N): row i is of the token that asks, and sums to one; the tokens are in the order
      of `embed`. All are in memory at once: of one image, 4 L H N² bytes (B/16 at 384 px: 192 MB). With
      axial attention 2 L instead of L, the row and the column block of each in turn.
    """
    patches = self.grid_of(images.shape[1:3])
    _, observed = stack.apply(
      self.blocks,
      self.embed(images),
      None,
      model=self.config,
      depth=self.depth,
      shared=(patches,),
      sharding=self.activation_sharding,
      observe=lambda block, z: block.weights(z, patches),
    )
    return observed.reshape(-1, *observed.shape[-4:])

  def _blocks(
    self,
    tokens: jax.Array,
    grid: position.Grid,
    keys: jax.Array | None = None,
    layers: int | None = None,
  ) -> jax.Array:
    """(B, N, D) -> (B, N, D): dropout and the first `layers` blocks, or all."""
    model = self.config
    if not (model.dropout or model.attention_dropout or model.stochastic_depth):
      keys = None
    z = dropout(tokens, model.dropout, keys, self.depth)  # 0 ... depth - 1 are the blocks' numbers
    z, _ = stack.apply(
      self.blocks,
      z,
      keys,
      model=model,
      depth=self.depth,
      shared=(grid,),
      layers=layers,
      sharding=self.activation_sharding,
    )
    return z

  def pool(self, tokens: jax.Array, how: str | None = None) -> jax.Array:
    """(B, N, D) -> (B, D): y of equation 4; 'token_gap' gives (B, 2 D), 'none' the tokens themselves.

    Args:
      tokens: of `encode` or `features`.
      how: a value of config.Model.pool for which the model has the parts; None: its own.
    """
    how = how or self.config.pool
    first = int(self.class_token is not None)
    if how in ('gap', 'token_gap') and self.config.register_tokens:
      tokens = jnp.delete(tokens, slice(first, first + self.config.register_tokens), axis=1)
    match how:
      case 'token':
        return tokens[:, 0]
      case 'gap':
        return tokens.mean(axis=1)
      case 'token_gap':
        return jnp.concatenate([tokens[:, 0], tokens[:, 1:].mean(axis=1)], axis=-1)
      case 'map':
        return self.map_pool(tokens)
      case 'none':
        return tokens

  def represent(self, pooled: jax.Array) -> jax.Array:
    """(..., D) -> (..., R): the tanh layer of pre-training, if there is one."""
    return pooled if self.representation is None else jnp.tanh(self.representation(pooled))


def _repeat(token: nnx.Param, z: jax.Array) -> jax.Array:
  """(1, R, D) -> (B, R, D), for each example of z."""
  return jnp.broadcast_to(token[...].astype(z.dtype), (len(z), *token.shape[1:]))
