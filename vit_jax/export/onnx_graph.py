"""An ONNX graph as it is built: nodes and constants, each of which stands in it once.

Known values are NumPy's arrays, whose layouts are computed at once. The batch is of any size, a symbol of `jax.export`.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import external_data_helper, helper, numpy_helper

from vit_jax.foundation.errors import UserError

Dim = Any  # an int, or JAX's expression of the batch's size
OPSET = 20
# Files of the protocol buffer format end here; larger models have their constants beside them.
_LARGEST_FILE = 2**31 - 2**20
_INLINE = 1024  # bytes of a constant that stays in the file in any case


@dataclasses.dataclass(frozen=True)
class Tensor:
  """A value that the graph computes: its name, its shape as ONNX has it, and its dtype in JAX."""

  name: str
  shape: tuple[Dim, ...]
  dtype: np.dtype


Value = Tensor | np.ndarray  # computed by the graph, or known


def like(shape: Sequence[Dim], dtype: Any) -> Tensor:
  """The shape and dtype of a value that is yet to be computed."""
  return Tensor('', tuple(shape), np.dtype(dtype))


def onnx_type(dtype: Any) -> int:
  """ONNX's number of a dtype of JAX."""
  return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


@dataclasses.dataclass
class Node:
  """An operation of ONNX."""

  op: str
  inputs: list[str]
  outputs: list[str]
  attributes: dict[str, Any]


