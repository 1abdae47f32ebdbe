"""An ONNX graph as it is built: nodes and constants, each of which stands in it once."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import external_data_helper, helper, numpy_helper

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
  """

  def __init__(self) -> None:
    self.nodes: list[Node] = []
    self.constants: dict[str, np.ndarray] = {}
    self.inputs: list[Tensor] = []
    self.outputs: list[Tensor] = []
    self.shapes: dict[str, tuple[Dim, ...]] = {}
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
      return helper.make_tensor_value_info(tensor.name, helper.np_dtype_to_tensor_dtype(tensor.dtype), shape)

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
