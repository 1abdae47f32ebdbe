"""Masked autoencoders (MAE, arXiv 2111.06377): an encoder of a few patches, and a light decoder of all of them.

The encoder is a Vision Transformer whose `patch_dropout` hides most patches in training, so that a step costs about a
third of a supervised one. The decoder puts a learned mask token in the place of each hidden patch and predicts its
pixels (section 3, figure 1). Fine-tuning and features are the encoder's alone.
"""

import dataclasses
import functools
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import initializers

from vit_jax.models import scanned_blocks, vit_flops
from vit_jax.models.base import Architecture, Grid, Model, Sharding, ShardingRules, under
from vit_jax.models.encoder_block import BLOCKS
from vit_jax.models.flops import Layer
from vit_jax.models.layers import repeat_for_examples
from vit_jax.models.parts import OneOf
from vit_jax.models.parts.norms import NORMS
from vit_jax.models.parts.pools import POOLS
from vit_jax.models.parts.positions import POSITIONS
from vit_jax.models.patch_dropout import kept
from vit_jax.models.vit import ViT
from vit_jax.models.vit_config import ViTConfig
from vit_jax.options import Rate, Size


@dataclasses.dataclass(frozen=True)
class MaeConfig(ViTConfig):
  """A masked autoencoder: the options of its encoder, a Vision Transformer, and those of its decoder."""

  # Share of an image's patches that a training step hides from the encoder, and whose pixels it predicts.
  patch_dropout: Rate = 0.75
  # Kind of positions of the encoder (see model 'vit'), which must be added to the tokens; the decoder's are
  # 'sincos2d_mae'.
  position: Annotated[str, OneOf(POSITIONS)] = 'sincos2d_mae'
  # Pooling: 'none', the only one for a masked autoencoder; its fine-tuning has another (see model 'vit').
  pool: Annotated[str, OneOf(POOLS)] = 'none'
  # Class token in front of the patches, of use when the encoder is fine-tuned.
  class_token: bool | None = True
  # Width of the decoder; its MLPs have four times as many hidden units.
  decoder_width: Size = 512
  # Number of the decoder's blocks.
  decoder_depth: Size = 8
  # Number of attention heads of the decoder's blocks.
  decoder_heads: Size = 16

  title: ClassVar[str] = 'a masked autoencoder'

  @property
  def decoder(self) -> ViTConfig:
    """The options of the decoder's blocks: its own sizes, no dropout, and few of the encoder's options."""
    return ViTConfig(
      variant='custom',
      patch=self.sizes.patch,
      width=self.decoder_width,
      mlp_dim=4 * self.decoder_width,
      depth=self.decoder_depth,
      heads=self.decoder_heads,
      pool='none',
      position='sincos2d_mae',
      class_token=self.has_class_token,
      register_tokens=self.register_tokens,
      **self.values(
        'activation', 'attention', 'kernel_deviation', 'norm', 'norm_epsilon', 'dtype', 'remat', 'unroll'
      ),
    )

  @property
  def encoder(self) -> ViTConfig:
    """The encoder as a Vision Transformer of its own, which sees all patches."""
    return self.part_of(ViTConfig, patch_dropout=0.0).for_classification()

  @property
  def sharding_rules(self) -> ShardingRules:  # pyright: ignore[reportIncompatibleVariableOverride] (by the parts)
    return (
      *super().sharding_rules,
      (r'decoder/embedding/kernel', ('fsdp', None)),  # (D, D')
      (r'decoder/embedding/bias', ()),
      *under('decoder', self.decoder.sharding_rules),
    )

  def build(self, architecture: Architecture, rngs: nnx.Rngs, sharding: Sharding | None = None) -> Model:
    return MaskedAutoencoder(self, architecture, rngs, sharding)

  def for_classification(self) -> ViTConfig:
    """The encoder by itself, whose positions then learn, as in the authors' fine-tuning."""
    return self.encoder.with_learned_positions()

  def pixels(self, channels: int) -> int:
    """Numbers of a patch of images with so many channels."""
    return self.patch_pixels**2 * channels

  def _layers(self, architecture: Architecture, dropped: float) -> list[Layer]:
    """Those of the encoder, of which a share `dropped` of the patches is not seen, and those of the decoder."""
    of = self.decoder
    rows, columns = self.grid(architecture.image_size)
    patches, width, pixels = rows * columns, of.sizes.width, self.pixels(architecture.channels)
    tokens = self.leading_tokens + kept(patches, dropped)
    return [
      *vit_flops.without_head(self, architecture, dropped),
      Layer('decoder/embedding', (tokens, width), tokens * self.sizes.width * width),
      *vit_flops.blocks(of, architecture, 'decoder'),
      Layer('head', (patches, pixels), patches * width * pixels),
    ]

  def describe(self) -> str:
    encoder = f'{self.num_layers} blocks of width {self.sizes.width}'
    return f'Masked autoencoder, {encoder}, decoder of {self.decoder_depth} of width {self.decoder_width}'

  def check(self, path: str) -> None:
    super().check(path)
    does_not = 'which a masked autoencoder does not have'
    self.check_only(path, does_not, pool='none', mask_token=False, distillation_token=False)
    head = {'pre_logits_size': None, 'cosine_head': False, 'head_bias': 0.0, 'final_norm': 'tokens'}
    self.check_only(path, 'which is of a head that a masked autoencoder does not have', **head)


