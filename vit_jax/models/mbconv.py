"""The layers of EfficientNets: MBConv blocks with squeeze and excitation, and stages of them."""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx import initializers

from vit_jax.models import depthwise_convolution, scanned_blocks, strided_convolution
from vit_jax.models.base import ModelConfig, Sharding
from vit_jax.models.batch_norm import BatchNorm
from vit_jax.models.dropout import drop_path, fold_in

# Each saves its input only.
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  name: functools.partial(jax.checkpoint, prevent_cse=False)(activation)
  for name, activation in (('silu', jax.nn.silu), ('relu', jax.nn.relu), ('relu6', jax.nn.relu6))
}


class StageSizes(NamedTuple):
  """What decides the shapes of a stage of blocks."""

  kernel: int  # size of the depthwise convolutions
  stride: int  # of the first block
  expansion: int  # how many times a block's inputs its expanded channels are
  inputs: int  # channels of the first block's input
  outputs: int  # channels of each block's output
  blocks: int  # how many
  # 'mbconv'; 'fused', with one convolution in the place of the expanding and the depthwise one (arXiv 2104.00298,
  # section 3.3); or 'conv', of one convolution.
  kind: Literal['mbconv', 'fused', 'conv'] = 'mbconv'
  squeeze: bool = True  # whether it has squeeze and excitation
  adds_input: bool = True  # whether a block adds its input where it fits
  expands: int | None = None  # the channels that `expansion` multiplies, if they are not a block's inputs

  def expanded(self, inputs: int) -> int:
    """Expanded channels of a block with so many inputs."""
    return self.expansion * (self.expands or inputs)


