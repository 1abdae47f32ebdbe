"""How each primitive of JAX is written in ONNX: a rule (graph, equation, *inputs) gives its outputs."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vit_jax.export.onnx_graph import Dim, Graph, Tensor, Value, like
from vit_jax.foundation.errors import UserError

_ELEMENTWISE = {
  'add': 'Add',
  'add_any': 'Add',
  'sub': 'Sub',
  'mul': 'Mul',
  'div': 'Div',
  'max': 'Max',
  'min': 'Min',
  'pow': 'Pow',
  'neg': 'Neg',
  'abs': 'Abs',
  'sign': 'Sign',
  'floor': 'Floor',
  'ceil': 'Ceil',
  'exp': 'Exp',
  'log': 'Log',
  'tanh': 'Tanh',
  'sin': 'Sin',
  'cos': 'Cos',
  'erf': 'Erf',
  'sqrt': 'Sqrt',
  'logistic': 'Sigmoid',
  'eq': 'Equal',
  'lt': 'Less',
  'le': 'LessOrEqual',
  'gt': 'Greater',
  'ge': 'GreaterOrEqual',
  'and': 'And',
  'or': 'Or',
  'not': 'Not',
}


def _broadcast(*values: Value) -> tuple[Dim, ...]:
  """The shape of an elementwise operation on values whose sides may be 1."""
  rank = max(len(value.shape) for value in values)
  sides = zip(*([1] * (rank - len(value.shape)) + list(value.shape) for value in values), strict=True)
  return tuple(
    next((side for side in each if not (isinstance(side, int) and side == 1)), 1) for each in sides
  )


def _elementwise(op: str) -> Callable[..., Value]:
  def rule(graph: Graph, equation: Any, *inputs: Value) -> Value:
    return graph.tensor(op, inputs, like(_broadcast(*inputs), equation.outvars[0].aval.dtype))

  return rule


def _integer_pow(graph: Graph, equation: Any, x: Tensor) -> Value:
  power = equation.params['y']
  return graph.tensor(*(('Mul', [x, x]) if power == 2 else ('Pow', [x, np.array(power, x.dtype)])), x)


def _select(graph: Graph, equation: Any, which: Value, *cases: Value) -> Value:
  if len(cases) != 2:
    raise UserError('The model selects among more than two arrays, which has no translation to ONNX yet.')
  return _elementwise('Where')(graph, equation, which, cases[1], cases[0])


def _reshape(graph: Graph, equation: Any, x: Value) -> Value:
  return graph.reshape(x, equation.outvars[0].aval.shape)


def _broadcast_in_dim(graph: Graph, equation: Any, x: Value, *sizes: Value) -> Value:
  """The sides stand where they should, of size 1 where they are repeated: `Graph.full` repeats them."""
  shape: list[Dim] = [1] * len(equation.outvars[0].aval.shape)
  for axis, side in zip(equation.params['broadcast_dimensions'], x.shape, strict=True):
    shape[axis] = side
  return graph.reshape(x, shape)


def _reduce(op: str) -> Callable[..., Value]:
  def rule(graph: Graph, equation: Any, x: Value) -> Value:
    axes = np.array(equation.params['axes'], np.int64)
    return graph.tensor(op, [x, axes], equation.outvars[0].aval, keepdims=0)

  return rule


def _concatenate(graph: Graph, equation: Any, *inputs: Value) -> Value:
  axis = equation.params['dimension']
  return graph.tensor('Concat', inputs, equation.outvars[0].aval, axis=axis)


def _slice(graph: Graph, equation: Any, x: Value) -> Value:
  params = equation.params
  strides = params['strides'] or (1,) * len(x.shape)
  cut = [*zip(params['start_indices'], params['limit_indices'], strides, strict=True)]
  return _sliced(graph, x, dict(enumerate(cut)), equation.outvars[0].aval)


def _sliced(graph: Graph, x: Value, cut: dict[int, tuple[Any, Any, int]], result: Any) -> Value:
  """`cut`: start, limit and stride by axis."""
  if isinstance(x, np.ndarray):
    return x[tuple(slice(*cut.get(axis, (None,))) for axis in range(x.ndim))]
  cut = {axis: each for axis, each in cut.items() if each != (0, x.shape[axis], 1)}
  if not cut:
    return x
  starts, limits, strides = (np.array(each, np.int64) for each in zip(*cut.values(), strict=True))
  return graph.tensor('Slice', [x, starts, limits, np.array([*cut], np.int64), strides], result)


def _split(graph: Graph, equation: Any, x: Value) -> Any:
  axis = equation.params['axis']
  sizes = np.array(equation.params['sizes'], np.int64)
  names = graph.add('Split', [x, sizes], outputs=len(sizes), axis=axis)
  return [
    Tensor(name, variable.aval.shape, x.dtype) for name, variable in zip(names, equation.outvars, strict=True)
  ]


def _pad(graph: Graph, equation: Any, x: Value, value: Value) -> Value:
  config = equation.params['padding_config']
  if any(interior for _, _, interior in config):
    raise UserError('The model pads between numbers, which has no translation to ONNX yet.')
  borders = np.array([low for low, _, _ in config] + [high for _, high, _ in config], np.int64)
  return graph.tensor('Pad', [x, borders, value], equation.outvars[0].aval)


def _gather(graph: Graph, equation: Any, x: Value, indices: Value) -> Value:
  """What lies at known places: one slice."""
  sizes, axes = equation.params['slice_sizes'], equation.params['dimension_numbers'].start_index_map
  if not isinstance(indices, np.ndarray) or indices.ndim != 1:
    raise UserError('The model reads an array by numbers in a way that has no translation to ONNX yet.')
  cut = {axis: (int(start), int(start) + sizes[axis], 1) for axis, start in zip(axes, indices, strict=True)}
  whole = [sizes[axis] if axis in axes else side for axis, side in enumerate(x.shape)]
  return graph.reshape(_sliced(graph, x, cut, like(whole, x.dtype)), equation.outvars[0].aval.shape)


def _dot_general(graph: Graph, equation: Any, a: Value, b: Value) -> Value:
  (contract_a, contract_b), (batch_a, batch_b) = equation.params['dimension_numbers']
  dtype = equation.outvars[0].aval.dtype
  if isinstance(a, np.ndarray) and not batch_a:  # as (b a^T)^T, so that what is known is on the right
    y = _product(graph, b, a, (contract_b, contract_a), ((), ()), dtype)
    free = len(b.shape) - len(contract_b)
    return graph.transpose(y, [*range(free, len(y.shape)), *range(free)])
  return _product(graph, a, b, (contract_a, contract_b), (batch_a, batch_b), dtype)


def _product(graph: Graph, a: Value, b: Value, contract: Any, batch: Any, dtype: Any) -> Value:
  """A matrix product for each element of the batch dimensions, (batch, free of a, free of b)."""
  a, b = graph.cast(a, dtype), graph.cast(b, dtype)
  if (
    len(a.shape) == 4
    and tuple(contract[0]) == (3,)
    and not batch[0]
    and isinstance(b, np.ndarray)
    and b.ndim == 2
  ):
    return _pointwise(graph, a, b, dtype)
  free_a, free_b = (
    [axis for axis in range(len(x.shape)) if axis not in (*contract[i], *batch[i])]
    for i, x in enumerate((a, b))
  )
  inner = math.prod(a.shape[axis] for axis in contract[0])
  batches = [a.shape[axis] for axis in batch[0]]
  sides_a, sides_b = [a.shape[axis] for axis in free_a], [b.shape[axis] for axis in free_b]
  rows = (sides_a if not batches else [math.prod(sides_a)]) or [1]
  columns = math.prod(sides_b)
  a = graph.reshape(graph.transpose(a, [*batch[0], *free_a, *contract[0]]), [*batches, *rows, inner])
  b = graph.reshape(graph.transpose(b, [*batch[1], *contract[1], *free_b]), [*batches, inner, columns])
  y = graph.tensor('MatMul', [a, b], like([*batches, *rows, columns], dtype))
  return graph.reshape(y, [*batches, *sides_a, *sides_b])


def _pointwise(graph: Graph, a: Value, b: np.ndarray, dtype: Any) -> Value:
  """The product of a feature map (B, H, W, C) as a convolution: runtimes keep such maps with the channels first."""
  kernel = (b if b.shape[0] == a.shape[3] else b.T).T[:, :, None, None]
  shape = (a.shape[0], len(kernel), *a.shape[1:3])
  maps = graph.tensor(
    'Conv', [graph.transpose(a, (0, 3, 1, 2)), kernel], like(shape, dtype), kernel_shape=[1, 1]
  )
  return graph.transpose(maps, (0, 2, 3, 1))


def _pads(padding: Sequence[tuple[int, int]]) -> list[int]:
  """ONNX's order: all that goes before, then all that goes behind."""
  return [low for low, _ in padding] + [high for _, high in padding]


