"""The Vision Transformer: 'An Image is Worth 16x16 Words' (arXiv 2010.11929), figure 1 and equations 1 to 4.

In the order of figure 1: patch embedding, class token and position embedding (`ViT.embed`, equation 1), L
encoder blocks of attention and MLP (`encoder_block.Block`, equations 2 and 3), the last norm and pooling (`ViT.pool`,
equation 4), the head. Options, sharding rules and FLOPs are in vit_config.py, named sizes in vit_sizes.py.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import initializers

from vit_jax.foundation.naflex import Patches
from vit_jax.models import axial, naflex, patch_dropout, scanned_blocks, token_merging
from vit_jax.models.base import Architecture, Grid, Model, Pooling, Sharding
from vit_jax.models.dropout import dropout, fold_in
from vit_jax.models.encoder_block import BLOCKS
from vit_jax.models.layers import PatchEmbedding, initial_head, repeat_for_examples, unit
from vit_jax.models.parts import fused_attention
from vit_jax.models.parts.norms import NORMS
from vit_jax.models.parts.pools import POOLS
from vit_jax.models.parts.positions import of_each
from vit_jax.models.token_weights import Places, TokenWeights

if TYPE_CHECKING:
  from vit_jax.models.vit_config import ViTConfig


def _learned_tokens(number: int, width: int, deviation: float, rngs: nnx.Rngs) -> nnx.Param | None:
  """Tokens (1, number, D) drawn from a normal distribution, since equal ones would stay equal; None for none."""
  return nnx.Param(initializers.normal(deviation)(rngs.params(), (1, number, width))) if number else None


def _encoder_layer(config: 'ViTConfig', grid: Grid, sharding: Sharding | None, rngs: nnx.Rngs) -> nnx.Module:
  """One of the L layers: a block, or with axial attention a row block and a column block."""
  make = functools.partial(BLOCKS[config.block], config, rngs=rngs, grid=grid, sharding=sharding)
  return axial.AxialBlock(make(axis='row'), make(axis='column'), sharding) if config.axial else make()


class ViT(Model['ViTConfig']):
  """Images to logits. `ViTConfig.build` makes one."""

  def __init__(
    self, config: 'ViTConfig', architecture: Architecture, rngs: nnx.Rngs, sharding: Sharding | None = None
  ):
    sizes, num_classes = config.sizes, architecture.num_classes
    width, dtype = sizes.width, jnp.dtype(config.dtype)
    fused_attention.check(config.attention, sizes.heads, width // sizes.heads, sharding)
    self.config = config
    self.grid = config.grid(architecture.image_size)
    self.sharding = sharding

    # NNX: a part that may be missing is assigned once, since None makes an attribute static.
    self.stem = config.stem(config, architecture.channels, sharding=sharding, rngs=rngs)
    self.patch_embedding = PatchEmbedding(
      sizes.patch,
      self.stem.outputs,
      width,
      largest=max((sizes.patch, *config.patch_sizes)),
      bias=config.patch_bias,
      dtype=dtype,
      sharding=sharding,
      rngs=rngs,
    )
    make_norm = functools.partial(NORMS[config.norm], epsilon=config.norm_epsilon)
    self.patch_norm: Any = make_norm(width) if config.patch_norm else None
    self.class_token = nnx.Param(jnp.zeros((1, 1, width))) if config.has_class_token else None
    self.position_embedding = config.positions.embedding(config.tokens(self.grid), rngs)
    self.register_tokens = _learned_tokens(config.register_tokens, width, 1e-6, rngs)
    self.mask_token = _learned_tokens(int(config.mask_token), width, 0.02, rngs)
    self.distillation_token = _learned_tokens(int(config.distillation_token), width, 0.02, rngs)
    make_layer = functools.partial(_encoder_layer, config, self.grid, sharding)
    self.blocks: Any = scanned_blocks.stack(sizes.depth, make_layer, rngs)
    self.pre_norm: Any = make_norm(width) if config.pre_norm else None
    self.norm: Any = make_norm(width) if config.final_norm == 'tokens' else None
    setattr(self, f'{config.pool}_pool', POOLS[config.pool](config, rngs=rngs))
    pooled = POOLS[config.pool].widths * width
    self.pooled_norm: Any = make_norm(pooled) if config.final_norm == 'pooled' else None
    pre_logits = None
    if config.pre_logits_size is not None:
      use_bias = config.pre_logits != 'linear'
      pre_logits = nnx.Linear(pooled, config.pre_logits_size, use_bias=use_bias, dtype=dtype, rngs=rngs)
      pooled = config.pre_logits_size
    self.pre_logits = pre_logits
    self.head = initial_head(pooled, num_classes, config.head_bias, rngs)
    second = initial_head(width, num_classes, config.head_bias, rngs) if config.distillation_token else None
    self.distillation_head = second

  def __call__(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    """The logits of images, float32 (B, K), the mean of both heads where there are two; with pool 'none' (B, N, K).

    For images of another size than the model's own, positions are resized (config.position_resize).
    """
    logits, of_teachers = self.distillation_logits(images, keys=keys)
    return logits if self.distillation_head is None else (logits + of_teachers) / 2

  def distillation_logits(
    self, images: jax.Array, *, keys: jax.Array | None = None
  ) -> tuple[jax.Array, jax.Array]:
    tokens, weights = self.encode_images(images, keys)
    with jax.named_scope('head'):
      logits = self.head(self.head_input(tokens, weights).astype(jnp.float32))
      if self.distillation_head is None:
        return logits, logits
      return logits, self.distillation_head(tokens[:, 1].astype(jnp.float32))

  def encode_images(self, images: jax.Array, keys: jax.Array | None) -> tuple[jax.Array, TokenWeights | None]:
    """The tokens of images that the head may read, (B, N, D) or some of them, and their weights if they have any.

    With keys patches are dropped, and without keys they are merged, where the model's options say so.
    """
    tokens, merged = self.without_dropped_patches(self.embed(images), keys), self.config.token_merging
    if keys is not None or not merged:
      tokens = self.encode(tokens, keys, grid=self._places_of(images), read=self._tokens_read)
      return tokens, self.weights_of(images)
    weights = TokenWeights(jnp.ones(tokens.shape[:2], jnp.float32))
    z, weights = token_merging.apply(self.blocks, tokens, weights, merged, self.leading_tokens, self._loop)
    return (z if self.norm is None else self.norm(z)), weights

  @property
  def _tokens_read(self) -> int | None:
    """The number of first tokens to which the last block may be limited, since the head reads no others; None: all.

    What a token becomes in the last block needs the others as keys and values only. None also with dropout of
    attention's weights, whose masks are numbered by all tokens.
    """
    config = self.config
    reads_all = not POOLS[config.pool].reads_first or config.whole_grid
    if reads_all or config.attention_dropout or not BLOCKS[config.block].reads_first:
      return None
    if self.blocks.attention.position is not None:
      return None
    return 1 + config.distillation_token

  def embed(self, images: jax.Array) -> jax.Array:
    """(B, H, W, C) -> (B, N, D): class and distillation token, registers, patches, with positions (equation 1)."""
    with jax.named_scope('embedding'):
      return self.add_positions(self.patches(images), images)

  def patches(self, images: jax.Array) -> jax.Array:
    """(B, H, W, C) -> (B, N, D): patch embeddings (x_p E in equation 1); UserError if they do not divide the images."""
    rows, columns = self.grid_of(images)
    if isinstance(images, Patches):
      images = images.pixels
    if self.config.cut_images:
      pixels = self.config.patch_pixels
      images = images[:, : rows * pixels, : columns * pixels]
    patches = self.patch_embedding(self.stem(images))
    return patches if self.patch_norm is None else self.patch_norm(patches)

  def _positions_of(self, images: jax.Array) -> jax.Array | None:
    """float32 (1 or B, N, D): `positions` of images, each of which may have a grid of its own."""
    if not isinstance(images, Patches):
      return self.positions((images.shape[1], images.shape[2]))
    number = math.prod(self.grid_of(images))
    return of_each(
      self.config.positions,
      self.position_embedding,
      self.config.tokens(self.grid),
      images.grids,
      number,
    )

  def add_positions(self, z: jax.Array, images: jax.Array) -> jax.Array:
    """(B, N, D) -> (B, N', D): the tokens of `embed`, from the patches of images."""
    if self.class_token is not None:
      z = jnp.concatenate([repeat_for_examples(self.class_token, z), z], axis=1)
    positions = self._positions_of(images)
    if positions is not None:
      z = z + positions.astype(z.dtype)
    learned = [tokens for tokens in (self.distillation_token, self.register_tokens) if tokens is not None]
    if learned:
      first = int(self.class_token is not None)
      others = [repeat_for_examples(tokens, z) for tokens in learned]
      z = jnp.concatenate([z[:, :first], *others, z[:, first:]], axis=1)
    z = z if self.pre_norm is None else self.pre_norm(z)
    return scanned_blocks.constrain(z, self.sharding)

  def without_dropped_patches(self, tokens: jax.Array, keys: jax.Array | None) -> jax.Array:
    """(B, N, D) -> (B, N', D): what a training step computes of the tokens of `embed`; without keys all of them."""
    if keys is None or not self.config.patch_dropout:
      return tokens
    order = self.patch_order(keys, tokens.shape[1] - self.leading_tokens)
    return self.kept_patches(tokens, order)

  def patch_order(self, keys: jax.Array, patches: int) -> jax.Array:
    """int32 (B, patches): the random order in which patches stay (patch_dropout.py)."""
    return patch_dropout.random_order(keys, patches, self.config.num_layers + 1)

  def kept_patches(self, tokens: jax.Array, order: jax.Array) -> jax.Array:
    """(B, N, D) -> (B, N', D): the tokens before the patches, and the first patches of an order (B, patches)."""
    number = patch_dropout.kept(order.shape[1], self.config.patch_dropout)
    return scanned_blocks.constrain(
      patch_dropout.keep(tokens, order[:, :number], self.leading_tokens), self.sharding
    )

  def positions(self, image_size: tuple[int, int]) -> jax.Array | None:
    """float32 (1, N, D) of the class token and the patches (E_pos in equation 1); None: nothing is added to them."""
    config = self.config
    return config.positions.added(self.position_embedding, config.tokens(self.grid), config.grid(image_size))

  def encode(
    self,
    tokens: jax.Array,
    keys: jax.Array | None = None,
    *,
    grid: Places | None = None,
    read: int | None = None,
  ) -> jax.Array:
    """(B, N, D) -> (B, N, D): dropout, the L blocks and the last LayerNorm (equations 2 to 4), of tokens of `embed`.

    `grid` is that of the patches, None for images of the model's own size; or the weights of the tokens. The result may
    be (B, read, D) where only the first `read` tokens are needed; None for all.
    """
    config = self.config
    shared: list[Any] = [grid or self.grid]
    if config.rotary_moves is not None and keys is not None:
      place = config.num_layers + 2  # behind those of blocks, of the embeddings' dropout and of patches
      shared += [config.positions.moves(fold_in(keys, place), config.rotary_moves)]
    if not (config.dropout or config.attention_dropout or config.stochastic_depth):
      keys = None
    z = dropout(tokens, config.dropout, keys, config.num_layers)  # 0 ... depth - 1: blocks
    z = scanned_blocks.apply(self.blocks, z, keys, self._loop, *shared, read=read)
    return z if self.norm is None else self.norm(z)

  def pool(
    self, tokens: jax.Array, how: Pooling | None = None, weights: TokenWeights | None = None
  ) -> jax.Array:
    """(B, N, D) -> (B, D): y of equation 4; 'token_gap' gives (B, 2 D), 'none' the tokens themselves."""
    how = how or self.config.pool
    known = tuple(dict.fromkeys((*self.config.poolings, self.config.pool, 'none')))
    if how not in known:
      raise ValueError(f'how is {how!r}, and this model pools by one of {known}')
    own = how == self.config.pool
    return (getattr(self, f'{how}_pool') if own else POOLS[how](self.config))(tokens, weights)

  def head_input(self, tokens: jax.Array, weights: TokenWeights | None = None) -> jax.Array:
    """(B, N, D) -> (B, D'): pooled, behind the layer in front of the head where there is one (config.pre_logits)."""
    x = self.pool(tokens, weights=weights)
    x = x if self.pooled_norm is None else self.pooled_norm(x)
    if self.pre_logits is not None:
      x = self.pre_logits(x)
      x = jnp.tanh(x) if self.config.pre_logits == 'tanh' else x
    return unit(x) if self.config.cosine_head else x

  def patch_logits(
    self,
    images: jax.Array,
    change: Callable[[jax.Array, jax.Array], jax.Array],
    *,
    keys: jax.Array | None = None,
  ) -> jax.Array:
    assert self.mask_token is not None, 'config.mask_token gives the model its mask token'
    patches = change(self.patches(images), self.mask_token[...])
    tokens = self.add_positions(patches, images)
    tokens = self.encode(tokens, keys, grid=self.grid_of(images))[:, -patches.shape[1] :]
    return self.head(self.head_input(tokens).astype(jnp.float32))

  def embeddings(self, images: jax.Array, layer: int | None = None, how: Pooling | None = None) -> jax.Array:
    tokens, weights = self.features(images, layer), self.weights_of(images)
    if layer is None and how is None:
      return self.head_input(tokens, weights)
    return self.pool(tokens, how, weights)

  def features(self, images: jax.Array, layer: int | None = None) -> jax.Array:
    """(B, H, W, C) -> (B, N, D), the tokens in the order of `embed`; see `Model.features`."""
    layers = scanned_blocks.blocks_before(layer, self.config.num_layers)
    z = scanned_blocks.features(self.blocks, self.embed(images), layers, self._loop, self._places_of(images))
    return z if layers is not None or self.norm is None else self.norm(z)

  def feature_maps(
    self, images: jax.Array, layers: Sequence[int | None], *, norm: bool = False
  ) -> list[jax.Array]:
    """(B, H, W, C) -> (B, h, w, D) for each of `layers`; see `Model.feature_maps`."""
    numbers = [scanned_blocks.blocks_before(layer, self.config.num_layers) for layer in layers]
    grid = self.grid_of(images)
    if isinstance(images, Patches):
      raise ValueError('images of any shape have maps of any shape; use features, or images of one size')
    if norm and self.norm is None:
      raise ValueError(
        f'norm is True, and the model has no norm of its tokens (final_norm {self.config.final_norm!r})'
      )
    tokens = scanned_blocks.features_of_several(self.blocks, self.embed(images), numbers, self._loop, grid)
    if self.norm is not None:
      tokens = [self.norm(z) if norm or number is None else z for number, z in zip(numbers, tokens)]
    return [z[:, self.leading_tokens :].reshape(z.shape[0], *grid, -1) for z in tokens]

  def attention(self, images: jax.Array) -> jax.Array:
    """The attention weights of every block (the softmax of equation 7), those of pool 'map' apart; nothing is dropped.

    Returns:
      float32 (L, B, H, N, N): each row sums to one; the tokens are in the order of `embed`. All are in memory
      at once: 4 L H N² bytes for each image (B/16 at 384 px: 192 MB). With axial attention 2 L instead of L,
      the row and the column block of each in turn.
    """
    places = self._places_of(images)
    look = lambda block, z: block.weights(z, places)
    _, weights = scanned_blocks.observe(self.blocks, self.embed(images), look, self._loop, places)
    return weights.reshape(-1, *weights.shape[-4:])

  def hidden_states(self, images: jax.Array) -> jax.Array:
    """(L + 1, B, N, D): the tokens before the first block and after each."""
    return scanned_blocks.hidden_states(self.blocks, self.embed(images), self._loop, self._places_of(images))

  @property
  def _loop(self) -> scanned_blocks.Loop:
    return scanned_blocks.Loop.of(self.config, self.config.stochastic_depth, self.sharding)

  def grid_of(self, images: jax.Array) -> Grid:
    """Rows and columns of the patches of images (B, H, W, C); of images of any shape N and 1."""
    return self.config.grid((images.shape[1], images.shape[2]), 'The image size')

  def _places_of(self, images: jax.Array) -> Places:
    """What blocks are given of the tokens of images."""
    return self.weights_of(images) or self.grid_of(images)

  def weights_of(self, images: jax.Array) -> TokenWeights | None:
    """Which tokens are padding, of images of any shape; None: the images have one grid."""
    if not isinstance(images, Patches):
      return None
    naflex.check(self.config, 'A batch')
    return naflex.token_weights(images, math.prod(self.grid_of(images)), self.leading_tokens)

  def without_positions(self) -> str:
    if self.config.position == 'none':
      return "The model knows nothing of positions: its config.model.position is 'none'."
    return f'Nothing is added to the tokens: attention itself knows of positions ({self.config.position!r}).'

  @property
  def leading_tokens(self) -> int:
    return self.config.leading_tokens

  @property
  def reads_class_token(self) -> bool:
    return self.class_token is not None and (
      POOLS[self.config.pool].reads_class_token or not self.config.classifies_images
    )
