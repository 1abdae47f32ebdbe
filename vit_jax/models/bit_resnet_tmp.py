"""The ResNets of 'Big Transfer' (BiT, arXiv 1912.11370): activations before the convolutions (ResNet v2).

Its parameters, for stages b = 1, 2 ... and bottlenecks u = 1, 2 ... of a stage, of a root of W channels:

  root/kernel (7, 7, C, W)
  block{b}/unit{u}/norm1/{scale,bias} (input,)       block{b}/unit{u}/conv1/kernel (1, 1, input, w)
  block{b}/unit{u}/norm2/{scale,bias} (w,)           block{b}/unit{u}/conv2/kernel (3, 3, w, w)
  block{b}/unit{u}/norm3/{scale,bias} (w,)           block{b}/unit{u}/conv3/kernel (1, 1, w, 4 w)
  block{b}/unit{u}/projection/kernel (1, 1, input, 4 w), in the first unit of a stage
  norm/{scale,bias}, head/{kernel (D, K), bias}

where w = W * 2**(b - 1), and D is 4 w of the last stage.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import initializers

from vit_jax import config
from vit_jax.errors import UserError
from vit_jax.models import stack
from vit_jax.models.convolutions import BIT, Conv, GroupNorm, Stage, StandardisedConv, check_sizes
from vit_jax.models.variants import check_options, resolve


class PreActivationBottleneck(nnx.Module):
  """A residual unit with norm and ReLU before each convolution, the stride in the 3 x 3 one."""

  def __init__(self, inputs: int, width: int, *, conv: Conv, stride: int, epsilon: float):
    outputs = 4 * width
    self.norm1 = GroupNorm(inputs, epsilon)
    self.conv1 = conv(inputs, width, 1)
    self.norm2 = GroupNorm(width, epsilon)
    self.conv2 = conv(width, width, 3, stride=stride)
    self.norm3 = GroupNorm(width, epsilon)
    self.conv3 = conv(width, outputs, 1)
    projects = stride > 1 or inputs != outputs
    self.projection = conv(inputs, outputs, 1, stride=stride) if projects else None

  def __call__(self, x: jax.Array) -> jax.Array:
    """(B, H, W, inputs) -> (B, H / stride, W / stride, 4 width), both rounded up."""
    y = jax.nn.relu(self.norm1(x))
    shortcut = x if self.projection is None else self.projection(y)
    y = self.conv1(y)
    y = self.conv2(jax.nn.relu(self.norm2(y)))
    y = self.conv3(jax.nn.relu(self.norm3(y)))
    return shortcut + y


class ResNet(nnx.Module):
  """Images to logits. `models.build` makes one from a config; its tokens are the cells of a feature map."""

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
    del image_size  # any
    _check(model)
    sizes = resolve(model)
    check_sizes(width=sizes.width, resnet_blocks=sizes.resnet_blocks)
    if not sizes.resnet_blocks:
      raise UserError('config.model.resnet_blocks is (); give at least one stage, as (3, 4, 6, 3).')
    conv = functools.partial(
      StandardisedConv, style=BIT, dtype=jnp.dtype(model.dtype), rngs=rngs, sharding=activation_sharding
    )
    bottleneck = functools.partial(PreActivationBottleneck, conv=conv, epsilon=model.norm_epsilon)
    self.root = conv(channels, sizes.width, 7, stride=2)
    outputs = sizes.width
    for b, units in enumerate(sizes.resnet_blocks):
      stage = Stage(outputs, sizes.width * 2**b, units, bottleneck, stride=2 if b else 1)
      setattr(self, f'block{b + 1}', stage)
      outputs = 4 * sizes.width * 2**b
    self.norm = GroupNorm(outputs, model.norm_epsilon)
    head = {'kernel_init': initializers.zeros, 'bias_init': initializers.constant(model.head_bias)}
    self.head = nnx.Linear(outputs, num_classes, **head, rngs=rngs)

    self.config = model
    self.stages = len(sizes.resnet_blocks)
    self.depth = sizes.depth

  def __call__(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    """The logits of images.

    Args:
      images: float (B, H, W, C), of any size.
      keys: nothing is dropped, so that they change nothing.

    Returns:
      float32 (B, K).
    """
    del keys
    return self.head(self.pool(self.features(images)).astype(jnp.float32))

  def feature_map(self, images: jax.Array, layer: int | None = None) -> jax.Array:
    """(B, H, W, C) -> (B, h, w, D).

    Args:
      images: as for the logits.
      layer: after which bottleneck, counted over all stages from 0, where it has that stage's size and
        width; None or -1: after the last norm and its ReLU.
    """
    layers = stack.count(layer, self.depth)
    x = jnp.pad(self.root(images), ((0, 0), (1, 1), (1, 1), (0, 0)))  # zeros, which may be the maximum
    x = nnx.max_pool(x, (3, 3), (2, 2), 'VALID')
    units = [unit for b in range(self.stages) for unit in getattr(self, f'block{b + 1}')]
    for unit in units[:layers]:
      x = stack.rematerialised(lambda x, unit=unit: unit(x), self.config)(x)
    return x if layers else jax.nn.relu(self.norm(x))

  def features(self, images: jax.Array, layer: int | None = None) -> jax.Array:
    """(B, H, W, C) -> (B, h * w, D): the cells of `feature_map`, row by row."""
    x = self.feature_map(images, layer)
    return x.reshape(len(x), -1, x.shape[-1])

  def attention(self, images: jax.Array) -> jax.Array:
    """Raises UserError: there is none."""
    raise UserError('A ResNet has no attention to show; choose a Vision Transformer or a hybrid.')

  def pool(self, tokens: jax.Array, how: str | None = None) -> jax.Array:
    """(B, N, D) -> (B, D): their mean, the only way of a ResNet."""
    del how
    return tokens.mean(axis=1)

  def represent(self, pooled: jax.Array) -> jax.Array:
    """What the head reads is what was pooled."""
    return pooled


_OPTIONS = {'variant', 'resnet_blocks', 'width', 'pool', 'norm_epsilon', 'head_bias', 'dtype', 'remat'}


def _check(model: config.Model) -> None:
  """Raises UserError where an option is set that would do nothing."""
  if model.pool != 'gap':
    raise UserError(f"config.model.pool is {model.pool!r}; a ResNet has 'gap', the mean of its feature map.")
  check_options(model, _OPTIONS, 'a ResNet')
