"""Functions of the models that become one ONNX operation, or a few, instead of one for each of their equations.

Runtimes have kernels for them: LayerNormalization, Gelu, Softmax. A function is known by its name and module, where
the models keep its boundary by `jax.jit` or `jax.checkpoint`. What is exported is compared with the model (check.py).
"""

import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.extend import core

from vit_jax.export.onnx_graph import Graph, Value, like

Emit = Callable[[Graph, Any, list[Any]], list[Value]]


def of_call(equation: Any) -> Emit | None:
  """What emits the call of a function; None: it is inlined."""
  if equation.primitive.name not in ('jit', 'remat2', 'checkpoint', 'custom_vjp_call'):
    return None
  info = _inner(equation).debug_info.func_src_info
  found = re.match(r'(\w+) at (.+):\d+', info or '')
  return found and _FUNCTIONS.get((pathlib.Path(found[2]).stem, found[1]))


def _inner(equation: Any) -> core.Jaxpr:
  """What a call computes."""
  inner = equation.params.get('call_jaxpr', equation.params.get('jaxpr'))
  return getattr(inner, 'jaxpr', inner)


def _layer_norm(graph: Graph, equation: Any, inputs: list[Any]) -> list[Value]:
  x, *affine = inputs
  affine = [array.astype(x.dtype) for array in affine]
  return [graph.tensor('LayerNormalization', [x, *affine], x, axis=-1, epsilon=_epsilon(_inner(equation)))]


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
  first = graph.add('Transpose', [graph.cast(x, np.dtype(np.float32))], perm=[0, 3, 1, 2])
  groups = graph.add('Reshape', [*first, np.array([0, GROUPS, -1], np.int64)])
  ones = np.ones(GROUPS, np.float32)
  epsilon = _epsilon(_inner(equation))
  normal = graph.add('InstanceNormalization', [*groups, ones, 0 * ones], epsilon=epsilon)
  maps = graph.add('Reshape', [*normal, np.array([-1, channels, height, width], np.int64)])
  for op, array in (('Mul', scale), ('Add', bias)):
    maps = graph.add(op, [*maps, array.reshape(channels, 1, 1)])
  turned = like(x.shape, np.float32)
  return [graph.cast(graph.tensor('Transpose', maps, turned, perm=[0, 2, 3, 1]), x.dtype)]


def _attend(graph: Graph, equation: Any, inputs: list[Any]) -> list[Value]:
  """Attention of queries (B, H, Q, Dh), scaled, to keys and values (B, H, N, Dh), perhaps with a bias."""
  if len(equation.outvars) != 1:
    raise AssertionError('tokens are not cut into groups in the form for inference (inference.py)')
  query, key, value, *bias = inputs
  logits = like((*query.shape[:3], key.shape[2]), query.dtype)
  products = graph.tensor('MatMul', [query, graph.transpose(key, (0, 1, 3, 2))], logits)
  wide: Any = graph.cast(products, np.dtype(np.float32))
  if bias:
    wide = graph.tensor('Add', [wide, *bias], wide)
  weights = graph.cast(graph.tensor('Softmax', [wide], wide, axis=-1), query.dtype)
  return [graph.tensor('MatMul', [weights, value], equation.outvars[0].aval)]


def _gelu(approximate: str) -> Emit:
  def emit(graph: Graph, equation: Any, inputs: list[Any]) -> list[Value]:
    (x,) = inputs
    return [graph.tensor('Gelu', [x], x, approximate=approximate)]

  return emit


_FUNCTIONS: dict[tuple[str, str], Emit] = {
  ('norms', '_normalise'): _layer_norm,
  ('norms', '_normalise_in_one_pass'): _layer_norm,
  ('convolutions', '_normalise'): _group_norm,
  ('attention', '_attend'): _attend,
  ('activations', 'gelu'): _gelu('none'),
  ('activations', 'gelu_tanh'): _gelu('tanh'),
}