def _convolution(graph: Graph, equation: Any, x: Value, kernel: Value) -> Value:
  params, numbers, out = equation.params, equation.params['dimension_numbers'], equation.outvars[0].aval
  if any(side != 1 for side in params['lhs_dilation']) or min(_pads(params['padding'])) < 0:
    raise UserError('The model has a convolution of a kind that has no translation to ONNX yet.')
  weights = graph.transpose(kernel, numbers.rhs_spec)
  maps = graph.tensor(
    'Conv',
    [graph.transpose(x, numbers.lhs_spec), weights],
    like([out.shape[axis] for axis in numbers.out_spec], out.dtype),
    kernel_shape=list(weights.shape[2:]),
    strides=list(params['window_strides']),
    pads=_pads(params['padding']),
    dilations=list(params['rhs_dilation']),
    group=params['feature_group_count'],
  )
  return graph.transpose(maps, np.argsort(numbers.out_spec).tolist())


def _largest_of_window(graph: Graph, equation: Any, x: Value) -> Value:
  params, out = equation.params, equation.outvars[0].aval
  window, dilations = params['window_dimensions'], {*params['base_dilation'], *params['window_dilation']}
  if len(window) != 4 or window[0] != 1 or window[3] != 1 or dilations != {1}:
    raise UserError('The model takes maxima of windows of a kind that has no translation to ONNX yet.')
  maps = graph.tensor(
    'MaxPool',
    [graph.transpose(x, (0, 3, 1, 2))],
    like([out.shape[axis] for axis in (0, 3, 1, 2)], out.dtype),
    kernel_shape=list(window[1:3]),
    strides=list(params['window_strides'][1:3]),
    pads=_pads(params['padding'][1:3]),
  )
  return graph.transpose(maps, (0, 2, 3, 1))


