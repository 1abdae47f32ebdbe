"""Which layers of an ONNX model are quantised, and how their inputs are made easy to quantise.

Channels of a norm's output differ in range a hundredfold. SmoothQuant (arXiv 2211.10438, equation 4, alpha 1/2) divides
each by a factor and multiplies the next kernels' rows by it, which changes nothing in float. A layer whose output
changes too much where its input is rounded, as behind a GELU with massive activations, stays in float32.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# The share of a layer's output, in squares, that rounding its input to 8 bits may be.
_MOST_NOISE = 2e-3


class _Layer(NamedTuple):
  """A product with a kernel, of an ONNX graph, and samples of its input (rows, channels)."""

  node: Any
  kernel: np.ndarray
  samples: np.ndarray


def prepared(model: Any, inputs: Sequence[dict[str, np.ndarray]]) -> list[str]:
  """Smooths a model of float32 in place, by its inputs for some images; the names of the layers to quantise."""
  from onnx import numpy_helper

  kernels = {tensor.name: tensor for tensor in model.graph.initializer}
  nodes = [
    node for node in model.graph.node if node.op_type in ('MatMul', 'Conv') and node.input[1] in kernels
  ]
  nodes = nodes[1:-1]  # the first and the last are small and sensitive
  products = [node for node in nodes if node.op_type == 'MatMul']
  samples = _samples(model, sorted({node.input[0] for node in products}), inputs)
  layers = [
    _Layer(node, numpy_helper.to_array(kernels[node.input[1]]), samples[node.input[0]]) for node in products
  ]
  norms = {node.output[0]: node for node in model.graph.node if node.op_type == 'LayerNormalization'}
  readers: dict[str, list[Any]] = {}
  for node in model.graph.node:
    for name in node.input:
      readers.setdefault(name, []).append(node)
  noisy = set()
  for name in samples:
    group = [layer for layer in layers if layer.node.input[0] == name]
    if name in norms and len(readers[name]) == len(group):
      group = _smoothed(model, norms[name], group, kernels)
    noisy |= {layer.node.name for layer in group if _noise(layer) > _MOST_NOISE}
  return [node.name for node in nodes if node.name not in noisy]


def _samples(
  model: Any, names: Sequence[str], inputs: Sequence[dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
  """What values of the graph are for these inputs, (rows, channels) each."""
  import onnx

  from vit_jax.export import libraries

  seen = onnx.ModelProto()
  seen.CopyFrom(model)
  for name in names:
    seen.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
  options = libraries.onnxruntime().SessionOptions()
  options.log_severity_level = 3
  session = libraries.onnxruntime().InferenceSession(
    seen.SerializeToString(), options, providers=['CPUExecutionProvider']
  )
  runs = [session.run(list(names), each) for each in inputs]
  return {
    name: np.concatenate([run[i].reshape(-1, run[i].shape[-1]) for run in runs])
    for i, name in enumerate(names)
  }


def _smoothed(model: Any, norm: Any, group: list[_Layer], kernels: dict[str, Any]) -> list[_Layer]:
  """The layers that read a norm's output, smoothed; the model gets their kernels and the norm's scale and bias."""
  from onnx import numpy_helper

  tiny = 1e-6
  largest = np.abs(group[0].samples).max(axis=0) + tiny
  rows = np.max([np.abs(layer.kernel).max(axis=1) for layer in group], axis=0) + tiny
  factors = np.sqrt(largest / rows).astype(np.float32)
  replaced = [(norm, i, numpy_helper.to_array(kernels[norm.input[i]]) / factors) for i in (1, 2)]
  replaced += [(layer.node, 1, layer.kernel * factors[:, None]) for layer in group]
  for node, i, array in replaced:
    name = f'{node.name}_smoothed_{i}'
    model.graph.initializer.append(numpy_helper.from_array(array, name))
    node.input[i] = name
  return [_Layer(layer.node, layer.kernel * factors[:, None], layer.samples / factors) for layer in group]


def _noise(layer: _Layer) -> float:
  """The mean square that rounding its input adds to a layer's output, as a share of that output's."""
  step = (layer.samples.max() - layer.samples.min()) / 255
  output = np.square(layer.samples @ layer.kernel).sum(axis=1).mean()
  return float(step**2 / 12 * np.square(layer.kernel).sum() / output)
