"""A traced function (a jaxpr) as an ONNX graph: its equations in their order, each by the rule of its primitive.

What depends on parameters alone is computed here and stored. Functions within the function are inlined, loops
unrolled; of what is computed by platform, the form for all others is taken. Some functions are one operation in ONNX
(onnx_functions.py). The batch may be of any size, a symbol of `jax.export`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from vit_jax.export import onnx_functions
from vit_jax.export.onnx_graph import Dim, Graph, Tensor, Value
from vit_jax.foundation.errors import UserError


class Translator:
  """Adds a traced function to a graph.

  Attributes:
    graph: the graph.
    batch: name of the batch's size, int64 (1,).
  """

  def __init__(self, graph: Graph, batch: str):
    self.graph = graph
    self.batch = batch

  def run(self, jaxpr: core.Jaxpr, constants: Sequence[Any], inputs: Sequence[Value]) -> list[Value]:
    """The outputs of a jaxpr for these inputs."""
    values: dict[Any, Value] = {}

    def read(variable: Any) -> Value:
      return np.asarray(variable.val) if isinstance(variable, core.Literal) else values[variable]

    values.update(zip(jaxpr.constvars, map(_as_known, constants), strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))
    for equation in jaxpr.eqns:
      outputs = self._equation(equation, [read(variable) for variable in equation.invars])
      values.update(zip(equation.outvars, outputs, strict=True))
    return [read(variable) for variable in jaxpr.outvars]

  def full(self, value: Value, shape: Sequence[Dim]) -> Value:
    """A value of which broadcast sides may be of size 1, with the whole shape."""
    if tuple(value.shape) == tuple(shape):
      return value
    if isinstance(value, np.ndarray) and all(isinstance(side, int) for side in shape):
      return np.broadcast_to(value, shape)
    like = jax.ShapeDtypeStruct((), value.dtype)
    tensor = self.graph.tensor('Expand', [value, self.shape(shape)], like)
    return Tensor(tensor.name, tuple(shape), tensor.dtype)

  def shape(self, shape: Sequence[Dim]) -> Value | str:
    """int64 (rank,): a shape, whose sides may be multiples of the batch's size."""
    if all(isinstance(side, int) for side in shape):
      return np.array(shape, np.int64)
    sides = []
    for side in shape:
      if isinstance(side, int):
        sides.append(self.graph.constant(np.array([side], np.int64)))
        continue
      factor = side_factor(side)
      product = [self.batch, np.array([factor], np.int64)]
      sides.append(self.batch if factor == 1 else self.graph.add('Mul', product)[0])
    return self.graph.add('Concat', sides, axis=0)[0]

  def _equation(self, equation: Any, inputs: list[Value]) -> Sequence[Value]:
    name = equation.primitive.name
    emit = onnx_functions.of_call(equation)
    if emit is not None and isinstance(inputs[0], Tensor):
      return emit(self.graph, equation, inputs)
    if name in _INLINED:
      return _INLINED[name](self, equation, inputs)
    out_shape = [side for output in equation.outvars for side in output.aval.shape]
    if all(isinstance(value, np.ndarray) for value in inputs) and all(isinstance(s, int) for s in out_shape):
      return _computed(equation, inputs)
    from vit_jax.export.onnx_primitives import BROADCASTING, RULES

    rule = BROADCASTING.get(name) or RULES.get(name)
    if rule is None:
      raise UserError(
        f'The model computes {name!r}, which has no translation to ONNX yet; export it with --format=stablehlo.'
      )
    if name in RULES:
      inputs = [
        self.full(x, variable.aval.shape) for x, variable in zip(inputs, equation.invars, strict=True)
      ]
    outputs = rule(self, equation, *inputs)
    return outputs if isinstance(outputs, list) else [outputs]


def side_factor(side: Dim) -> int:
  """k of a side that is k times the batch's size; UserError for another."""
  one, two, three = (side._evaluate(dict.fromkeys(side._get_vars(), size)) for size in (1, 2, 3))
  if two != 2 * one or three != 3 * one:
    raise UserError(
      f'The model has an array of the size {side}, which ONNX gets for multiples of the batch only.'
    )
  return int(one)


def _as_known(value: Any) -> Value:
  return value if isinstance(value, Tensor) else np.asarray(value)


def _computed(equation: Any, inputs: list[Any]) -> list[np.ndarray]:
  """What an equation of known values gives."""
  params, outs = equation.params, equation.outvars
  simple = _IN_NUMPY.get(equation.primitive.name)
  if simple is not None:
    return [simple(params, *inputs)]
  full = [
    np.broadcast_to(value, variable.aval.shape)
    for value, variable in zip(inputs, equation.invars, strict=True)
  ]
  results = equation.primitive.bind(*map(jnp.asarray, full), **params)
  results = results if equation.primitive.multiple_results else [results]
  assert len(results) == len(outs)
  return [np.asarray(result) for result in results]


