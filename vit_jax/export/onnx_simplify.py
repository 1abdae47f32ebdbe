"""Rewrites of a graph that change no result beyond rounding: fewer operations on arrays of all tokens or pixels.

A reshape or transposition moves behind arithmetic with known numbers. Factors of an output's channels (LayerScale,
batch norm, the scale of queries) are multiplied into the kernel and bias of the layer before.
"""

from collections import Counter
from typing import Any

import numpy as np

from vit_jax.export.onnx_graph import Graph, Node

_ARITHMETIC = ('Add', 'Sub', 'Mul', 'Div')


def simplify(graph: Graph) -> None:
  """Rewrites the nodes of a graph in place."""
  graph.remove_unused()
  while any([_moved_behind(graph), _folded(graph)]):
    pass
  graph.remove_unused()


class _Index:
  """Who makes a value, and how many read it."""

  def __init__(self, graph: Graph):
    self.makers = {output: node for node in graph.nodes for output in node.outputs}
    self.readers = Counter(name for node in graph.nodes for name in node.inputs)
    self.readers.update(tensor.name for tensor in graph.outputs)

  def only_for(self, name: str, *ops: str) -> Node | None:
    """The node of one of these operations that makes a value which is read once; None: there is none."""
    node = self.makers.get(name)
    return node if node is not None and node.op in ops and self.readers[name] == 1 else None


def _with_known(graph: Graph, node: Node) -> tuple[str, np.ndarray] | None:
  """The value and the known numbers of arithmetic of both, the value first unless the order is no matter."""
  if node.op not in _ARITHMETIC:
    return None
  a, b = node.inputs
  if b in graph.constants and a not in graph.constants:
    return a, graph.constants[b]
  if a in graph.constants and b not in graph.constants and node.op in ('Add', 'Mul'):
    return b, graph.constants[a]
  return None


def _moved_behind(graph: Graph) -> bool:
  """Moves reshapes that divide the last axis, and transpositions, behind arithmetic with known numbers."""
  index, changed, nodes = _Index(graph), False, []
  for node in graph.nodes:
    nodes.append(node)
    known = _with_known(graph, node)
    before = known and index.only_for(known[0], 'Reshape', 'Transpose')
    if not known or not before:
      continue
    numbers = _before_layout(graph, before, known[1])
    if numbers is None:
      continue
    nodes.remove(before)
    nodes.remove(node)
    inner = f'{node.outputs[0]}_inner'
    graph.shapes[inner] = graph.shapes[before.inputs[0]]
    moved = Node(node.op, [before.inputs[0], graph.constant(numbers)], [inner], node.attributes)
    behind = Node(before.op, [inner, *before.inputs[1:]], node.outputs, before.attributes)
    nodes += [moved, behind]
    index.makers |= {inner: moved, node.outputs[0]: behind}
    index.readers[inner] = 1
    changed = True
  graph.nodes = nodes
  return changed


def _before_layout(graph: Graph, layout: Node, numbers: np.ndarray) -> np.ndarray | None:
  """Numbers for the arithmetic before a reshape or transposition in place of that behind it; None: there are none."""
  source, shape = graph.shapes.get(layout.inputs[0]), graph.shapes.get(layout.outputs[0])
  if source is None or shape is None:
    return None
  if numbers.size == 1:
    return numbers.reshape(())
  if numbers.ndim > len(shape):
    return None
  whole = numbers.reshape((1,) * (len(shape) - numbers.ndim) + numbers.shape)
  if layout.op == 'Transpose':
    back: Any = np.argsort(layout.attributes['perm'])
    turned = whole.transpose(back)
    while turned.ndim and turned.shape[0] == 1:
      turned = turned[0]
    return turned
  divided = len(shape) - len(source) + 1
  if divided < 1 or shape[:-divided] != source[:-1] or any(side != 1 for side in whole.shape[:-divided]):
    return None
  return np.broadcast_to(whole.reshape(whole.shape[-divided:]), shape[-divided:]).reshape(source[-1])


def _folded(graph: Graph) -> bool:
  """Multiplies factors of the outputs of a layer into its kernel and bias."""
  index, removed = _Index(graph), []
  for node in graph.nodes:
    known = _with_known(graph, node)
    layer = known and _layer(graph, index, known[0])
    if not known or layer is None:
      continue
    product, bias = layer
    channels = _of_channels(graph, product, known[1])
    if channels is None or (
      node.op in ('Add', 'Sub') and product.op == 'MatMul' and (bias is None or node.op == 'Sub')
    ):
      continue
    _apply(graph, node.op, channels, product, bias)
    last = bias or product
    index.makers[node.outputs[0]] = last
    last.outputs = node.outputs
    removed.append(node)
  graph.nodes = [node for node in graph.nodes if not any(node is other for other in removed)]
  return bool(removed)


def _layer(graph: Graph, index: _Index, name: str) -> tuple[Node, Node | None] | None:
  """The product or convolution with a known kernel that makes a value, and the addition of its bias if apart."""
  bias = index.only_for(name, 'Add')
  known = bias and _with_known(graph, bias)
  product = index.only_for(known[0] if known else name, 'MatMul', 'Conv')
  if product is None or product.inputs[1] not in graph.constants or (known and known[1].ndim > 1):
    return None
  return product, bias if known else None


def _of_channels(graph: Graph, product: Node, numbers: np.ndarray) -> np.ndarray | None:
  """(C,): numbers for each output of a layer; None: they differ within one."""
  kernel = graph.constants[product.inputs[1]]
  outputs, behind = (kernel.shape[-1], 0) if product.op == 'MatMul' else (kernel.shape[0], kernel.ndim - 2)
  if kernel.ndim != (2 if product.op == 'MatMul' else 4):
    return None
  if numbers.size == 1:
    return np.broadcast_to(numbers.reshape(()), outputs)
  fits = (
    numbers.size == outputs and numbers.ndim > behind and numbers.shape[numbers.ndim - 1 - behind] == outputs
  )
  return numbers.reshape(outputs) if fits else None


def _apply(graph: Graph, op: str, channels: np.ndarray, product: Node, bias: Node | None) -> None:
  """Folds arithmetic with numbers of the channels into a layer."""
  kernel = graph.constants[product.inputs[1]]
  if op in ('Mul', 'Div'):
    factors = channels if op == 'Mul' else (1 / channels.astype(np.float64)).astype(kernel.dtype)
    by_rows = factors.reshape(-1, 1, 1, 1) if product.op == 'Conv' else factors
    product.inputs[1] = graph.constant(kernel * by_rows)
    if bias is not None:
      value, numbers = _with_known(graph, bias) or ('', factors)
      bias.inputs = [value, graph.constant(numbers * factors)]
    if product.op == 'Conv' and len(product.inputs) == 3:
      product.inputs[2] = graph.constant(graph.constants[product.inputs[2]] * factors)
    return
  added = channels if op == 'Add' else -channels
  if product.op == 'Conv':
    before = graph.constants[product.inputs[2]] if len(product.inputs) == 3 else 0
    product.inputs[2:] = [graph.constant(before + added)]
  elif bias is not None:
    value, numbers = _with_known(graph, bias) or ('', added)
    bias.inputs = [value, graph.constant(numbers + added)]
