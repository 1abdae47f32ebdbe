"""The ResNets of 'Big Transfer' (BiT, arXiv 1912.11370).

They apply norm and ReLU before each convolution (ResNet v2). Their parameters, for stages b = 1, 2 ... and
bottlenecks u = 1, 2 ... of a stage, of a root of W channels:

  root/kernel (7, 7, C, W)
  block{b}/unit{u}/norm1/{scale,bias} (input,)       block{b}/unit{u}/conv1/kernel (1, 1, input, w)
  block{b}/unit{u}/norm2/{scale,bias} (w,)           block{b}/unit{u}/conv2/kernel (3, 3, w, w)
  block{b}/unit{u}/norm3/{scale,bias} (w,)           block{b}/unit{u}/conv3/kernel (1, 1, w, 4 w)
  block{b}/unit{u}/projection/kernel (1, 1, input, 4 w), in the first unit of a stage
  norm/{scale,bias}, head/{kernel (D, K), bias}

where w = W * 2**(b - 1), and D is 4 w of the last stage.
"""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.foundation.errors import UserError
from vit_jax.models import flops, scanned_blocks, variants
from vit_jax.models.base import Architecture, FirstLayer, Model, ModelConfig, Sharding, ShardingRules
from vit_jax.models.convolutions import (
  BIT,
  Bottleneck,
  Conv,
  GroupNorm,
  StandardisedConv,
  add_stages,
  check_stage_sizes,
)
from vit_jax.models.flops import Layer
from vit_jax.models.layers import initial_head
from vit_jax.models.max_pool import max_pool
from vit_jax.options import Positive, Size


@dataclasses.dataclass(frozen=True)
class Sizes:
  """What decides the shapes of a BiT ResNet, whose first stage has 4 times the root's channels."""

  blocks: tuple[int, ...]  # bottlenecks in each stage
  width: int  # channels of the root


# Of the names R50x3, 50 is the number of layers and 3 the factor of the width.
VARIANTS = {
  'R50x1': Sizes((3, 4, 6, 3), width=64),
  'R50x2': Sizes((3, 4, 6, 3), width=128),
  'R50x3': Sizes((3, 4, 6, 3), width=192),
  'R101x1': Sizes((3, 4, 23, 3), width=64),
  'R101x3': Sizes((3, 4, 23, 3), width=192),
  'R152x1': Sizes((3, 8, 36, 3), width=64),
  'R152x2': Sizes((3, 8, 36, 3), width=128),
  'R152x4': Sizes((3, 8, 36, 3), width=256),
  'R200x3': Sizes((3, 24, 36, 3), width=192),
}

SHARDING_RULES: ShardingRules = (
  (r'(root|block\d+/unit\d+/(conv\d|projection))/kernel', ('fsdp',)),  # (h, w, inputs, outputs)
  (r'(block\d+/unit\d+/norm\d|norm)/(scale|bias)', ()),
  (r'head/kernel', ('fsdp', 'tensor')),  # (D, K)
  (r'head/bias', ('tensor',)),  # (K,)
)


@dataclasses.dataclass(frozen=True)
class ResNetConfig(ModelConfig):
  """A ResNet of 'Big Transfer'. Its head reads the mean of the last feature map."""

  # Named size, 'R50x1' … 'R200x3', or 'custom', which needs blocks and width.
  variant: str = 'R50x1'
  # Bottlenecks in each stage.
  blocks: tuple[Size, ...] | None = None
  # Channels of the root, a multiple of 32.
  width: Size | None = None
  # Epsilon of every group norm; 1e-5 in the published models.
  norm_epsilon: Positive = dataclasses.field(default=1e-5, kw_only=True)

  title: ClassVar[str] = 'a ResNet'
  variants: ClassVar = VARIANTS
  sharding_rules: ClassVar[ShardingRules] = SHARDING_RULES

  @property
  def sizes(self) -> Sizes:
    """The sizes of the variant, with the options that replace them; UserError for those that no ResNet has."""
    sizes = variants.resolve(self, Sizes, needed=('blocks', 'width'))
    check_stage_sizes(width=sizes.width, blocks=sizes.blocks)
    if not sizes.blocks:
      raise UserError('config.model.blocks is (); give at least one stage, as (3, 4, 6, 3).')
    return sizes

  def build(self, architecture: Architecture, rngs: nnx.Rngs, sharding: Sharding | None = None) -> Model:
    """The network, for images of any size. `sharding` is of the feature maps (B, H, W, C)."""
    return ResNet(self, architecture, rngs, sharding)

  @property
  def patch_pixels(self) -> int:
    """4 pixels a cell after the root and its pooling, doubled by each later stage."""
    return 4 * 2 ** (len(self.sizes.blocks) - 1)

  @property
  def num_layers(self) -> int:
    """Bottlenecks in all stages."""
    return sum(self.sizes.blocks)

  @property
  def has_feature_maps(self) -> bool:
    return True

  @property
  def first_layer(self) -> FirstLayer:
    return FirstLayer("ResNet's first convolution", 'root/kernel')

  def describe(self) -> str:
    units = ' + '.join(map(str, self.sizes.blocks))
    return f'ResNet of {units} bottlenecks behind a root of {self.sizes.width} channels'

  def layers(self, architecture: Architecture) -> list[Layer]:
    layers = flops.resnet(self.sizes.width, self.sizes.blocks, architecture.image_size, architecture.channels)
    classes = architecture.num_classes
    return [*layers, Layer('head', (classes,), layers[-1].output[-1] * classes)]


