"""The Vision Transformer: 'An Image is Worth 16x16 Words' (arXiv 2010.11929), figure 1 and equations 1 to 4.

In the order of figure 1: patch embedding, class token and position embedding (`ViT.embed`, equation 1), L
encoder blocks of attention and MLP (`encoder_block.Block`, equations 2 and 3), the last norm and pooling (`ViT.pool`,
equation 4), the head. Options, named sizes, sharding rules and FLOPs are in vit_config.py.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import initializers

from vit_jax.models import axial, fused_attention, position, scanned_blocks
from vit_jax.models.base import Grid, Model, Pooling
from vit_jax.models.dropout import dropout
from vit_jax.models.encoder_block import Block
from vit_jax.models.layers import LayerNorm, PatchEmbedding, initial_head, repeat_for_examples
from vit_jax.models.map_pool import MapPool
from vit_jax.models.resnet import HybridStem
from vit_jax.models.vit_config import Sizes, ViTConfig


def _learned_tokens(number: int, width: int, deviation: float, rngs: nnx.Rngs) -> nnx.Param | None:
  """(1, number, D), from a normal distribution: tokens that are equal stay equal."""
  return nnx.Param(initializers.normal(deviation)(rngs.params(), (1, number, width))) if number else None


def _encoder_layer(
  config: ViTConfig, grid: Grid, sharding: jax.sharding.NamedSharding | None, rngs: nnx.Rngs
) -> Block | axial.AxialBlock:
  """One of the L layers: a block, or with axial attention a row block and a column block."""
  make = functools.partial(Block, config, rngs=rngs, grid=grid, activation_sharding=sharding)
  return axial.AxialBlock(make(axis='row'), make(axis='column'), sharding) if config.axial else make()


class ViT(Model[ViTConfig]):
  """Images to logits. `ViTConfig.build` makes one."""

  def __init__(
    self,
    config: ViTConfig,
    *,
    image_size: tuple[int, int],
    channels: int,
    num_classes: int,
    rngs: nnx.Rngs,
    activation_sharding: jax.sharding.NamedSharding | None = None,
  ):
    sizes: Sizes = config.sizes
    width, dtype = sizes.width, jnp.dtype(config.dtype)
    fused_attention.check(config.attention, sizes.heads, width // sizes.heads, activation_sharding)
    self.config = config
    self.grid = config.grid(image_size)
    self.activation_sharding = activation_sharding

    # NNX: a part that may be missing is assigned once, since None makes an attribute static.
    stem = None
    if sizes.stem_blocks is not None:
      stem = HybridStem(
        sizes.stem_width,
        sizes.stem_blocks,
        channels=channels,
        dtype=dtype,
        norm_epsilon=config.norm_epsilon,
        remat=config.remat,
        unroll=bool(config.unroll),
        rngs=rngs,
        activation_sharding=activation_sharding,
      )
      channels = stem.outputs
    self.stem = stem
    self.patch_embedding = PatchEmbedding(sizes.patch, channels, width, dtype=dtype, rngs=rngs)
    self.class_token = nnx.Param(jnp.zeros((1, 1, width))) if config.has_class_token else None
    self.position_embedding = position.learned_embedding(
      config.position,
      width,
      self.grid,
      class_token=config.has_class_token,
      method=config.position_resize,
      rngs=rngs,
    )
    self.register_tokens = _learned_tokens(config.register_tokens, width, 1e-6, rngs)
    self.mask_token = _learned_tokens(int(config.mask_token), width, 0.02, rngs)
    self.distillation_token = _learned_tokens(int(config.distillation_token), width, 0.02, rngs)
    make_layer = functools.partial(_encoder_layer, config, self.grid, activation_sharding)
    self.blocks: Any = scanned_blocks.stack(sizes.depth, make_layer, rngs)  # of Block, or of axial.AxialBlock
    self.norm = LayerNorm(width, config.norm_epsilon)
    self.map_pool = MapPool(config, rngs=rngs) if config.pool == 'map' else None
    pooled = 2 * width if config.pool == 'token_gap' else width
    pre_logits = None
    if config.pre_logits_size is not None:
      pre_logits = nnx.Linear(pooled, config.pre_logits_size, dtype=dtype, rngs=rngs)
      pooled = config.pre_logits_size
    self.pre_logits = pre_logits
    self.head = initial_head(pooled, num_classes, config.head_bias, rngs)
    second = initial_head(width, num_classes, config.head_bias, rngs) if config.distillation_token else None
    self.distillation_head = second

  def __call__(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    """The logits of images; for another size than the model's own, positions are resized (config.position).

    Returns:
      float32 (B, K), of two heads the mean; with pool 'none' (B, N, K).
    """
    logits, of_teachers = self.distillation_logits(images, keys=keys)
    return logits if self.distillation_head is None else (logits + of_teachers) / 2

  def distillation_logits(
    self, images: jax.Array, *, keys: jax.Array | None = None
  ) -> tuple[jax.Array, jax.Array]:
    tokens = self.encode(self.embed(images), keys, grid=self.grid_of(images), read=self._tokens_read)
    with jax.named_scope('head'):
      logits = self.head(self.head_input(tokens).astype(jnp.float32))
      if self.distillation_head is None:
        return logits, logits
      return logits, self.distillation_head(tokens[:, 1].astype(jnp.float32))

  @property
  def _tokens_read(self) -> int | None:
    """How many of the first tokens the head reads, where the last block can do without the others; None: all.

    What a token becomes in the last block needs the others as keys and values only. Not with dropout of attention's
    weights, whose masks are numbered by all tokens.
    """
    config = self.config
    if config.pool != 'token' or config.axial or config.mlp_locality or config.attention_dropout:
      return None
    return 1 + config.distillation_token if self.blocks.attention.position is None else None

  def embed(self, images: jax.Array) -> jax.Array:
    """(B, H, W, C) -> (B, N, D): class and distillation token, registers, patches, with positions (equation 1)."""
    with jax.named_scope('embedding'):
      return self.add_positions(self.patches(images), images.shape[1:3])

  def patches(self, images: jax.Array) -> jax.Array:
    """(B, H, W, C) -> (B, N, D): the patch embeddings alone (x_p E in equation 1).

    Raises:
      UserError: the patches do not divide the images.
    """
    self.grid_of(images)
    return self.patch_embedding(images if self.stem is None else self.stem(images))

  def add_positions(self, z: jax.Array, image_size: tuple[int, ...]) -> jax.Array:
    """(B, N, D) -> (B, N', D): the tokens of `embed`, from the patches of images of that size."""
    if self.class_token is not None:
      z = jnp.concatenate([repeat_for_examples(self.class_token, z), z], axis=1)
    positions = self.positions((image_size[0], image_size[1]))
    if positions is not None:
      z = z + positions.astype(z.dtype)
    learned = [tokens for tokens in (self.distillation_token, self.register_tokens) if tokens is not None]
    if learned:
      first = int(self.class_token is not None)
      others = [repeat_for_examples(tokens, z) for tokens in learned]
      z = jnp.concatenate([z[:, :first], *others, z[:, first:]], axis=1)
    return scanned_blocks.constrain(z, self.activation_sharding)

  def positions(self, image_size: tuple[int, int]) -> jax.Array | None:
    """float32 (1, N, D) of the class token and the patches (E_pos in equation 1).

    None where nothing is added to the tokens: attention knows of positions, or the model knows of none.
    """
    grid, class_token = self.config.grid(image_size), self.config.has_class_token
    if isinstance(self.position_embedding, position.AxisEmbeddings):
      return self.position_embedding(grid)
    if self.position_embedding is not None:
      own = self.position_embedding[...]
    else:
      fixed = self.config.fixed_positions(self.grid)
      if fixed is None:
        return None
      own = jnp.asarray(fixed)
    method = self.config.position_resize
    return position.resize_embedding(own, self.grid, grid, class_token=class_token, method=method)

  def encode(
    self,
    tokens: jax.Array,
    keys: jax.Array | None = None,
    *,
    grid: Grid | None = None,
    read: int | None = None,
  ) -> jax.Array:
    """(B, N, D) -> (B, N, D): dropout, the L blocks and the last LayerNorm (equations 2 to 4).

    Args:
      tokens: of `embed`.
      keys: (B,) typed PRNG keys, or None.
      grid: rows and columns of the patches, of `grid_of`; None: of images of the model's own size.
      read: of the result only the first so many tokens are needed: then it may be (B, read, D).
    """
    return self.norm(self._apply_blocks(tokens, grid or self.grid, keys, read=read)[0])

  def pool(self, tokens: jax.Array, how: Pooling | None = None) -> jax.Array:
    """(B, N, D) -> (B, D): y of equation 4; 'token_gap' gives (B, 2 D), 'none' the tokens themselves."""
    how = how or self.config.pool
    known = tuple(dict.fromkeys((*self.config.poolings, self.config.pool, 'none')))
    if how not in known:
      raise ValueError(f'how is {how!r}, and this model pools by one of {known}')
    if how == 'map':
      assert self.map_pool is not None
      return self.map_pool(tokens)
    if how == 'token':
      return tokens[:, 0]
    if how == 'none':
      return tokens
    first, patches = int(self.class_token is not None), self.leading_tokens
    if patches > first:
      tokens = jnp.delete(tokens, slice(first, patches), axis=1)
    if how == 'gap':
      return tokens.mean(axis=1)
    return jnp.concatenate([tokens[:, 0], tokens[:, 1:].mean(axis=1)], axis=-1)

  def head_input(self, tokens: jax.Array) -> jax.Array:
    """(B, N, D) -> (B, D'): pooled, behind the tanh layer of the paper's pre-training where there is one."""
    pooled = self.pool(tokens)
    return pooled if self.pre_logits is None else jnp.tanh(self.pre_logits(pooled))

  def patch_logits(
    self,
    images: jax.Array,
    change: Callable[[jax.Array, jax.Array], jax.Array],
    *,
    keys: jax.Array | None = None,
  ) -> jax.Array:
    assert self.mask_token is not None, 'config.mask_token gives the model its mask token'
    patches = change(self.patches(images), self.mask_token[...])
    tokens = self.add_positions(patches, images.shape[1:3])
    tokens = self.encode(tokens, keys, grid=self.grid_of(images))[:, -patches.shape[1] :]
    return self.head(self.head_input(tokens).astype(jnp.float32))

  def features(self, images: jax.Array, layer: int | None = None) -> jax.Array:
    """(B, H, W, C) -> (B, N, D), the tokens in the order of `embed`; see `Model.features`."""
    grid = self.grid_of(images)
    layers = scanned_blocks.blocks_before(layer, self.config.num_layers)
    tokens, _ = self._apply_blocks(self.embed(images), grid, layers=layers)
    return self.norm(tokens) if layers is None else tokens

  def attention(self, images: jax.Array) -> jax.Array:
    """The attention weights of every block (the softmax of equation 7); nothing is dropped.

    The weights of pool 'map' are not among them.

    Returns:
      float32 (L, B, H, N, N): each row sums to one; the tokens are in the order of `embed`. All are in memory
      at once: of one image, 4 L H N² bytes (B/16 at 384 px: 192 MB). With axial attention 2 L instead of L,
      the row and the column block of each in turn.
    """
    grid = self.grid_of(images)
    _, weights = self._apply_blocks(self.embed(images), grid, observe=lambda block, z: block.weights(z, grid))
    assert weights is not None
    return weights.reshape(-1, *weights.shape[-4:])

  def hidden_states(self, images: jax.Array) -> jax.Array:
    """(L + 1, B, N, D): the tokens before the first block and after each."""
    last, inputs = self._apply_blocks(self.embed(images), self.grid_of(images), observe=lambda block, z: z)
    assert inputs is not None
    return jnp.concatenate([inputs, last[None]])

  def grid_of(self, images: jax.Array) -> Grid:
    """Rows and columns of the patches of images (B, H, W, C)."""
    return self.config.grid((images.shape[1], images.shape[2]), 'The image size')

  def without_positions(self) -> str:
    if self.config.position == 'none':
      return "The model knows nothing of positions: its config.model.position is 'none'."
    return f'Nothing is added to the tokens: attention itself knows of positions ({self.config.position!r}).'

  def filters(self) -> tuple[str, jax.Array]:
    """The patch embedding's; of a hybrid the root's, since its patches are cut from feature maps."""
    if self.stem is not None:
      return "ResNet's first convolution", self.stem.root.kernel[...]
    return 'patch embedding', self.patch_embedding.kernel[...]

  @property
  def leading_tokens(self) -> int:
    return self.config.leading_tokens

  @property
  def reads_class_token(self) -> bool:
    return self.class_token is not None and self.config.pool not in ('gap', 'map')

  def _apply_blocks(
    self,
    tokens: jax.Array,
    grid: Grid,
    keys: jax.Array | None = None,
    *,
    layers: int | None = None,
    read: int | None = None,
    observe: Any = None,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Dropout and the first `layers` blocks, or all: see `scanned_blocks.apply`."""
    config, depth = self.config, self.config.num_layers
    if not (config.dropout or config.attention_dropout or config.stochastic_depth):
      keys = None
    z = dropout(tokens, config.dropout, keys, depth)  # 0 ... depth - 1 are the blocks' numbers
    alone = keys is None and observe is None and not config.axial and not config.mlp_locality
    return scanned_blocks.apply(
      self.blocks,
      z,
      keys,
      depth=depth,
      drop_path=config.stochastic_depth,
      remat=config.remat,
      unroll=bool(config.unroll),
      shared=(grid,),
      layers=layers,
      read=read,
      in_groups=alone and self.blocks.attention.takes_groups(z.shape[1]),
      sharding=self.activation_sharding,
      observe=observe,
    )
