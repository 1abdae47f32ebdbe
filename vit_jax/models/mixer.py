"""The MLP-Mixer (arXiv 2105.01601): MLPs over tokens and MLPs over channels, in turn.

Its parameters, those of the L blocks stacked; N tokens of D channels:

  patch_embedding/{kernel (P, P, C, D), bias}
  blocks/token_norm/{scale,bias} (L, D)    blocks/channel_norm/{scale,bias} (L, D)
  blocks/token_mlp/dense_in/{kernel (L, N, tokens_mlp_dim), bias}, dense_out/{kernel, bias (L, N)}
  blocks/channel_mlp/dense_in/{kernel (L, D, mlp_dim), bias}, dense_out/{kernel, bias (L, D)}
  norm/{scale,bias}, head/{kernel (D, K), bias}

ResMLP (arXiv 2105.03404) has one layer for token_mlp, Affine for norms, and token_scale and channel_scale (L, D); gMLP
(arXiv 2105.08050) has no MLP over tokens, but a gate within that over channels.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import initializers

from vit_jax.foundation.errors import UserError
from vit_jax.models import scanned_blocks, variants
from vit_jax.models.base import Architecture, Model, ModelConfig, Sharding, ShardingRules
from vit_jax.models.dense_product import Dense
from vit_jax.models.dropout import Place, drop_path
from vit_jax.models.flops import Layer
from vit_jax.models.layers import PatchEmbedding, initial_head, layer_scale, scaled
from vit_jax.models.parts import OneOf
from vit_jax.models.parts.activations import Activation
from vit_jax.models.parts.mlps import MLPS, Mlp
from vit_jax.models.parts.norms import NORMS, LayerNorm
from vit_jax.models.token_weights import Places
from vit_jax.options import NotNegative, Rate, Size


@dataclasses.dataclass(frozen=True)
class Sizes:
  """What decides the shapes of the blocks of an MLP-Mixer."""

  patch: int  # pixels along a side of a patch
  width: int  # D, the size of a token
  mlp_dim: int  # hidden units of the MLP over channels
  depth: int  # L, blocks
  tokens_mlp_dim: int = 0  # hidden units of the MLP over tokens


# Of every layer that is not said to begin otherwise, as nnx.Linear begins by itself.
_INIT: dict[str, Any] = {'kernel_init': initializers.lecun_normal(), 'bias_init': initializers.zeros}

# Table 1 of the MLP-Mixer's paper.
VARIANTS = {
  'Mixer-B/16': Sizes(patch=16, width=768, mlp_dim=3072, depth=12, tokens_mlp_dim=384),
  'Mixer-B/32': Sizes(patch=32, width=768, mlp_dim=3072, depth=12, tokens_mlp_dim=384),
  'Mixer-L/16': Sizes(patch=16, width=1024, mlp_dim=4096, depth=24, tokens_mlp_dim=512),
}

SHARDING_RULES: ShardingRules = (
  (r'patch_embedding/kernel', (None, 'fsdp')),  # (P, P, C, D)
  (r'blocks/(token|channel)_mlp/dense_(in|gate)/kernel', ('fsdp', 'tensor')),
  (r'blocks/(token|channel)_mlp/dense_(in|gate)/bias', ('tensor',)),
  (r'blocks/(token|channel)_mlp/dense_out/kernel', ('tensor', 'fsdp')),
  (r'blocks/(token_mlp|channel_mlp/gate)/kernel', ('fsdp', None)),  # (N, N)
  (r'blocks/(token_mlp|channel_mlp/gate|(token|channel)_mlp/dense_out)/bias|patch_embedding/bias', ()),
  (r'(blocks/(token_norm|channel_norm|channel_mlp/gate_norm)|norm)/(scale|bias)', ()),
  (r'blocks/(token|channel)_scale', ()),  # (D,)
  (r'head/kernel', ('fsdp', 'tensor')),  # (D, K)
  (r'head/bias', ('tensor',)),  # (K,)
)


@dataclasses.dataclass(frozen=True)
class MixerConfig(ModelConfig):
  """An MLP-Mixer. Its head reads the mean of all tokens."""

  # Named size: 'Mixer-B/16', 'Mixer-B/32', 'Mixer-L/16', or 'custom'. Each size below that is not None replaces the
  # variant's own; 'custom' needs all of them.
  variant: str = 'Mixer-B/16'
  # Pixels along a side of a patch.
  patch: Size | None = None
  # Width D, the size of a token.
  width: Size | None = None
  # Hidden units of a block's MLP over channels.
  mlp_dim: Size | None = None
  # Depth L, the number of blocks.
  depth: Size | None = None
  # Hidden units of a block's MLP over tokens, which token_mixing 'mlp' needs.
  tokens_mlp_dim: Size | None = None
  # What mixes tokens: an 'mlp', one 'linear' layer (ResMLP), or a 'gate' within the MLP over channels (gMLP).
  token_mixing: Literal['mlp', 'linear', 'gate'] = 'mlp'
  # Kind of MLP (models/parts/mlps.py): 'dense', or 'swiglu'.
  mlp: Literal['dense', 'swiglu'] = 'dense'
  # Kind of norm (models/parts/norms.py).
  norm: Annotated[str, OneOf(NORMS)] = 'layer_norm'
  # Initial value of a learned factor of each channel at the end of each branch (LayerScale). None for no factors.
  layer_scale: NotNegative | None = None
  # Activation of MLPs (models/parts/mlps.py).
  activation: Activation = 'gelu_tanh'
  # Probability that an example skips a branch of the last block (drop path); of earlier blocks in proportion
  # to their depth.
  stochastic_depth: Rate = 0.0

  title: ClassVar[str] = 'an MLP-Mixer'
  variants: ClassVar = VARIANTS
  sharding_rules: ClassVar[ShardingRules] = SHARDING_RULES
  any_image_size: ClassVar[bool] = False
  function_options: ClassVar[tuple[str, ...]] = ('activation', 'norm_epsilon')

  @property
  def sizes(self) -> Sizes:
    """The sizes of the variant, with the options that replace them; raises as `variants.resolve`."""
    needed = [
      'patch',
      'width',
      'mlp_dim',
      'depth',
      *(['tokens_mlp_dim'] if self.token_mixing == 'mlp' else []),
    ]
    return variants.resolve(self, Sizes, needed=needed)

  def build(self, architecture: Architecture, rngs: nnx.Rngs, sharding: Sharding | None = None) -> Model:
    """The network, for images of this size only. `sharding` is of the tokens (B, N, D)."""
    return Mixer(self, architecture, rngs, sharding)

  @property
  def patch_pixels(self) -> int:
    return self.sizes.patch

  @property
  def num_layers(self) -> int:
    return self.sizes.depth

  def describe(self) -> str:
    return f'MLP-Mixer, {self.sizes.depth} blocks of width {self.sizes.width}'

  def layers(self, architecture: Architecture) -> list[Layer]:
    sizes = self.sizes
    rows, columns = self.grid(architecture.image_size)
    tokens = rows * columns
    embedding = tokens * sizes.patch**2 * architecture.channels * sizes.width
    part = MLPS[self.mlp]
    over_tokens = part.multiplications(sizes.width, 0, tokens, sizes.tokens_mlp_dim)
    over_channels = part.multiplications(tokens, 0, sizes.width, sizes.mlp_dim)
    if self.token_mixing == 'linear':
      over_tokens = sizes.width * tokens**2
    elif self.token_mixing == 'gate':
      over_tokens, over_channels = 0, GatingMlp.multiplications(tokens, 0, sizes.width, sizes.mlp_dim)
    shape = (tokens, sizes.width)
    layers = [Layer('patch_embedding', shape, embedding)]
    for number in range(sizes.depth):
      layers.append(Layer(f'blocks/{number}/token', shape, over_tokens))
      layers.append(Layer(f'blocks/{number}/channel', shape, over_channels))
    classes = architecture.num_classes
    return [*layers, Layer('head', (classes,), sizes.width * classes)]


class MixerBlock(nnx.Module):
  """One block: each channel's MLP over the tokens, then each token's over the channels (equation 1)."""

  def __init__(self, tokens: int, config: MixerConfig, *, rngs: nnx.Rngs):
    sizes = config.sizes
    dtype = jnp.dtype(config.dtype)
    options = {**_INIT, 'activation': config.activation, 'dtype': dtype, 'rngs': rngs}
    norm = functools.partial(NORMS[config.norm], sizes.width, config.norm_epsilon)
    self.token_norm = norm()
    if config.token_mixing == 'linear':
      self.token_mlp: Any = nnx.Linear(tokens, tokens, **_INIT, dtype=dtype, rngs=rngs)
    else:
      self.token_mlp = MLPS[config.mlp](tokens, sizes.tokens_mlp_dim, **options)
    self.token_scale = layer_scale(sizes.width, config.layer_scale)
    self.channel_norm = norm()
    self.channel_mlp = MLPS[config.mlp](sizes.width, sizes.mlp_dim, **options)
    self.channel_scale = layer_scale(sizes.width, config.layer_scale)
    self.drops_path = config.stochastic_depth > 0

  def __call__(self, z: jax.Array, drop_path_rate: jax.Array | float, keys: jax.Array | None) -> jax.Array:
    """(B, N, D) -> (B, N, D); an example skips a branch at that rate, unless `keys`, (B,), are None."""
    keys = keys if self.drops_path else None
    with jax.named_scope('token_mlp'):
      y = scaled(self.token_mlp(self.token_norm(z).swapaxes(1, 2)).swapaxes(1, 2), self.token_scale)
      z = z + drop_path(y, drop_path_rate, keys, Place.ATTENTION_PATH)  # the place of a ViT's first branch
    with jax.named_scope('channel_mlp'):
      y = scaled(self.channel_mlp(self.channel_norm(z)), self.channel_scale)
      return z + drop_path(y, drop_path_rate, keys, Place.MLP_PATH)


class GatingMlp(Mlp):
  """An MLP over channels, half of whose hidden units are mixed over the tokens and multiply the other half (gMLP)."""

  def __init__(
    self, tokens: int, width: int, hidden: int, *, dtype: jnp.dtype, rngs: nnx.Rngs, **options: Any
  ):
    super().__init__(width, hidden, dtype=dtype, rngs=rngs, **options)
    self.gate_norm = LayerNorm(hidden, 1e-5)
    near_one = {'kernel_init': initializers.normal(1e-6), 'bias_init': initializers.ones}
    self.gate = nnx.Linear(tokens, tokens, **near_one, dtype=dtype, rngs=rngs)

  @staticmethod
  def multiplications(tokens: int, patches: int, width: int, hidden: int) -> int:
    return tokens * hidden * (3 * width + tokens)

  def make_layers(self, linear: Callable[[int, int], Dense], width: int, hidden: int) -> None:
    super().make_layers(linear, width, 2 * hidden)

  def activate(self, hidden: jax.Array, grid: Places | None) -> jax.Array:
    values, gates = jnp.split(super().activate(hidden, grid), 2, axis=-1)
    return values * self.gate(self.gate_norm(gates).swapaxes(1, 2)).swapaxes(1, 2)


class GatingBlock(nnx.Module):
  """The one branch of a block of gMLP."""

  def __init__(self, tokens: int, config: MixerConfig, *, rngs: nnx.Rngs):
    sizes = config.sizes
    self.channel_norm = NORMS[config.norm](sizes.width, config.norm_epsilon)
    options = {**_INIT, 'activation': config.activation, 'dtype': jnp.dtype(config.dtype)}
    self.channel_mlp = GatingMlp(tokens, sizes.width, sizes.mlp_dim, **options, rngs=rngs)
    self.drops_path = config.stochastic_depth > 0

  def __call__(self, z: jax.Array, drop_path_rate: jax.Array | float, keys: jax.Array | None) -> jax.Array:
    keys = keys if self.drops_path else None
    with jax.named_scope('channel_mlp'):
      return z + drop_path(self.channel_mlp(self.channel_norm(z)), drop_path_rate, keys, Place.MLP_PATH)


class Mixer(Model[MixerConfig]):
  """Images to logits. `MixerConfig.build` makes one."""

  def __init__(
    self, config: MixerConfig, architecture: Architecture, rngs: nnx.Rngs, sharding: Sharding | None = None
  ):
    sizes, channels = config.sizes, architecture.channels
    rows, columns = config.grid(architecture.image_size)
    self.config = config
    self.image_size = architecture.image_size
    self.sharding = sharding
    dtype = jnp.dtype(config.dtype)
    options = {'dtype': dtype, 'sharding': sharding, 'rngs': rngs}
    self.patch_embedding = PatchEmbedding(sizes.patch, channels, sizes.width, **options)

    block = GatingBlock if config.token_mixing == 'gate' else MixerBlock

    def make_block(rngs: nnx.Rngs) -> nnx.Module:
      return block(rows * columns, config, rngs=rngs)

    self.blocks = scanned_blocks.stack(sizes.depth, make_block, rngs)
    self.norm = NORMS[config.norm](sizes.width, config.norm_epsilon)
    self.head = initial_head(sizes.width, architecture.num_classes, config.head_bias, rngs)

  def __call__(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    """The logits, float32 (B, K), of images of the size that the model was built for."""
    keys = keys if self.config.stochastic_depth else None
    tokens = scanned_blocks.apply(self.blocks, self.embed(images), keys, self._loop)
    return self.head(self.pool(self.norm(tokens)).astype(jnp.float32))

  def embed(self, images: jax.Array) -> jax.Array:
    """(B, H, W, C) -> (B, N, D): the patch embeddings; UserError for images of another size than the model's."""
    size = (images.shape[1], images.shape[2])
    if size != self.image_size:
      raise UserError(
        f'An MLP-Mixer takes images of the size that it was built for, {self.image_size}, and these are {size}; '
        f'resize them.'
      )
    return scanned_blocks.constrain(self.patch_embedding(images), self.sharding)

  def features(self, images: jax.Array, layer: int | None = None) -> jax.Array:
    """(B, H, W, C) -> (B, N, D); see `Model.features`."""
    layers = scanned_blocks.blocks_before(layer, self.config.num_layers)
    tokens = scanned_blocks.features(self.blocks, self.embed(images), layers, self._loop)
    return self.norm(tokens) if layers is None else tokens

  def hidden_states(self, images: jax.Array) -> jax.Array:
    """(L + 1, B, N, D): the tokens before the first block and after each."""
    return scanned_blocks.hidden_states(self.blocks, self.embed(images), self._loop)

  def positions(self, image_size: tuple[int, int]) -> None:
    """Nothing is added to the tokens."""

  def without_positions(self) -> str:
    return 'An MLP-Mixer has no position embedding: its MLPs over the tokens have weights for each place.'

  @property
  def _loop(self) -> scanned_blocks.Loop:
    return scanned_blocks.Loop.of(self.config, self.config.stochastic_depth, self.sharding)
