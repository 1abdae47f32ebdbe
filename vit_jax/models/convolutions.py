"""The layers of ResNets: convolutions with standardised weights, group norms, and stages of bottlenecks."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import initializers

from vit_jax.foundation.errors import UserError
from vit_jax.models import scanned_blocks, strided_convolution
from vit_jax.models.base import Remat, Sharding

GROUPS = 32


class Style(NamedTuple):
  """Where the published code of the hybrids and that of BiT differ."""

  same: bool  # pad as 'SAME', an odd pixel at the end; otherwise by half the kernel on every side
  variance_epsilon: float  # added to the variance of the weights
  deviation_epsilon: float  # added to their deviation


HYBRID = Style(same=True, variance_epsilon=0.0, deviation_epsilon=1e-5)
TIMM_HYBRID = Style(same=True, variance_epsilon=1e-8, deviation_epsilon=0.0)
BIT = Style(same=False, variance_epsilon=1e-10, deviation_epsilon=0.0)


class StandardisedConv(nnx.Module):
  """A convolution without bias and with standardised weights (arXiv 1903.10520)."""

  def __init__(
    self,
    inputs: int,
    outputs: int,
    size: int,
    *,
    style: Style,
    stride: int = 1,
    dtype: jnp.dtype,
    rngs: nnx.Rngs,
    sharding: Sharding | None,
  ):
    """From inputs to outputs (channels) by a kernel of size x size; `sharding` is of the result."""
    shape = (size, size, inputs, outputs)
    self.kernel = nnx.Param(initializers.lecun_normal()(rngs.params(), shape, jnp.float32))
    self.style = style
    self.stride = stride
    self.dtype = dtype
    self.sharding = sharding

  def __call__(self, x: jax.Array) -> jax.Array:
    """(B, H, W, inputs) -> (B, H / stride, W / stride, outputs), both rounded up."""
    kernel = standardise(self.kernel[...], self.style).astype(self.dtype)
    half = len(kernel) // 2
    around = (half, half), (half, half)
    padding = strided_convolution.same_padding(x, kernel, self.stride) if self.style.same else around
    y = strided_convolution.convolve(x.astype(self.dtype), kernel, self.stride, padding)
    return scanned_blocks.constrain(y, self.sharding)


# (inputs, outputs, size of the kernel, stride=1) -> a StandardisedConv
Conv = Callable[..., StandardisedConv]


def standardise(kernel: jax.Array, style: Style) -> jax.Array:
  """(h, w, inputs, outputs), of mean 0 and deviation 1 for each output."""
  kernel = kernel - kernel.mean(axis=(0, 1, 2))
  deviation = jnp.sqrt(kernel.var(axis=(0, 1, 2)) + style.variance_epsilon)
  return kernel / (deviation + style.deviation_epsilon)


class GroupNorm(nnx.Module):
  """Normalises each example over positions and the channels of a group (arXiv 1803.08494), in float32."""

  def __init__(self, width: int, epsilon: float, *, scale: float = 1.0):
    """The width, C, is a multiple of 32; `scale` is the initial value of the factors."""
    self.scale = nnx.Param(jnp.full(width, scale))
    self.bias = nnx.Param(jnp.zeros(width))
    self.epsilon = epsilon

  def __call__(self, x: jax.Array) -> jax.Array:
    """(B, H, W, C) -> (B, H, W, C), of the same dtype."""
    return _normalise(x, self.scale[...], self.bias[...], self.epsilon)


@functools.partial(jax.checkpoint, static_argnums=3)
def _normalise(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
  """The normalised array; only the input is saved for the backward pass."""
  y = x.astype(jnp.float32)
  y = y - _means_of_groups(y)
  y = y * jax.lax.rsqrt(_means_of_groups(jnp.square(y)) + epsilon)
  return (y * scale + bias).astype(x.dtype)


def _means_of_groups(x: jax.Array) -> jax.Array:
  """(B, H, W, C) -> (B, 1, 1, C): for each channel the mean over positions and the channels of its group.

  Positions are added first: XLA for CPUs adds over H, W and C / 32 at once one number after the other.
  """
  means = x.mean(axis=(1, 2)).reshape(x.shape[0], GROUPS, -1).mean(axis=2)
  return jnp.repeat(means, x.shape[-1] // GROUPS, axis=1)[:, None, None]


class Bottleneck(nnx.Module):
  """The convolutions of a residual unit, the stride in the 3 x 3 one; a subclass has norms and the order of all."""

  def __init__(self, inputs: int, width: int, *, conv: Conv, stride: int):
    """From `inputs` channels to 4 times `width`, those within the unit; the shortcut has the stride too."""
    self.conv1 = conv(inputs, width, 1)
    self.conv2 = conv(width, width, 3, stride=stride)
    self.conv3 = conv(width, 4 * width, 1)
    projects = stride > 1 or inputs != 4 * width
    self.projection = conv(inputs, 4 * width, 1, stride=stride) if projects else None


class Stage(nnx.Module):
  """Bottlenecks of one width, the first of which has the stride."""

  def __init__(
    self, inputs: int, width: int, units: int, bottleneck: Callable[..., nnx.Module], *, stride: int
  ):
    """So many `units`, of which `bottleneck` makes each by its inputs, its `width` within and its stride."""
    self.units = units
    for u in range(units):
      unit = bottleneck(4 * width if u else inputs, width, stride=1 if u else stride)
      setattr(self, f'unit{u + 1}', unit)

  def __call__(
    self, x: jax.Array, *, units: int | None = None, remat: Remat | None, unroll: bool
  ) -> jax.Array:
    """(B, H, W, inputs) -> (B, H / stride, W / stride, 4 width), both rounded up, by the first `units`; None: by all.

    With `unroll` the bottlenecks behind the first are compiled one after the other instead of as a loop.
    """
    applied = [getattr(self, f'unit{u + 1}') for u in range(self.units if units is None else units)]
    looped = [] if unroll or len(applied) < 3 else applied[1:]
    for unit in applied[: len(applied) - len(looped)]:
      x = scanned_blocks.rematerialised(unit.__call__, remat)(x)
    return _loop(looped, x, remat) if looped else x


def _loop(units: Sequence[nnx.Module], x: jax.Array, remat: Remat | None) -> jax.Array:
  """(B, H, W, C) -> (B, H, W, C), by bottlenecks of the same shapes, of which the compiler sees one."""
  graphdef = nnx.graphdef(units[0])
  params = [nnx.state(unit) for unit in units]

  def body(x: jax.Array, unit: nnx.State) -> tuple[jax.Array, None]:
    bottleneck: Any = nnx.merge(graphdef, unit)
    return bottleneck(x), None

  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
  return jax.lax.scan(scanned_blocks.rematerialised(body, remat, loop=True), x, stacked)[0]


def add_stages(
  module: nnx.Module, width: int, blocks: tuple[int, ...], bottleneck: Callable[..., nnx.Module]
) -> int:
  """Gives a module, whose root has `width` channels, the stages `block1`, … as the published parameters call them.

  The first has that width within its bottlenecks, and each doubles it. Returns the channels of what comes out.
  """
  outputs = width
  for b, units in enumerate(blocks):
    setattr(module, f'block{b + 1}', Stage(outputs, width * 2**b, units, bottleneck, stride=2 if b else 1))
    outputs = 4 * width * 2**b
  return outputs


def check_stage_sizes(**options: int | tuple[int, ...]) -> None:
  """Raises UserError for an option of config.model: a width that groups do not divide, a stage without bottlenecks."""
  for name, value in options.items():
    if isinstance(value, tuple):
      if any(units < 1 for units in value):
        raise UserError(f'config.model.{name} is {value}; each stage needs at least 1 unit.')
    elif value < 1 or value % GROUPS:
      raise UserError(f'config.model.{name} is {value}; choose a multiple of {GROUPS}.')
