"""The layers of an ONNX model of float32 in 8 bits: its products with kernels are rewritten in place.

A kernel gets one scale for each output channel (arXiv 1712.05877). The channels of what it multiplies have ranges that
differ a hundredfold, too many for a byte. So that array becomes two: the first has the range seen on calibration images
in 7 bits, the second has what rounding to the first leaves, in 7 bits too. Both are multiplied with the kernel's bytes,
which is faster than one product of floats, and what is lost is the kernel's rounding alone. Where that is too much, a
product stays as it is. The eighth bit is left out since processors without VNNI add two products of bytes in 16 bits,
which hold 2 * 127 * 127, and saturate without a word beyond them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import helper, numpy_helper

# The range that is represented, as a multiple of the one seen.
_MARGIN = 2.0
# The share of a product, in squares, that a kernel's rounding may add.
_MOST_NOISE = 1e-3
# The largest byte, of 7 bits, for the range that is represented; what lies beyond it has larger ones.
_LARGEST = 127
# The axis of a kernel's output channels.
_OUTPUTS = {'MatMul': 1, 'Conv': 0}
_TINY = 1e-6


class Seen(NamedTuple):
  """What an array has on calibration images."""

  low: float  # zero at most
  high: float  # zero at least
  mean: np.ndarray  # (channels,)
  square: np.ndarray  # (channels,), the mean of squares

  @classmethod
  def of(cls, values: np.ndarray) -> 'Seen':
    """The same of values (..., channels)."""
    rows = values.reshape(-1, values.shape[-1])
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    return cls(low, high, rows.mean(axis=0), np.square(rows).mean(axis=0))

  @classmethod
  def joined(cls, images: Sequence['Seen']) -> 'Seen':
    """The same of several images."""
    low, high, mean, square = zip(*images, strict=True)
    return cls(min(low), max(high), np.mean(mean, axis=0), np.mean(square, axis=0))


def layers(model: Any) -> list[Any]:
  """The nodes to quantise: products with kernels, convolutions too, without the first and the last.

  Those two are small and sensitive. Attention's products, norms, softmax and activations stay in float32 as well.
  """
  kernels = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) in (2, 4)}
  return [node for node in model.graph.node if node.op_type in _OUTPUTS and node.input[1] in kernels][1:-1]


def inputs(model: Any) -> list[str]:
  """The names of the values that `quantise` must have seen."""
  return sorted({node.input[0] for node in layers(model) if node.op_type == 'MatMul'})


def quantise(model: Any, seen: Mapping[str, Seen]) -> None:
  """Rewrites the layers of a model by what its `inputs` have; convolutions compute in float32 as before."""
  graph, chosen = model.graph, {node.name for node in layers(model)}
  arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
  biases = {node.input[0]: node for node in graph.node if node.op_type == 'Add' and node.input[1] in arrays}
  nodes: list[Any] = []
  sums: dict[str, Any] = {}  # by the node that they follow
  rounded: set[str] = set()
  for node in graph.node:
    if node.name in chosen:
      name, kernel = node.input[0], arrays[node.input[1]]
      values, steps = _rounded_kernel(kernel, _OUTPUTS[node.op_type])
      errors = values * steps - kernel
      if node.op_type == 'Conv':
        nodes.append(_kernel(graph, node, values, steps))
      elif seen[name].square @ np.square(errors).sum(axis=1) <= _MOST_NOISE * (
        seen[name].square @ np.square(kernel).sum(axis=1)
      ):
        if name not in rounded:
          nodes += _two_bytes(graph, name, seen[name])
          rounded.add(name)
        nodes.append(_kernel(graph, node, values, steps))
        node.input[0] = f'{name}_first'
        nodes.append(helper.make_node('MatMul', [f'{name}_second', node.input[1]], [f'{node.name}_second']))
        last, first = node, f'{node.name}_first'
        if bias := biases.get(node.output[0]):  # which runtimes add within the product before
          # What the kernel's errors add on average (arXiv 1906.04721, section 4.2).
          corrected = arrays[bias.input[1]] - seen[name].mean @ errors
          bias.input[1] = _constant(graph, f'{node.name}_bias', corrected.astype(np.float32))
          last = bias
        sums[last.name] = helper.make_node('Add', [first, f'{node.name}_second'], [last.output[0]])
        last.output[0] = first
    nodes.append(node)
    if node.name in sums:
      nodes.append(sums[node.name])
  read = {name for node in nodes for name in node.input}
  constants = [tensor for tensor in graph.initializer if tensor.name in read]
  for field, kept in ((graph.node, nodes), (graph.initializer, constants)):
    del field[:]
    field.extend(kept)


def _two_bytes(graph: Any, name: str, seen: Seen) -> list[Any]:
  """The nodes that give `{name}_first` and `{name}_second`, whose sum is the value `name`."""
  step = max(seen.high - seen.low, _TINY) * _MARGIN / _LARGEST
  zero = np.uint8(np.rint(-seen.low * _MARGIN / step))
  return [
    *_rounded(graph, name, f'{name}_first', step, zero),
    helper.make_node('Sub', [name, f'{name}_first'], [f'{name}_rest']),
    *_rounded(graph, f'{name}_rest', f'{name}_second', step / (_LARGEST - 1), np.uint8(_LARGEST // 2 + 1)),
  ]


def _rounded(graph: Any, name: str, result: str, step: float, zero: np.uint8) -> list[Any]:
  """The nodes that round a value to whole steps, in bytes, of which `zero` stands for none."""
  scale = [
    _constant(graph, f'{result}_step', np.float32(step)),
    _constant(graph, f'{result}_zero', zero),
  ]
  return [
    helper.make_node('QuantizeLinear', [name, *scale], [f'{result}_byte']),
    helper.make_node('DequantizeLinear', [f'{result}_byte', *scale], [result]),
  ]


def _rounded_kernel(kernel: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
  """A kernel in whole steps, int8, and the steps of each output channel, along `axis`; their other sides are 1."""
  others = tuple(i for i in range(kernel.ndim) if i != axis)
  steps = (np.maximum(np.abs(kernel).max(axis=others, keepdims=True), _TINY) / 127).astype(np.float32)
  return np.rint(kernel / steps).astype(np.int8), steps


def _kernel(graph: Any, node: Any, values: np.ndarray, steps: np.ndarray) -> Any:
  """The node that gives a layer its kernel, which is stored in 8 bits."""
  stored = [
    _constant(graph, f'{node.name}_kernel', values),
    _constant(graph, f'{node.name}_steps', steps.reshape(-1)),
  ]
  node.input[1] = f'{node.name}_rounded_kernel'
  return helper.make_node('DequantizeLinear', stored, [node.input[1]], axis=_OUTPUTS[node.op_type])


def _constant(graph: Any, name: str, array: Any) -> str:
  graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
  return name