# Primitives that NumPy computes, since JAX would compile a program for each shape and place.
_IN_NUMPY: dict[str, Callable[..., np.ndarray]] = {
  'slice': lambda params, x: x[
    tuple(map(slice, params['start_indices'], params['limit_indices'], params['strides'] or (1,) * x.ndim))
  ],
  'squeeze': lambda params, x: x.squeeze(params['dimensions']),
  'reshape': lambda params, x: x.reshape(params['new_sizes']),
  'transpose': lambda params, x: x.transpose(params['permutation']),
  'convert_element_type': lambda params, x: x.astype(params['new_dtype']),
  'broadcast_in_dim': lambda params, x: _unsqueezed(params, x),
}


def _unsqueezed(params: Any, x: np.ndarray) -> np.ndarray:
  shape = [1] * len(params['shape'])
  for axis, side in zip(params['broadcast_dimensions'], x.shape, strict=True):
    shape[axis] = side
  return x.reshape(shape)


def _call(key: str) -> Callable[..., Sequence[Value]]:
  def inline(translator: Translator, equation: Any, inputs: list[Value]) -> Sequence[Value]:
    inner = equation.params[key]
    # From JAX 0.11 on every Jaxpr may have constants, before it a ClosedJaxpr alone.
    return translator.run(getattr(inner, 'jaxpr', inner), getattr(inner, 'consts', ()), inputs)

  return inline


def _scan(translator: Translator, equation: Any, inputs: list[Value]) -> Sequence[Value]:
  """A loop of known length, unrolled."""
  params, inner = equation.params, equation.params['jaxpr']
  if 'ft_in' in params:  # from JAX 0.11 on
    consts, carries, _ = map(len, params['ft_in'].unpack())
  else:
    consts, carries = params['num_consts'], params['num_carry']
  shared, carry, rows = inputs[:consts], inputs[consts : consts + carries], inputs[consts + carries :]
  seen: list[list[Value]] = []
  numbers = range(params['length'])
  for number in reversed(numbers) if params['reverse'] else numbers:
    of_step = [_row(translator, row, number) for row in rows]
    outputs = translator.run(inner.jaxpr, inner.consts, [*shared, *carry, *of_step])
    carry = outputs[:carries]
    seen.append(list(outputs[carries:]))
  seen = seen[::-1] if params['reverse'] else seen
  stacked = [
    _stacked(translator, [step[i] for step in seen], output)
    for i, output in enumerate(equation.outvars[carries:])
  ]
  return [*carry, *stacked]


def _row(translator: Translator, rows: Value, number: int) -> Value:
  if isinstance(rows, np.ndarray):
    return rows[number]
  like = jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype)
  return translator.graph.tensor('Gather', [rows, np.array(number, np.int64)], like, axis=0)


def _stacked(translator: Translator, steps: list[Value], output: Any) -> Value:
  if all(isinstance(step, np.ndarray) for step in steps):
    return np.stack([np.asarray(step) for step in steps])
  axes = np.array([0], np.int64)
  full = [translator.full(step, output.aval.shape[1:]) for step in steps]
  rows = [translator.graph.add('Unsqueeze', [step, axes])[0] for step in full]
  return translator.graph.tensor('Concat', rows, output.aval, axis=0)


def _cond(translator: Translator, equation: Any, inputs: list[Value]) -> Sequence[Value]:
  index, *operands = inputs
  if isinstance(index, Tensor):
    raise UserError(
      "The model decides by an image's numbers what it computes, which cannot be exported to ONNX."
    )
  branches = equation.params['branches']
  chosen = branches[int(np.clip(index, 0, len(branches) - 1))]
  return translator.run(chosen.jaxpr, chosen.consts, operands)


def _platform(translator: Translator, equation: Any, inputs: list[Value]) -> Sequence[Value]:
  """The number of the branch for platforms that are not named."""
  platforms = equation.params['platforms']
  return [np.asarray(next((i for i, names in enumerate(platforms) if names is None), 0), np.int32)]


_INLINED: dict[str, Callable[..., Sequence[Value]]] = {
  'jit': _call('jaxpr'),
  'pjit': _call('jaxpr'),
  'closed_call': _call('call_jaxpr'),
  'remat2': _call('jaxpr'),
  'checkpoint': _call('jaxpr'),
  'custom_jvp_call': _call('call_jaxpr'),
  'custom_vjp_call': _call('call_jaxpr'),
  'scan': _scan,
  'cond': _cond,
  'platform_index': _platform,
}
