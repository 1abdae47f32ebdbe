"""The ResNet in front of a hybrid Vision Transformer (arXiv 2010.11929, section 3.1, 'Hybrid Architecture').

Its parameters, for stages b = 1, 2 ... and bottlenecks u = 1, 2 ... of a stage:

  stem/root/kernel (7, 7, C, W)            stem/root_norm/{scale,bias} (W,)
  stem/block{b}/unit{u}/conv1/kernel       (1, 1, input, w), where w = W * 2**(b - 1)
  stem/block{b}/unit{u}/conv2/kernel       (3, 3, w, w)
  stem/block{b}/unit{u}/conv3/kernel       (1, 1, w, 4 w)
  stem/block{b}/unit{u}/projection/kernel  (1, 1, input, 4 w), in the first unit of a stage
  stem/block{b}/unit{u}/{norm1,norm2,norm3,projection_norm}/{scale,bias}, as wide as their convolution
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax import config
from vit_jax.models import stack
from vit_jax.models.convolutions import HYBRID, Conv, GroupNorm, Stage, StandardisedConv, check_sizes
from vit_jax.models.variants import Sizes


class Bottleneck(nnx.Module):
  """A residual unit with its activations behind the sums (ResNet v1), the stride in the 3 x 3 convolution."""

  def __init__(self, inputs: int, width: int, *, conv: Conv, stride: int, epsilon: float):
    outputs = 4 * width
    self.conv1 = conv(inputs, width, 1)
    self.norm1 = GroupNorm(width, epsilon)
    self.conv2 = conv(width, width, 3, stride=stride)
    self.norm2 = GroupNorm(width, epsilon)
    self.conv3 = conv(width, outputs, 1)
    self.norm3 = GroupNorm(outputs, epsilon, scale=0.0)  # at first the unit does nothing
    projects = stride > 1 or inputs != outputs
    self.projection = conv(inputs, outputs, 1, stride=stride) if projects else None
    self.projection_norm = GroupNorm(outputs, epsilon) if projects else None

  def __call__(self, x: jax.Array) -> jax.Array:
    """(B, H, W, inputs) -> (B, H / stride, W / stride, 4 width)."""
    y = jax.nn.relu(self.norm1(self.conv1(x)))
    y = jax.nn.relu(self.norm2(self.conv2(y)))
    y = self.norm3(self.conv3(y))
    shortcut = x if self.projection is None else self.projection_norm(self.projection(x))
    return jax.nn.relu(shortcut + y)


class Stem(nnx.Module):
  """Images to the feature map that patches are cut from; no stages: the root alone."""

  def __init__(
    self,
    sizes: Sizes,
    model: config.Model,
    *,
    channels: int,
    rngs: nnx.Rngs,
    activation_sharding: jax.sharding.Sharding | None = None,
  ):
    width = sizes.stem_width
    check_sizes(stem_width=width, stem_blocks=sizes.stem_blocks)
    options = {
      'style': HYBRID,
      'dtype': jnp.dtype(model.dtype),
      'rngs': rngs,
      'sharding': activation_sharding,
    }
    conv = functools.partial(StandardisedConv, **options)
    self.root = conv(channels, width, 7, stride=2)
    self.root_norm = GroupNorm(width, model.norm_epsilon)
    outputs = width
    for b, units in enumerate(sizes.stem_blocks):
      bottleneck = functools.partial(Bottleneck, conv=conv, epsilon=model.norm_epsilon)
      stage = Stage(outputs, width * 2**b, units, bottleneck, stride=2 if b else 1)
      setattr(self, f'block{b + 1}', stage)
      outputs = 4 * width * 2**b
    self.stages = len(sizes.stem_blocks)
    self.outputs = outputs
    self.config = model

  def __call__(self, images: jax.Array) -> jax.Array:
    """(B, H, W, C) -> (B, H / S, W / S, outputs), both rounded up; S is `Sizes.stem_stride`."""
    x = jax.nn.relu(self.root_norm(self.root(images)))
    x = nnx.max_pool(x, (3, 3), (2, 2), 'SAME')  # which pads with -inf, at the end first
    for b in range(self.stages):
      for unit in getattr(self, f'block{b + 1}'):
        x = stack.rematerialised(lambda x, unit=unit: unit(x), self.config)(x)
    return x