def squeezed_channels(inputs: int) -> int:
  """Channels between squeeze and excitation, of a block with so many inputs."""
  return max(1, inputs // 4)


class Conv(nnx.Module):
  """A convolution with TensorFlow's padding 'SAME': of an odd number of pixels, the larger half at the end."""

  # Nine parameters: `dtype`, `rngs` and `sharding` are the network's own, which fixes them once by a partial.
  def __init__(
    self,
    inputs: int,
    outputs: int,
    size: int,
    *,
    stride: int = 1,
    depthwise: bool = False,
    bias: bool = False,
    dtype: jnp.dtype,
    rngs: nnx.Rngs,
    sharding: Sharding | None = None,
  ):
    """From inputs to outputs (channels) by a kernel of size x size; `depthwise`: each channel by itself, of a feature
    map that is split as `sharding` says.
    """
    seen = 1 if depthwise else inputs  # by each output
    normal = initializers.normal(math.sqrt(2 * inputs / (seen * size**2 * outputs)))
    self.kernel = nnx.Param(normal(rngs.params(), (size, size, seen, outputs), jnp.float32))
    self.bias = nnx.Param(jnp.zeros(outputs, jnp.float32)) if bias else None
    self.stride = stride
    self.depthwise = depthwise
    self.dtype = dtype
    self.sharding = sharding

  def __call__(self, x: jax.Array) -> jax.Array:
    """(B, H, W, inputs) -> (B, H / stride, W / stride, outputs), both rounded up."""
    kernel = self.kernel[...].astype(self.dtype)
    x, padding = x.astype(self.dtype), strided_convolution.same_padding(x, kernel, self.stride)
    if self.depthwise:
      kernel = kernel[:, :, 0]
      y = depthwise_convolution.convolve(x, kernel, self.stride, padding=padding, sharding=self.sharding)
    else:
      y = strided_convolution.convolve(x, kernel, self.stride, padding)
    return y if self.bias is None else y + self.bias[...].astype(self.dtype)


class MBConv(nnx.Module):
  """Expansion, depthwise convolution, squeeze and excitation, projection; the input is added where it fits.

  What a stage's kind leaves out is None.
  """

  def __init__(
    self,
    inputs: int,
    stage: StageSizes,
    *,
    stride: int,
    activation: str,
    conv: Callable[..., Conv],
    norm: Callable[[int], BatchNorm],
    rngs: nnx.Rngs,
  ):
    """A block of a stage, of so many input channels; `conv` and `norm` make its `Conv`s and its norms."""
    conv = functools.partial(conv, rngs=rngs)
    expanded, squeezed = stage.expanded(inputs), squeezed_channels(inputs)
    expands, mbconv = stage.expansion > 1, stage.kind == 'mbconv'
    spatial = {'size': stage.kernel, 'stride': stride}  # the one convolution that sees neighbours
    self.expand = conv(inputs, expanded, **({'size': 1} if mbconv else spatial)) if expands else None
    self.expand_norm = norm(expanded) if expands else None
    self.depthwise = conv(expanded, expanded, **spatial, depthwise=True) if mbconv else None
    self.depthwise_norm = norm(expanded) if mbconv else None
    self.squeeze = conv(expanded, squeezed, 1, bias=True) if stage.squeeze else None
    self.excite = conv(squeezed, expanded, 1, bias=True) if stage.squeeze else None
    self.project = conv(expanded, stage.outputs, **(spatial if stage.kind == 'conv' else {'size': 1}))
    self.project_norm = norm(stage.outputs)
    self.activation = activation
    self.activates_outputs = stage.kind == 'conv'
    self.adds_input = stage.adds_input and stride == 1 and inputs == stage.outputs

  def __call__(self, x: jax.Array, rate: jax.Array, keys: jax.Array | None) -> jax.Array:
    """(B, H, W, inputs) -> (B, H / stride, W / stride, outputs), both rounded up.

    `rate`, a scalar, and `keys`, (B,) in training and None elsewhere, are of the stochastic depth.
    """
    train, activate = keys is not None, ACTIVATIONS[self.activation]
    y = x
    if self.expand is not None and self.expand_norm is not None:
      y = activate(self.expand_norm(self.expand(y), train=train))
    if self.depthwise is not None and self.depthwise_norm is not None:
      y = activate(self.depthwise_norm(self.depthwise(y), train=train))
    if self.squeeze is not None and self.excite is not None:
      squeezed = y.mean(axis=(1, 2), keepdims=True)
      y = y * jax.nn.sigmoid(self.excite(activate(self.squeeze(squeezed))))
    y = self.project_norm(self.project(y), train=train)
    y = activate(y) if self.activates_outputs else y
    return x + drop_path(y, rate, keys, place=0) if self.adds_input else y


class StageOfBlocks(nnx.Module):
  """A first block, which has the stride, and others, stacked; None where there are none."""

  def __init__(self, stage: StageSizes, block: Callable[..., MBConv], rngs: nnx.Rngs):
    """`block` makes an `MBConv` of its inputs and `stage`."""

    def other(rngs: nnx.Rngs) -> MBConv:
      return block(stage.outputs, stage, stride=1, rngs=rngs)

    self.first = block(stage.inputs, stage, stride=stage.stride, rngs=rngs)
    self.others = scanned_blocks.stack(stage.blocks - 1, other, rngs) if stage.blocks > 1 else None

  def __call__(
    self,
    x: jax.Array,
    keys: jax.Array | None,
    numbers: np.ndarray,
    rates: np.ndarray,
    config: ModelConfig,
    sharding: Sharding | None,
  ) -> jax.Array:
    """(B, H, W, C) -> (B, h, w, D): the output of as many of the blocks as there are `numbers`.

    Args:
      x: the feature map.
      keys: (B,) of the whole network, in training; None elsewhere.
      numbers: of the blocks, counted over all stages.
      rates: of their stochastic depth.
      config: says what is computed again, and whether the other blocks are unrolled.
      sharding: of the feature map, kept up after every block.
    """
    remat, unroll = config.remat, bool(config.unroll)
    graphdef, params, statistics = nnx.split(self.first, nnx.Param, nnx.BatchStat)
    body = scanned_blocks.rematerialised(_step(graphdef, keys, sharding), remat)
    x, statistics = body(x, (params, statistics, numbers[0], rates[0]))
    if keys is not None:
      nnx.update(self.first, statistics)
    others = len(numbers) - 1
    if self.others is None or not others:
      return x
    graphdef, params, statistics = nnx.split(self.others, nnx.Param, nnx.BatchStat)
    params, statistics = jax.tree.map(lambda leaf: leaf[:others], (params, statistics))
    body = scanned_blocks.rematerialised(_step(graphdef, keys, sharding), remat, loop=not unroll)
    inputs = params, statistics, numbers[1:], rates[1:]
    x, statistics = jax.lax.scan(body, x, inputs, unroll=others if unroll else 1)
    if keys is not None:
      nnx.update(self.others, statistics)
    return x


def _step(
  graphdef: nnx.GraphDef, keys: jax.Array | None, sharding: Sharding | None
) -> Callable[[jax.Array, Any], tuple[jax.Array, nnx.State]]:
  """A block as a pure function: x, (parameters, running statistics, number, rate) -> x, running statistics."""

  def step(x: jax.Array, inputs: Any) -> tuple[jax.Array, nnx.State]:
    params, statistics, number, rate = inputs
    block = nnx.merge(graphdef, params, statistics)
    block_keys = None if keys is None else fold_in(keys, number)
    x = scanned_blocks.constrain(block(x, rate, block_keys), sharding)
    return x, nnx.state(block, nnx.BatchStat)

  return step
