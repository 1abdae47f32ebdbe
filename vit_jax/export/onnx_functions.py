"""Functions of the models that become one ONNX operation, or a few, instead of one for each of their equations.

Runtimes have kernels for them: LayerNormalization, Gelu, Softmax. A function is known by its name and module, where
the models keep its boundary by `jax.jit` or `jax.checkpoint`. What is exported is compared with the model (check.py).
"""

import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from vit_jax.export.onnx_graph import Graph, Tensor, Value

Emit = Callable[[Graph, Any, list[Any]], list[Value]]


def of_call(equation: Any) -> Emit | None:
  """What emits the call of a function; None: it is inlined."""
  inner = equation.params.get('call_jaxpr', equation.params.get('jaxpr'))
  if inner is None or equation.primitive.name not in ('jit', 'remat2', 'checkpoint', 'custom_vjp_call'):
    return None
  info = getattr(inner, 'jaxpr', inner).debug_info.func_src_info
  found = re.match(r'(\w+) at (.+):\d+', info or '')
  return found and _FUNCTIONS.get((pathlib.Path(found[2]).stem, found[1]))


def _layer_norm(graph: Graph, equation: Any, inputs: list[Any]) -> list[Value]:
  x, scale, bias = inputs
  inner = equation.params.get('call_jaxpr', equation.params.get('jaxpr'))
  scale, bias = (array.astype(x.dtype) for array in (scale, bias))
  epsilon = _epsilon(getattr(inner, 'jaxpr', inner))
  return [graph.tensor('LayerNormalization', [x, scale, bias], x, axis=-1, epsilon=epsilon)]


def _epsilon(jaxpr: core.Jaxpr) -> float:
  """What is added to the variance."""
  (root,) = (equation for equation in jaxpr.eqns if equation.primitive.name == 'rsqrt')
  (added,) = (equation for equation in jaxpr.eqns if root.invars[0] in equation.outvars)
  epsilon: Any = added.invars[1]
  return float(epsilon.val)


def _group_norm(graph: Graph, equation: Any, inputs: list[Any]) -> list[Value]:
  from vit_jax.models.convolutions import GROUPS

  x, scale, bias = inputs
  _, height, width, channels = x.shape
  wide = _cast(graph, x, np.dtype(np.float32))
  first = graph.add('Transpose', [wide], perm=[0, 3, 1, 2])
  groups = graph.add('Reshape', [*first, np.array([0, GROUPS, -1], np.int64)])
  ones = np.ones(GROUPS, np.float32)
  epsilon = _epsilon(equation.params['jaxpr'])
  normal = graph.add('InstanceNormalization', [*groups, ones, 0 * ones], epsilon=epsilon)
  maps = graph.add('Reshape', [*normal, np.array([-1, channels, height, width], np.int64)])
  for op, array in (('Mul', scale), ('Add', bias)):
    maps = graph.add(op, [*maps, array.reshape(channels, 1, 1)])
  like = jax.ShapeDtypeStruct(x.shape, wide.dtype)
  return [_cast(graph, graph.tensor('Transpose', maps, like, perm=[0, 2, 3, 1]), x.dtype)]


def _attend(graph: Graph, equation: Any, inputs: list[Any]) -> list[Value]:
  """Attention of queries (B, H, Q, Dh), scaled, to keys and values (B, H, N, Dh), perhaps with a bias."""
  if len(equation.outvars) != 1:
    raise AssertionError('tokens are not cut into groups in the form for inference (inference.py)')
  query, key, value, *bias = inputs
  batch, heads, queries, _ = query.shape
  logits = jax.ShapeDtypeStruct((batch, heads, queries, key.shape[2]), query.dtype)
  turned = jax.ShapeDtypeStruct((*key.shape[:2], key.shape[3], key.shape[2]), key.dtype)
  keys = transposed(graph, key, (0, 1, 3, 2), turned)
  products = graph.tensor('MatMul', [query, keys], logits)
  wide = _cast(graph, products, np.dtype(np.float32))
  if bias:
    wide = graph.tensor('Add', [wide, *bias], wide)
  weights = _cast(graph, graph.tensor('Softmax', [wide], wide, axis=-1), query.dtype)
  return [graph.tensor('MatMul', [weights, value], equation.outvars[0].aval)]


def _gelu(graph: Graph, equation: Any, inputs: list[Any]) -> list[Value]:
  (x,) = inputs
  by_tanh = any(inner.primitive.name == 'tanh' for inner in equation.params['jaxpr'].jaxpr.eqns)
  return [graph.tensor('Gelu', [x], x, approximate='tanh' if by_tanh else 'none')]


_FUNCTIONS: dict[tuple[str, str], Emit] = {
  ('norms', '_normalise'): _layer_norm,
  ('norms', '_normalise_in_one_pass'): _layer_norm,
  ('convolutions', '_normalise'): _group_norm,
  ('attention', '_attend'): _attend,
  ('functions', 'gelu'): _gelu,
}


def _cast(graph: Graph, value: Tensor, dtype: np.dtype) -> Tensor:
  if value.dtype == dtype:
    return value
  like = jax.ShapeDtypeStruct(value.shape, dtype)
  return graph.tensor('Cast', [value], like, to=onnx_type(dtype))


def onnx_type(dtype: Any) -> int:
  """ONNX's number of a dtype of JAX."""
  from onnx import helper

  return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def transposed(graph: Graph, value: Tensor, permutation: Sequence[int], like: Any) -> Tensor:
  """A transposition; two that follow each other become one."""
  source, permutation = value.name, list(permutation)
  for node in reversed(graph.nodes):
    if value.name in node.outputs:
      if node.op == 'Transpose':
        source = node.inputs[0]
        permutation = [node.attributes['perm'][axis] for axis in permutation]
      break
  if permutation == sorted(permutation):
    return Tensor(source, tuple(like.shape), np.dtype(like.dtype))
  return graph.tensor('Transpose', [source], like, perm=permutation)
