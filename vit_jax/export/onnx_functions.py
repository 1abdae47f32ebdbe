"""Functions of the models that become one ONNX operation, or a few, instead of one for each of their equations.

Runtimes have kernels for them: LayerNormalization, Gelu, Softmax. A function is known by its name and module where JAX
keeps its boundary, and by its equations where JAX inlines it. What is exported is compared with the model (check.py).
"""

import functools
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from vit_jax.export.onnx_graph import Graph, Tensor, Value

Emit = Callable[[Graph, Any, list[Any]], list[Value]]


def of_call(equation: Any) -> Emit | None:
  """What emits the call of a function; None: it is inlined."""
  inner = equation.params.get('call_jaxpr', equation.params.get('jaxpr'))
  if inner is None or equation.primitive.name not in ('remat2', 'checkpoint', 'custom_vjp_call'):
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


_FUNCTIONS: dict[tuple[str, str], Emit] = {
  ('norms', '_normalise'): _layer_norm,
  ('norms', '_normalise_in_one_pass'): _layer_norm,
  ('convolutions', '_normalise'): _group_norm,
  ('attention', '_attend'): _attend,
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


class Match(NamedTuple):
  """Consecutive equations that are a function of one array."""

  length: int
  input: Any
  output: Any
  emit: Callable[[Graph, Tensor], Tensor]


def match(equations: Sequence[Any], position: int) -> Match | None:
  """The function that begins at this equation, if any."""
  for function, attributes in _ELEMENTWISE:
    pattern = _traced(function)
    if equations[position].primitive is not pattern.eqns[0].primitive:
      continue
    found = _unified(pattern, equations[position : position + len(pattern.eqns)])
    if found is not None:
      emit = functools.partial(_gelu, **attributes)
      return Match(len(pattern.eqns), found, equations[position + len(pattern.eqns) - 1].outvars[0], emit)
  return None


def _gelu(graph: Graph, x: Tensor, approximate: str) -> Tensor:
  return graph.tensor('Gelu', [x], x, approximate=approximate)


_ELEMENTWISE: tuple[tuple[Callable[..., Any], dict[str, Any]], ...] = (
  (functools.partial(jax.nn.gelu, approximate=True), {'approximate': 'tanh'}),
  (functools.partial(jax.nn.gelu, approximate=False), {'approximate': 'none'}),
)


@functools.cache
def _traced(function: Callable[..., Any]) -> core.Jaxpr:
  jaxpr = jax.make_jaxpr(function)(jnp.zeros(3, jnp.float32)).jaxpr
  while len(jaxpr.eqns) == 1:  # the compiled function itself
    jaxpr = jaxpr.eqns[0].params['jaxpr'].jaxpr
  return jaxpr


def _unified(pattern: core.Jaxpr, equations: Sequence[Any]) -> Any | None:
  """The variable that is the input of a pattern in equations; None: they are not the pattern."""
  names: dict[Any, Any] = {}
  if len(equations) < len(pattern.eqns):
    return None
  for ours, theirs in zip(pattern.eqns, equations, strict=True):
    if ours.primitive is not theirs.primitive or len(ours.invars) != len(theirs.invars):
      return None
    if any(ours.params.get(key) != theirs.params.get(key) for key in ('y', 'accuracy')):
      return None
    for a, b in zip(ours.invars, theirs.invars, strict=True):
      if isinstance(a, core.Literal):
        if not isinstance(b, core.Literal) or abs(float(a.val) - float(b.val)) > 1e-2 * abs(float(a.val)):
          return None
      elif isinstance(b, core.Literal) or names.setdefault(a, b) is not b:
        return None
    names.update(zip(ours.outvars, theirs.outvars, strict=True))
  return names[pattern.invars[0]]
