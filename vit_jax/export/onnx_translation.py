"""A traced function (a jaxpr) as an ONNX graph: its equations in their order, each by the rule of its primitive.

What depends on parameters alone is computed here and stored. Functions within the function are inlined, loops
unrolled; of what is computed by platform, the form for all others is taken. Some functions are one operation in ONNX
(onnx_functions.py).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend import core

from vit_jax.export import onnx_functions
from vit_jax.export.onnx_graph import Graph, Tensor, Value, like
from vit_jax.export.onnx_primitives import BROADCASTING, LAYOUTS, RULES
from vit_jax.foundation.errors import UserError


class Translator:
  """Adds a traced function to a graph."""

  def __init__(self, graph: Graph):
    self.graph = graph

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

  def _equation(self, equation: Any, inputs: list[Value]) -> Sequence[Value]:
    name = equation.primitive.name
    emit = onnx_functions.of_call(equation)
    if emit is not None and isinstance(inputs[0], Tensor):
      return emit(self.graph, equation, inputs)
    if name in _INLINED:
      return _INLINED[name](self, equation, inputs)
    sides = [side for output in equation.outvars for side in output.aval.shape]
    known = all(isinstance(value, np.ndarray) for value in inputs) and all(isinstance(s, int) for s in sides)
    if known and name not in LAYOUTS:
      return _computed(equation, inputs)
    rule = BROADCASTING.get(name) or RULES.get(name)
    if rule is None:
      raise UserError(
        f'The model computes {name!r}, which has no translation to ONNX yet; export it with --format=stablehlo.'
      )
    if name in RULES:
      inputs = [
        self.graph.full(x, variable.aval.shape) for x, variable in zip(inputs, equation.invars, strict=True)
      ]
    outputs = rule(self.graph, equation, *inputs)
    return outputs if isinstance(outputs, list) else [outputs]


def _as_known(value: Any) -> Value:
  return value if isinstance(value, Tensor) else np.asarray(value)


def _computed(equation: Any, inputs: list[Any]) -> list[np.ndarray]:
  """What an equation of known values gives."""
  full = [
    jnp.asarray(np.broadcast_to(value, variable.aval.shape))
    for value, variable in zip(inputs, equation.invars, strict=True)
  ]
  results = equation.primitive.bind(*full, **equation.params)
  return [*map(np.asarray, results if equation.primitive.multiple_results else [results])]


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
    of_step = [_row(translator.graph, row, number) for row in rows]
    outputs = translator.run(inner.jaxpr, inner.consts, [*shared, *carry, *of_step])
    carry = outputs[:carries]
    seen.append(list(outputs[carries:]))
  seen = seen[::-1] if params['reverse'] else seen
  stacked = [
    _stacked(translator.graph, [step[i] for step in seen], output)
    for i, output in enumerate(equation.outvars[carries:])
  ]
  return [*carry, *stacked]


def _row(graph: Graph, rows: Value, number: int) -> Value:
  if isinstance(rows, np.ndarray):
    return rows[number]
  return graph.tensor('Gather', [rows, np.array(number, np.int64)], like(rows.shape[1:], rows.dtype), axis=0)


def _stacked(graph: Graph, steps: list[Value], output: Any) -> Value:
  if all(isinstance(step, np.ndarray) for step in steps):
    return np.stack([np.asarray(step) for step in steps])
  return graph.stack([graph.full(step, output.aval.shape[1:]) for step in steps], 0, output.aval)


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
