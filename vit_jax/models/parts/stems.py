"""What stands in front of the patch embedding, by name: nothing, a ResNet (a hybrid: the paper, section 3.1), or a few
convolutions (arXiv 2106.14881).

`STEMS[name](config, channels, sharding=…, rngs=…)` makes one. It maps images to a feature map of `outputs` channels,
and its parameters are the model's 'stem'.

The ResNet of a hybrid applies its activations after the sums (ResNet v1):

  stem/root/kernel (7, 7, C, W)            stem/root_norm/{scale,bias} (W,)
  stem/block{b}/unit{u}/conv1/kernel       (1, 1, input, w)
  stem/block{b}/unit{u}/conv2/kernel       (3, 3, w, w)
  stem/block{b}/unit{u}/conv3/kernel       (1, 1, w, 4 w)
  stem/block{b}/unit{u}/projection/kernel  (1, 1, input, 4 w), in the first unit of a stage
  stem/block{b}/unit{u}/{norm1,norm2,norm3,projection_norm}/{scale,bias}, as wide as their convolution
"""

import functools
import math
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.foundation.registry import Registry
from vit_jax.models import flops
from vit_jax.models.base import FirstLayer, Remat, Sharding, ShardingRules
from vit_jax.models.convolutions import (
  HYBRID,
  TIMM_HYBRID,
  Bottleneck,
  Conv,
  GroupNorm,
  StandardisedConv,
  add_stages,
  check_stage_sizes,
)
from vit_jax.models.max_pool import max_pool

if TYPE_CHECKING:
  from vit_jax.models.vit_config import Sizes, ViTConfig

STEMS: Registry['Stem'] = Registry(
  'stem',
  {
    'patches': 'vit_jax.models.parts.stems:Stem',
    'resnet': 'vit_jax.models.parts.stems:ResNetStem',
    'convolutions': 'vit_jax.models.parts.stems:ConvolutionalStem',
  },
)


class Stem(nnx.Module):
  """A stem; this one, 'patches', is none: patches are cut from the images."""

  sharding_rules: ClassVar[ShardingRules] = ()
  # The model's layer that meets the image's pixels.
  first_layer: ClassVar[FirstLayer] = FirstLayer()
  # Whether its outputs are the feature map of convolutions.
  has_feature_maps: ClassVar[bool] = False
  # What sentences call it.
  title: ClassVar[str] = 'patches of the image'

  def __init__(self, config: 'ViTConfig', channels: int, *, sharding: Sharding | None, rngs: nnx.Rngs):
    self.outputs = channels

  def __call__(self, images: jax.Array) -> jax.Array:
    """(B, H, W, C) -> (B, H / S, W / S, outputs), both rounded up; S is `stride`."""
    return images

  @staticmethod
  def stride(sizes: 'Sizes') -> int:
    """Pixels along a side of a cell of the output."""
    return 1

  @staticmethod
  def layers(sizes: 'Sizes', image_size: tuple[int, int], channels: int) -> list[flops.Layer]:
    """The layers in front of the patches (models/flops.py)."""
    return []


class PostActivationBottleneck(Bottleneck):
  """A residual unit with its activations behind the sums (ResNet v1)."""

  def __init__(self, inputs: int, width: int, *, conv: Conv, stride: int, epsilon: float):
    super().__init__(inputs, width, conv=conv, stride=stride)
    self.norm1 = GroupNorm(width, epsilon)
    self.norm2 = GroupNorm(width, epsilon)
    self.norm3 = GroupNorm(4 * width, epsilon, scale=0.0)  # at first the unit does nothing
    self.projection_norm = None if self.projection is None else GroupNorm(4 * width, epsilon)

  def __call__(self, x: jax.Array) -> jax.Array:
    """(B, H, W, inputs) -> (B, H / stride, W / stride, 4 width)."""
    y = jax.nn.relu(self.norm1(self.conv1(x)))
    y = jax.nn.relu(self.norm2(self.conv2(y)))
    y = self.norm3(self.conv3(y))
    shortcut = x
    if self.projection is not None and self.projection_norm is not None:
      shortcut = self.projection_norm(self.projection(x))
    return jax.nn.relu(shortcut + y)


