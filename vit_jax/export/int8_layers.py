"""The layers of an ONNX model of float32 in 8 bits: its products with kernels are rewritten in place.

A kernel gets one scale for each output channel, and the array that it multiplies one scale and one zero, by the range
that it has on calibration images (arXiv 1712.05877). The ranges of such an array's channels differ a hundredfold, so
each channel is divided by a factor, and the kernel's row is multiplied by it, which changes nothing in float
(SmoothQuant, arXiv 2211.10438).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import helper, numpy_helper

# The share of a layer's output, in squares, that rounding may add.
_MOST_NOISE = 1.5e-3
_TINY = 1e-6


class Channels(NamedTuple):
  """What the channels of an array have on calibration images, (channels,) each."""

  low: np.ndarray
  high: np.ndarray
  mean: np.ndarray
  square: np.ndarray  # the mean of squares

  @classmethod
  def of(cls, values: np.ndarray) -> 'Channels':
    """The same of values (..., channels)."""
    rows = values.reshape(-1, values.shape[-1])
    return cls(rows.min(axis=0), rows.max(axis=0), rows.mean(axis=0), np.square(rows).mean(axis=0))

  @classmethod
  def joined(cls, images: Sequence['Channels']) -> 'Channels':
    """The same of several images."""
    low, high, *means = map(np.stack, zip(*images, strict=True))
    return cls(low.min(axis=0), high.max(axis=0), *(each.mean(axis=0) for each in means))


def layers(model: Any) -> list[Any]:
  """The nodes to quantise: products with kernels, convolutions too, without the first and the last.

  Those two are small and sensitive.
  """
  kernels = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) in (2, 4)}
  return [
    node for node in model.graph.node if node.op_type in ('MatMul', 'Conv') and node.input[1] in kernels
  ][1:-1]


def inputs(model: Any) -> list[str]:
  """The names of the values whose channels `quantise` needs."""
  return sorted({node.input[0] for node in layers(model) if node.op_type == 'MatMul'})


def quantise(model: Any, seen: Mapping[str, Channels]) -> None:
  """Rewrites the layers of a model by the channels of its `inputs`; convolutions compute in float32 as before.

  A product to which rounding would add too much, as behind a GELU with massive activations, stays as it is.
  """
  graph, chosen = model.graph, layers(model)
  tensors = {tensor.name: tensor for tensor in graph.initializer}
  kernels = {node.name: numpy_helper.to_array(tensors[node.input[1]]) for node in chosen}
  biases = {node.input[0]: node for node in graph.node if node.op_type == 'Add' and node.input[1] in tensors}
  before: dict[str, list[Any]] = {node.name: [] for node in chosen}
  for node in chosen:
    if node.op_type == 'Conv':
      before[node.name].append(_rounded_kernel(graph, node, kernels[node.name])[0])
  for name, channels in seen.items():
    products = [node for node in chosen if node.op_type == 'MatMul' and node.input[0] == name]
    factors, noise = _least_noise(channels, [kernels[node.name] for node in products])
    if noise > _MOST_NOISE:
      continue
    before[products[0].name] += _rounded_input(graph, name, channels, factors)
    for node in products:
      rounded, errors = _rounded_kernel(graph, node, kernels[node.name] * factors[:, None])
      before[node.name].append(rounded)
      node.input[0] = f'{name}_rounded'
      if bias := biases.get(node.output[0]):
        # What the kernel's errors add on average (arXiv 1906.04721, section 4.2).
        corrected = numpy_helper.to_array(tensors[bias.input[1]]) - (channels.mean / factors) @ errors
        bias.input[1] = _constant(graph, f'{node.name}_bias', corrected.astype(np.float32))
  nodes = [each for node in graph.node for each in (*before.get(node.name, ()), node)]
  read = {name for node in nodes for name in node.input}
  constants = [tensor for tensor in graph.initializer if tensor.name in read]
  for field, kept in ((graph.node, nodes), (graph.initializer, constants)):
    del field[:]
    field.extend(kept)


def _least_noise(seen: Channels, kernels: Sequence[np.ndarray]) -> tuple[np.ndarray, float]:
  """(channels,): what to divide an array's channels by, and the noise that rounding then adds to its products.

  Factors are of SmoothQuant's equation 4, of the alpha of least noise and a row's root mean square.
  """
  kernel = np.concatenate([each / max(np.linalg.norm(each), _TINY) for each in kernels], axis=1)
  largest = np.maximum(np.maximum(-seen.low, seen.high), _TINY)
  rows = np.maximum(np.sqrt(np.square(kernel).mean(axis=1)), _TINY)
  candidates = [largest**alpha / rows ** (1 - alpha) for alpha in np.linspace(0, 1, 11)]
  noises = [_noise(seen, kernel, factors) for factors in candidates]
  return candidates[int(np.argmin(noises))].astype(np.float32), min(noises)


def _noise(seen: Channels, kernel: np.ndarray, factors: np.ndarray) -> float:
  """The share of a product, in squares, that rounding adds to it, by errors that are evenly spread within a step."""
  product = seen.square @ np.square(kernel).sum(axis=1)
  kernel = kernel * factors[:, None]
  of_input = _low_and_step(seen, factors)[1] ** 2 * np.square(kernel).sum()
  of_kernel = np.square(_steps(kernel, 1)).sum() * (seen.square / factors**2).sum()
  return float((of_input + of_kernel) / 12 / max(product, _TINY))


def _low_and_step(seen: Channels, factors: np.ndarray) -> tuple[float, float]:
  """The least number of a value whose channels are divided by factors, zero at most, and the step of its 8 bits."""
  low, high = min(0.0, (seen.low / factors).min()), max(0.0, (seen.high / factors).max())
  return low, max(high - low, _TINY) / 255


def _steps(kernel: np.ndarray, axis: int) -> np.ndarray:
  """The steps of a kernel's 8 bits, one for each output channel; other sides are 1."""
  others = tuple(i for i in range(kernel.ndim) if i != axis)
  return np.maximum(np.abs(kernel).max(axis=others, keepdims=True), _TINY) / 127