# Rules of inputs whose repeated sides may be of size 1, which the operation repeats by itself.
BROADCASTING: dict[str, Callable[..., Any]] = {
  **{name: _elementwise(op) for name, op in _ELEMENTWISE.items()},
  **dict.fromkeys(
    ('copy', 'copy_p', 'stop_gradient', 'name', 'optimization_barrier', 'sharding_constraint'),
    lambda graph, equation, x: x,
  ),
  'rsqrt': lambda graph, equation, x: graph.tensor('Reciprocal', [graph.tensor('Sqrt', [x], x)], x),
  'erfc': lambda graph, equation, x: graph.tensor(
    'Sub', [np.ones((), x.dtype), graph.tensor('Erf', [x], x)], x
  ),
  'square': lambda graph, equation, x: graph.tensor('Mul', [x, x], x),
  'integer_pow': _integer_pow,
  'select_n': _select,
  'clamp': lambda graph, equation, low, x, high: graph.tensor(
    'Min', [graph.tensor('Max', [x, low], x), high], x
  ),
  'convert_element_type': lambda graph, equation, x: graph.cast(x, equation.params['new_dtype']),
  'broadcast_in_dim': _broadcast_in_dim,
}
# Rules of inputs in their whole shapes.
RULES: dict[str, Callable[..., Any]] = {
  'reshape': _reshape,
  'squeeze': _reshape,
  'expand_dims': _reshape,
  'transpose': lambda graph, equation, x: graph.transpose(x, equation.params['permutation']),
  'reduce_sum': _reduce('ReduceSum'),
  'reduce_max': _reduce('ReduceMax'),
  'reduce_min': _reduce('ReduceMin'),
  'concatenate': _concatenate,
  'stack': lambda graph, equation, *x: graph.stack(x, equation.params['axis'], equation.outvars[0].aval),
  'slice': _slice,
  'split': _split,
  'pad': _pad,
  'gather': _gather,
  'dot_general': _dot_general,
  'conv_general_dilated': _convolution,
  'reduce_window_max': _largest_of_window,
}
# Rules that give known values for known ones: JAX would compile a program for each shape and place.
LAYOUTS = frozenset(
  ('slice', 'squeeze', 'reshape', 'expand_dims', 'transpose', 'convert_element_type', 'broadcast_in_dim')
)