class Graph:
  """Nodes in their order, and constants by their names.

  Attributes:
    nodes, constants, inputs, outputs: what it is made of; the constants by their names.
    shapes: of what nodes give, as far as they are known, by name.
    batch: name of the batch's size, int64 (1,).
  """

  def __init__(self) -> None:
    self.nodes: list[Node] = []
    self.constants: dict[str, np.ndarray] = {}
    self.inputs: list[Tensor] = []
    self.outputs: list[Tensor] = []
    self.shapes: dict[str, tuple[Dim, ...]] = {}
    self.batch = ''
    self._known: dict[Any, Any] = {}

  def constant(self, array: np.ndarray) -> str:
    """The name of an array; equal ones are stored once."""
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    digest = hashlib.sha1(array.tobytes()).digest()
    key = (str(array.dtype), array.shape, digest)
    if key not in self._known:
      self._known[key] = f'constant_{len(self.constants)}'
      self.constants[self._known[key]] = array
    return self._known[key]

  def name_of(self, value: Value) -> str:
    """The name of a value, which is stored where it is known."""
    return value.name if isinstance(value, Tensor) else self.constant(value)

  def add(
    self,
    op: str,
    inputs: Sequence[Value | str | None],
    *,
    outputs: int = 1,
    **attributes: Any,
  ) -> list[str]:
    """The names of what an operation gives; None is an input that is left out. Equal operations are done once."""
    names = [
      '' if value is None else value if isinstance(value, str) else self.name_of(value) for value in inputs
    ]
    key = (op, tuple(names), repr(sorted(attributes.items())))
    if key not in self._known:
      made = [f'{op.lower()}_{len(self.nodes)}' + (f'_{i}' if i else '') for i in range(outputs)]
      self.nodes.append(Node(op, names, made, attributes))
      self._known[key] = made
    return self._known[key]

  def tensor(self, op: str, inputs: Sequence[Value | str | None], like: Any, **attributes: Any) -> Tensor:
    """The one result of an operation, of the shape and dtype of `like`."""
    (name,) = self.add(op, inputs, **attributes)
    self.shapes[name] = tuple(like.shape)
    return Tensor(name, tuple(like.shape), np.dtype(like.dtype))

  def cast(self, x: Value, dtype: Any) -> Value:
    """A value in another dtype."""
    if x.dtype == dtype:
      return x
    if isinstance(x, np.ndarray):
      return x.astype(dtype)
    return self.tensor('Cast', [x], like(x.shape, dtype), to=onnx_type(dtype))

  def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
    """A value in another shape."""
    if tuple(x.shape) == tuple(shape):
      return x
    if isinstance(x, np.ndarray):
      return x.reshape(shape)
    one_unknown = sum(not isinstance(side, int) for side in shape) == 1
    to = self.shape([side if isinstance(side, int) else -1 for side in shape] if one_unknown else shape)
    return self.tensor('Reshape', [x, to], like(shape, x.dtype))

  def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
    """A transposition; two that follow each other become one."""
    if isinstance(x, np.ndarray):
      return x.transpose(permutation)
    source, turned = x.name, like([x.shape[axis] for axis in permutation], x.dtype)
    node = next((node for node in reversed(self.nodes) if x.name in node.outputs), None)
    if node is not None and node.op == 'Transpose':
      source, permutation = node.inputs[0], [node.attributes['perm'][axis] for axis in permutation]
    if list(permutation) == sorted(permutation):
      return dataclasses.replace(turned, name=source)
    return self.tensor('Transpose', [source], turned, perm=list(permutation))

  def stack(self, values: Sequence[Value], axis: int, result: Any) -> Tensor:
    """Values of one shape along a new axis."""
    single = [self.add('Unsqueeze', [x, np.array([axis])])[0] for x in values]
    return self.tensor('Concat', single, result, axis=axis)

  def full(self, x: Value, shape: Sequence[Dim]) -> Value:
    """A value of which broadcast sides may be of size 1, with the whole shape."""
    if tuple(x.shape) == tuple(shape):
      return x
    if isinstance(x, np.ndarray) and all(isinstance(side, int) for side in shape):
      return np.broadcast_to(x, shape)
    tensor = self.tensor('Expand', [x, self.shape(shape)], like((), x.dtype))
    return dataclasses.replace(tensor, shape=tuple(shape))

  def shape(self, shape: Sequence[Dim]) -> Value | str:
    """int64 (rank,): a shape, whose sides may be multiples of the batch's size."""
    if all(isinstance(side, int) for side in shape):
      return np.array(shape, np.int64)
    return self.add('Concat', [self._side(side) for side in shape], axis=0)[0]

  def _side(self, side: Dim) -> Value | str:
    """int64 (1,): a side of a shape; UserError where it is no multiple of the batch's size."""
    if isinstance(side, int):
      return np.array([side], np.int64)
    one, two, three = (side._evaluate(dict.fromkeys(side._get_vars(), size)) for size in (1, 2, 3))
    if two != 2 * one or three != 3 * one:
      raise UserError(
        f'The model has an array of the size {side}, which ONNX gets for multiples of the batch only.'
      )
    return self.batch if one == 1 else self.add('Mul', [self.batch, np.array([one], np.int64)])[0]

  def remove_unused(self) -> None:
    """Removes nodes and constants on which no output depends."""
    needed, kept = {tensor.name for tensor in self.outputs}, []
    for node in reversed(self.nodes):
      if needed.intersection(node.outputs):
        needed.update(node.inputs)
        kept.append(node)
    self.nodes = kept[::-1]
    self.constants = {name: array for name, array in self.constants.items() if name in needed}

  def save(self, path: pathlib.Path, metadata: Mapping[str, str]) -> list[pathlib.Path]:
    """Writes the graph with its constants, those beyond 2 GB in a file beside it; the files written."""

    def info(tensor: Tensor) -> onnx.ValueInfoProto:
      shape = [side if isinstance(side, int) else str(side) for side in tensor.shape]
      return helper.make_tensor_value_info(tensor.name, onnx_type(tensor.dtype), shape)

    nodes = [
      helper.make_node(node.op, node.inputs, node.outputs, node.outputs[0], **node.attributes)
      for node in self.nodes
    ]
    graph = helper.make_graph(nodes, 'vit_jax', list(map(info, self.inputs)), list(map(info, self.outputs)))
    opsets = [helper.make_opsetid('', OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, producer_name='vit_jax', ir_version=9)
    helper.set_model_props(model, dict(metadata))
    beside = path.with_name(f'{path.name}.data')
    beside.unlink(missing_ok=True)
    external = sum(array.nbytes for array in self.constants.values()) > _LARGEST_FILE
    for name, array in self.constants.items():
      tensor = numpy_helper.from_array(array, name)
      if external and array.nbytes >= _INLINE:
        external_data_helper.set_external_data(tensor, beside.name)
      model.graph.initializer.append(tensor)
    onnx.save(model, path)
    return [path, beside] if external else [path]