class Decoder(nnx.Module):
  """Tokens of the encoder to tokens of all patches."""

  def __init__(self, config: MaeConfig, grid: Grid, rngs: nnx.Rngs, sharding: Sharding | None):
    """`grid`: that of the model's own image size; the sharding is of the tokens."""
    of, dtype = config.decoder, jnp.dtype(config.dtype)
    width = of.sizes.width
    self.config, self.sharding = of, sharding
    self.embedding = nnx.Linear(config.sizes.width, width, dtype=dtype, rngs=rngs)
    self.mask_token = nnx.Param(initializers.normal(0.02)(rngs.params(), (1, 1, width)))
    make_block = functools.partial(BLOCKS[of.block], of, grid=grid, sharding=sharding)
    self.blocks: Any = scanned_blocks.stack(of.sizes.depth, lambda rngs: make_block(rngs=rngs), rngs)
    self.norm = NORMS[of.norm](width, of.norm_epsilon)

  def __call__(self, tokens: jax.Array, places: jax.Array, grid: Grid) -> jax.Array:
    """(B, leading + V, D), int (B, N), the grid of N patches -> (B, N, D'): the patches, row by row.

    `places` says where each patch is among the V that the encoder has seen; from V on it has not.
    """
    leading = self.config.leading_tokens
    z = self.embedding(tokens)
    first, seen = z[:, :leading], z[:, leading:]
    hidden = jnp.broadcast_to(
      repeat_for_examples(self.mask_token, z), (z.shape[0], places.shape[1] - seen.shape[1], z.shape[2])
    )
    patches = jnp.concatenate([seen, hidden], axis=1)
    patches = jnp.take_along_axis(patches, places[..., None], axis=1)
    positions = self.config.fixed_positions(grid)
    assert positions is not None, "those of 'sincos2d_mae' are fixed"
    patches += positions[:, -places.shape[1] :].astype(z.dtype)
    z = scanned_blocks.constrain(jnp.concatenate([first, patches], axis=1), self.sharding)
    loop = scanned_blocks.Loop.of(self.config, 0.0, self.sharding)
    z = scanned_blocks.apply(self.blocks, z, None, loop, grid)
    return self.norm(z)[:, leading:]


class MaskedAutoencoder(ViT):
  """Images to the pixels of their patches; `features` are the encoder's, of all patches."""

  def __init__(
    self, config: MaeConfig, architecture: Architecture, rngs: nnx.Rngs, sharding: Sharding | None = None
  ):
    super().__init__(config, dataclasses.replace(architecture, num_classes=1), rngs, sharding)
    self.decoder = Decoder(config, self.grid, rngs, sharding)
    pixels = config.pixels(architecture.channels)
    self.head = nnx.Linear(config.decoder_width, pixels, rngs=rngs)

  def __call__(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    """As `reconstruct`, the predictions alone."""
    return self.reconstruct(images, keys)[0]

  def reconstruct(self, images: jax.Array, keys: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    tokens, grid = self.embed(images), self.grid_of(images)
    patches = tokens.shape[1] - self.leading_tokens
    if keys is None:
      order = jnp.broadcast_to(jnp.arange(patches), (images.shape[0], patches))
    else:
      order = self.patch_order(keys, patches)
      tokens = self.kept_patches(tokens, order)
    seen = tokens.shape[1] - self.leading_tokens
    places = jnp.argsort(order, axis=1)
    encoded = self.encode(tokens, keys, grid=grid)
    with jax.named_scope('decoder'):
      decoded = self.decoder(encoded, places, grid)
    with jax.named_scope('head'):
      return self.head(decoded.astype(jnp.float32)), places >= seen
