"""Two towers, of images and of texts, whose features are compared (CLIP, arXiv 2103.00020; SigLIP, arXiv 2303.15343).

The image tower is a Vision Transformer without a head, the text tower the encoder's blocks on tokens of words
(text_tower.py). An image and a text that belong together are to have features of a large cosine. Classes become a head
of the image tower by their names (pretrained/zero_shot.py); fine-tuning and features are the image tower's alone.
"""

import dataclasses
import math
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.foundation.errors import UserError
from vit_jax.models import vit_flops
from vit_jax.models.base import Architecture, Model, Sharding, ShardingRules, under
from vit_jax.models.flops import Layer
from vit_jax.models.layers import unit
from vit_jax.models.parts import OneOf
from vit_jax.models.parts.pools import POOLS
from vit_jax.models.text_tower import EmbeddedTextTower, TextConfig
from vit_jax.models.token_weights import TokenWeights
from vit_jax.models.vit import ViT
from vit_jax.models.vit_config import ViTConfig
from vit_jax.options import Amount, Positive, Size


@dataclasses.dataclass(frozen=True)
class TwoTowersConfig(ViTConfig):
  """Two towers: the options of the image tower, a Vision Transformer, and those of the text tower."""

  # Tokens whose features are the image's (see model 'vit'); SigLIP's attention pooling, or CLIP's class 'token'.
  pool: Annotated[str, OneOf(POOLS)] = 'map'
  # Width of the text tower. None for the image tower's, as of the next three.
  text_width: Size | None = None
  # Hidden units of its MLPs.
  text_mlp_dim: Size | None = None
  # Depth, the number of its blocks.
  text_depth: Size | None = None
  # Number of attention heads of its blocks.
  text_heads: Size | None = None
  # Tokens of a text, N: longer ones are cut, and shorter ones filled up.
  text_length: Size = 64
  # Vocabulary, the number of different tokens; objective.tokenizer 'bytes' has 259.
  text_vocabulary: Size = 259
  # Causal attention, by which a token attends to itself and those before it, and a last layer without a bias, as in
  # CLIP; otherwise tokens attend to all.
  text_causal: bool = False
  # Number of the token behind a text, whose features are the text's, as in CLIP; 1 of 'bytes'. None for the last of
  # all text_length tokens, as in SigLIP.
  text_end: Amount | None = None
  # Initial factor of the cosines, whose logarithm is learned. SigLIP's is 10, CLIP's 1 / 0.07.
  logit_scale: Positive = 10.0
  # Initial value of what is added then, which is learned and of which a softmax does not depend.
  logit_bias: float = -10.0

  title: ClassVar[str] = 'two towers'

  @property
  def image_tower(self) -> ViTConfig:
    """The image tower as a Vision Transformer of its own."""
    return self.part_of(ViTConfig)

  @property
  def text(self) -> TextConfig:
    """The options of the text tower's blocks: its own sizes; norm, activation and dtype as the image tower."""
    sizes = self.sizes
    return TextConfig(
      variant='custom',
      patch=1,
      width=self.text_width or sizes.width,
      mlp_dim=self.text_mlp_dim or sizes.mlp_dim,
      depth=self.text_depth or sizes.depth,
      heads=self.text_heads or sizes.heads,
      pool='gap',
      class_token=False,
      **self.values('activation', 'kernel_deviation', 'norm', 'norm_epsilon', 'dtype', 'remat', 'unroll'),
      causal=self.text_causal,
      features=self.pre_logits_size or POOLS[self.pool].widths * sizes.width,
      features_bias=not self.text_causal,
    )

  @property
  def sharding_rules(self) -> ShardingRules:  # pyright: ignore[reportIncompatibleVariableOverride] (by the parts)
    return (
      *super().sharding_rules,
      (r'text_tower/embedding', ('fsdp', None), (None, 'fsdp')),  # (V, D)
      (r'text_tower/positions', (None, 'fsdp')),  # (N, D)
      (r'text_tower/projection/kernel', ('fsdp', None)),  # (D, P)
      (r'text_tower/projection/bias|logit_(scale|bias)', ()),
      *under('text_tower', self.text.sharding_rules),
    )

  def build(self, architecture: Architecture, rngs: nnx.Rngs, sharding: Sharding | None = None) -> Model:
    return TwoTowers(self, architecture, rngs, sharding)

  def for_classification(self) -> ViTConfig:
    return self.image_tower.for_classification()

  def with_cosine_head(self) -> ViTConfig:
    """The image tower, with a head of texts."""
    return self.image_tower.with_cosine_head()

  def _layers(self, architecture: Architecture, dropped: float) -> list[Layer]:
    """Those of both towers; the image tower computes no more than the rest of a share `dropped` of its patches."""
    of = self.text
    return [
      *vit_flops.without_head(self, architecture, dropped),
      *vit_flops.blocks(of, Architecture(of, (1, self.text_length), 1, 0), 'text_tower'),
      Layer('text_tower/projection', (of.features,), of.sizes.width * of.features),
    ]

  def describe(self) -> str:
    of = self.text.sizes
    images = f'{self.num_layers} blocks of width {self.sizes.width}'
    return f'Two towers, of images: {images}; of texts: {of.depth} blocks of width {of.width}'

  def check(self, path: str) -> None:
    super().check(path)
    does_not = 'which two towers do not have'
    self.check_only(path, does_not, mask_token=False, distillation_token=False, cosine_head=False)
    if not self.classifies_images:
      raise UserError(f"{path}.pool is 'none', which gives an image no features; choose map, token or gap.")
    if self.text_causal and self.text_end is None:
      raise UserError(f'{path}.text_causal needs the token that is read; set {path}.text_end (1 of bytes).')


class TwoTowers(ViT):
  """Images to their features, float32 (B, P), each of length 1; `text_features` are those of texts."""

  def __init__(
    self,
    config: TwoTowersConfig,
    architecture: Architecture,
    rngs: nnx.Rngs,
    sharding: Sharding | None = None,
  ):
    super().__init__(config, dataclasses.replace(architecture, num_classes=1), rngs, sharding)
    del self.head
    self.text_end = config.text_end
    self.text_tower = EmbeddedTextTower(
      config.text, config.text_vocabulary, config.text_length, rngs, sharding
    )
    self.logit_scale = nnx.Param(jnp.full((1,), math.log(config.logit_scale)))
    self.logit_bias = nnx.Param(jnp.full((1,), config.logit_bias))

  def __call__(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    return self.head_input(*self.encode_images(images, keys))

  def head_input(self, tokens: jax.Array, weights: TokenWeights | None = None) -> jax.Array:
    return unit(super().head_input(tokens, weights))

  def text_features(self, tokens: jax.Array) -> jax.Array:
    with jax.named_scope('text_tower'):
      return self.text_tower.of(tokens, self.text_end)

  def scale_and_bias(self) -> tuple[jax.Array, jax.Array]:
    return jnp.exp(self.logit_scale[0]), self.logit_bias[0]