class ResNetStem(Stem):
  """A ResNet's feature map; without stages, of its root alone."""

  sharding_rules: ClassVar[ShardingRules] = (
    (r'(root|block\d+/unit\d+/(conv\d|projection))/kernel', ('fsdp',)),  # (h, w, inputs, outputs)
    (r'(root_norm|block\d+/unit\d+/(norm\d|projection_norm))/(scale|bias)', ()),
  )
  first_layer: ClassVar[FirstLayer] = FirstLayer("ResNet's first convolution", 'stem/root/kernel')
  has_feature_maps: ClassVar[bool] = True
  title: ClassVar[str] = 'a ResNet'

  def __init__(self, config: 'ViTConfig', channels: int, *, sharding: Sharding | None, rngs: nnx.Rngs):
    width, blocks = config.sizes.stem_width, config.sizes.stem_blocks
    assert blocks is not None
    check_stage_sizes(stem_width=width, stem_blocks=blocks)
    dtype = jnp.dtype(config.dtype)
    style, epsilon = (
      (HYBRID, config.norm_epsilon) if config.stem_epsilons == 'released' else (TIMM_HYBRID, 1e-5)
    )
    conv = functools.partial(StandardisedConv, style=style, dtype=dtype, rngs=rngs, sharding=sharding)
    bottleneck = functools.partial(PostActivationBottleneck, conv=conv, epsilon=epsilon)
    self.root = conv(channels, width, 7, stride=2)
    self.root_norm = GroupNorm(width, epsilon)
    self.outputs = add_stages(self, width, blocks, bottleneck)
    self.stages = len(blocks)
    self.remat: Remat | None = config.remat
    self.unroll = bool(config.unroll)

  def __call__(self, images: jax.Array) -> jax.Array:
    x = jax.nn.relu(self.root_norm(self.root(images)))
    x = max_pool(x, 'SAME')
    for b in range(self.stages):
      x = getattr(self, f'block{b + 1}')(x, remat=self.remat, unroll=self.unroll)
    return x

  @staticmethod
  def stride(sizes: 'Sizes') -> int:
    """4 after the root, doubled by the later stages."""
    return 4 * 2 ** max(len(sizes.stem_blocks or ()) - 1, 0)

  @staticmethod
  def layers(sizes: 'Sizes', image_size: tuple[int, int], channels: int) -> list[flops.Layer]:
    found = flops.resnet(sizes.stem_width, sizes.stem_blocks or (), image_size, channels)
    return [layer._replace(name=f'stem/{layer.name}') for layer in found]


class ConvolutionalStem(Stem):
  """3 x 3 convolutions, each with a norm and ReLU ('Early Convolutions Help Transformers See Better').

  Its kernels are standardised and its norms are group norms, as the ResNet's, where the paper has batch norms:

    stem/convolution{n}/kernel (3, 3, input, output)    stem/norm{n}/{scale,bias} (output,)
  """

  sharding_rules: ClassVar[ShardingRules] = (
    (r'convolution\d+/kernel', ('fsdp',)),  # (h, w, inputs, outputs)
    (r'norm\d+/(scale|bias)', ()),
  )
  first_layer: ClassVar[FirstLayer] = FirstLayer('first convolution', 'stem/convolution1/kernel')
  has_feature_maps: ClassVar[bool] = True
  title: ClassVar[str] = 'convolutions'

  def __init__(self, config: 'ViTConfig', channels: int, *, sharding: Sharding | None, rngs: nnx.Rngs):
    self.outputs = channels
    self.depth = len(config.sizes.stem_convolutions)
    for number, (outputs, stride) in enumerate(config.sizes.stem_convolutions, 1):
      check_stage_sizes(stem_convolutions=outputs)
      convolution = StandardisedConv(
        self.outputs,
        outputs,
        3,
        style=HYBRID,
        stride=stride,
        dtype=jnp.dtype(config.dtype),
        rngs=rngs,
        sharding=sharding,
      )
      setattr(self, f'convolution{number}', convolution)
      setattr(self, f'norm{number}', GroupNorm(outputs, config.norm_epsilon))
      self.outputs = outputs

  def __call__(self, images: jax.Array) -> jax.Array:
    x = images
    for number in range(1, self.depth + 1):
      x = jax.nn.relu(getattr(self, f'norm{number}')(getattr(self, f'convolution{number}')(x)))
    return x

  @staticmethod
  def stride(sizes: 'Sizes') -> int:
    """The product of the strides."""
    return math.prod(stride for _, stride in sizes.stem_convolutions)

  @staticmethod
  def layers(sizes: 'Sizes', image_size: tuple[int, int], channels: int) -> list[flops.Layer]:
    cells, found = image_size, []
    for number, (outputs, stride) in enumerate(sizes.stem_convolutions, 1):
      cells = flops.strided(cells, stride)
      products = cells[0] * cells[1] * 3**2 * channels * outputs
      found.append(flops.Layer(f'stem/convolution{number}', (*cells, outputs), products))
      channels = outputs
    return found