class PreActivationBottleneck(Bottleneck):
  """A residual unit with norm and ReLU before each convolution."""

  def __init__(self, inputs: int, width: int, *, conv: Conv, stride: int, epsilon: float):
    super().__init__(inputs, width, conv=conv, stride=stride)
    self.norm1 = GroupNorm(inputs, epsilon)
    self.norm2 = GroupNorm(width, epsilon)
    self.norm3 = GroupNorm(width, epsilon)

  def __call__(self, x: jax.Array) -> jax.Array:
    """(B, H, W, inputs) -> (B, H / stride, W / stride, 4 width), both rounded up."""
    y = jax.nn.relu(self.norm1(x))
    shortcut = x if self.projection is None else self.projection(y)
    y = self.conv1(y)
    y = self.conv2(jax.nn.relu(self.norm2(y)))
    y = self.conv3(jax.nn.relu(self.norm3(y)))
    return shortcut + y


class ResNet(Model[ResNetConfig]):
  """Images to logits. `ResNetConfig.build` makes one; its tokens are the cells of a feature map."""

  def __init__(
    self, config: ResNetConfig, architecture: Architecture, rngs: nnx.Rngs, sharding: Sharding | None = None
  ):
    sizes = config.sizes
    conv = functools.partial(
      StandardisedConv, style=BIT, dtype=jnp.dtype(config.dtype), rngs=rngs, sharding=sharding
    )
    bottleneck = functools.partial(PreActivationBottleneck, conv=conv, epsilon=config.norm_epsilon)
    self.config = config
    self.root = conv(architecture.channels, sizes.width, 7, stride=2)
    outputs = add_stages(self, sizes.width, sizes.blocks, bottleneck)
    self.norm = GroupNorm(outputs, config.norm_epsilon)
    self.head = initial_head(outputs, architecture.num_classes, config.head_bias, rngs)

  def __call__(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    """The logits, float32 (B, K), of images of any size; nothing is dropped, so that keys change nothing."""
    return self.head(self.pool(self.features(images)).astype(jnp.float32))

  def feature_map(self, images: jax.Array, layer: int | None = None) -> jax.Array:
    """(B, H, W, C) -> (B, h, w, D), after a bottleneck or after the last norm and its ReLU; see `Model.features`.

    Bottlenecks are counted over all stages, and the map has its stage's size and width.
    """
    layers = scanned_blocks.blocks_before(layer, self.config.num_layers)
    x = jnp.pad(self.root(images), ((0, 0), (1, 1), (1, 1), (0, 0)))  # zeros, which may be the maximum
    x = max_pool(x, 'VALID')
    blocks = self.config.sizes.blocks
    remaining = sum(blocks) if layers is None else layers
    for b, units in enumerate(blocks):
      if applied := min(units, remaining):
        stage = getattr(self, f'block{b + 1}')
        x = stage(x, units=applied, remat=self.config.remat, unroll=bool(self.config.unroll))
        remaining -= applied
    return x if layers else jax.nn.relu(self.norm(x))

  def features(self, images: jax.Array, layer: int | None = None) -> jax.Array:
    """(B, H, W, C) -> (B, h * w, D): the cells of `feature_map`, row by row."""
    x = self.feature_map(images, layer)
    return x.reshape(x.shape[0], -1, x.shape[-1])