def _rounded_input(graph: Any, name: str, seen: Channels, factors: np.ndarray) -> list[Any]:
  """The nodes that divide a value's channels by factors and round them to 8 bits."""
  low, step = _low_and_step(seen, factors)
  inverse = _constant(graph, f'{name}_inverse', 1 / factors)
  scale = [
    _constant(graph, f'{name}_step', np.float32(step)),
    _constant(graph, f'{name}_zero', np.uint8(np.rint(-low / step))),
  ]
  return [
    helper.make_node('Mul', [name, inverse], [f'{name}_even']),
    helper.make_node('QuantizeLinear', [f'{name}_even', *scale], [f'{name}_8_bits']),
    helper.make_node('DequantizeLinear', [f'{name}_8_bits', *scale], [f'{name}_rounded']),
  ]


def _rounded_kernel(graph: Any, node: Any, kernel: np.ndarray) -> tuple[Any, np.ndarray]:
  """The node that gives a layer its kernel, which is stored in 8 bits, and the kernel's errors."""
  axis = 1 if node.op_type == 'MatMul' else 0
  steps = _steps(kernel, axis).astype(np.float32)
  rounded = np.rint(kernel / steps).clip(-127, 127).astype(np.int8)
  stored = [
    _constant(graph, f'{node.name}_kernel', rounded),
    _constant(graph, f'{node.name}_steps', steps.reshape(-1)),
  ]
  node.input[1] = f'{node.name}_rounded_kernel'
  return helper.make_node('DequantizeLinear', stored, [node.input[1]], axis=axis), rounded * steps - kernel


def _constant(graph: Any, name: str, array: Any) -> str:
  graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
  return name
