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
from flax.nnx import initializers

from vit_jax import config
from vit_jax.errors import UserError
from vit_jax.models import stack
from vit_jax.models.variants import Sizes

_GROUPS = 32


class StandardisedConv(nnx.Module):
  """A convolution, padded as 'SAME', without bias and with standardised weights (arXiv 1903.10520)."""

  def __init__(
    self,
    inputs: int,
    outputs: int,
    size: int,
    *,
    stride: int = 1,
    dtype: jnp.dtype,
    rngs: nnx.Rngs,
    sharding: jax.sharding.Sharding | None,
  ):
    shape = (size, size, inputs, outputs)
    self.kernel = nnx.Param(initializers.lecun_normal()(rngs.params(), shape, jnp.float32))
    self.stride = stride
    self.dtype = dtype
    self.sharding = sharding

  def __call__(self, x: jax.Array) -> jax.Array:
    """(B, H, W, inputs) -> (B, H / stride, W / stride, outputs), both rounded up."""
    kernel = standardise(self.kernel[...]).astype(self.dtype)
    strides = (self.stride, self.stride)
    layout = ('NHWC', 'HWIO', 'NHWC')
    y = jax.lax.conv_general_dilated(x.astype(self.dtype), kernel, strides, 'SAME', dimension_numbers=layout)
    return stack.constrain(y, self.sharding)


def standardise(kernel: jax.Array) -> jax.Array:
  """(h, w, inputs, outputs), of mean 0 and deviation 1 for each output; the deviation gets the epsilon."""
  kernel = kernel - kernel.mean(axis=(0, 1, 2))
  return kernel / (kernel.std(axis=(0, 1, 2)) + 1e-5)


class GroupNorm(nnx.Module):
  """Normalises each example over positions and the channels of a group (arXiv 1803.08494), in float32."""

  def __init__(self, width: int, epsilon: float, *, scale: float = 1.0):
    self.scale = nnx.Param(jnp.full(width, scale))
    self.bias = nnx.Param(jnp.zeros(width))
    self.epsilon = epsilon

  def __call__(self, x: jax.Array) -> jax.Array:
    """(B, H, W, C) -> (B, H, W, C), of the same dtype."""
    return _normalise(x, self.scale[...], self.bias[...], self.epsilon)


@functools.partial(jax.checkpoint, static_argnums=3)
def _normalise(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
  """Of which the backward pass saves the input only, as it does of a LayerNorm."""
  y = x.astype(jnp.float32).reshape(*x.shape[:-1], _GROUPS, -1)
  y = y - y.mean(axis=(1, 2, 4), keepdims=True)
  variance = jnp.square(y).mean(axis=(1, 2, 4), keepdims=True)
  y = (y * jax.lax.rsqrt(variance + epsilon)).reshape(x.shape)
  return (y * scale + bias).astype(x.dtype)


class Bottleneck(nnx.Module):
  """A residual unit with its activations behind the sums (ResNet v1), the stride in the 3 x 3 convolution."""

  def __init__(self, inputs: int, width: int, conv, *, stride: int, epsilon: float):
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


class Stage(nnx.Module):
  """Bottlenecks of one width, the first of which has the stride."""

  def __init__(self, inputs: int, width: int, units: int, conv, *, stride: int, epsilon: float):
    self.units = units
    for u in range(units):
      unit = Bottleneck(4 * width if u else inputs, width, conv, stride=1 if u else stride, epsilon=epsilon)
      setattr(self, f'unit{u + 1}', unit)

  def __iter__(self):
    return (getattr(self, f'unit{u + 1}') for u in range(self.units))


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
    if width < 1 or width % _GROUPS:
      raise UserError(f'config.model.stem_width is {width}; choose a multiple of {_GROUPS}.')
    if any(units < 1 for units in sizes.stem_blocks):
      raise UserError(f'config.model.stem_blocks is {sizes.stem_blocks}; each stage needs at least 1 unit.')
    options = {'dtype': jnp.dtype(model.dtype), 'rngs': rngs, 'sharding': activation_sharding}
    conv = functools.partial(StandardisedConv, **options)
    self.root = conv(channels, width, 7, stride=2)
    self.root_norm = GroupNorm(width, model.norm_epsilon)
    outputs = width
    for b, units in enumerate(sizes.stem_blocks):
      stage = Stage(outputs, width * 2**b, units, conv, stride=2 if b else 1, epsilon=model.norm_epsilon)
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
