"""How each primitive of JAX is written in ONNX: a rule (translator, equation, *inputs) gives its outputs."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from vit_jax.export.onnx_functions import onnx_type, transposed
from vit_jax.export.onnx_graph import Dim, Tensor, Value
from vit_jax.foundation.errors import UserError

if TYPE_CHECKING:
  from vit_jax.export.onnx_translation import Translator

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


def _like(shape: Sequence[Dim], dtype: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(tuple(shape), dtype)


def _broadcast(*values: Value) -> tuple[Dim, ...]:
  """The shape of an elementwise operation on values whose sides may be 1."""
  rank = max(len(value.shape) for value in values)
  sides = zip(*([1] * (rank - len(value.shape)) + list(value.shape) for value in values), strict=True)
  return tuple(
    next((side for side in each if not (isinstance(side, int) and side == 1)), 1) for each in sides
  )


def _elementwise(op: str) -> Callable[..., Value]:
  def rule(translator: 'Translator', equation: Any, *inputs: Value) -> Value:
    like = _like(_broadcast(*inputs), equation.outvars[0].aval.dtype)
    return translator.graph.tensor(op, inputs, like)

  return rule


def _same(translator: 'Translator', equation: Any, x: Value) -> Value:
  return x


def _rsqrt(translator: 'Translator', equation: Any, x: Tensor) -> Value:
  return translator.graph.tensor('Reciprocal', [translator.graph.tensor('Sqrt', [x], x)], x)


def _erfc(translator: 'Translator', equation: Any, x: Tensor) -> Value:
  return translator.graph.tensor('Sub', [np.ones((), x.dtype), translator.graph.tensor('Erf', [x], x)], x)


def _square(translator: 'Translator', equation: Any, x: Tensor) -> Value:
  return translator.graph.tensor('Mul', [x, x], x)


def _integer_pow(translator: 'Translator', equation: Any, x: Tensor) -> Value:
  power = equation.params['y']
  return translator.graph.tensor(
    *(('Mul', [x, x]) if power == 2 else ('Pow', [x, np.array(power, x.dtype)])), x
  )


def _select(translator: 'Translator', equation: Any, which: Value, *cases: Value) -> Value:
  if len(cases) != 2:
    raise UserError('The model selects among more than two arrays, which has no translation to ONNX yet.')
  like = _like(_broadcast(which, *cases), equation.outvars[0].aval.dtype)
  return translator.graph.tensor('Where', [which, cases[1], cases[0]], like)


def _clamp(translator: 'Translator', equation: Any, low: Value, x: Tensor, high: Value) -> Value:
  return translator.graph.tensor('Min', [translator.graph.tensor('Max', [x, low], x), high], x)


def _cast(translator: 'Translator', equation: Any, x: Tensor) -> Value:
  dtype = equation.params['new_dtype']
  if dtype == x.dtype:
    return x
  return translator.graph.tensor('Cast', [x], _like(x.shape, dtype), to=onnx_type(dtype))


def _reshape(translator: 'Translator', equation: Any, x: Value) -> Value:
  return reshaped(translator, x, equation.outvars[0].aval.shape)


def reshaped(translator: 'Translator', x: Value, shape: Sequence[Dim]) -> Value:
  if tuple(x.shape) == tuple(shape):
    return x
  if isinstance(x, np.ndarray):
    return x.reshape(shape)
  unknown = [axis for axis, side in enumerate(shape) if not isinstance(side, int)]
  to: Value | str
  if len(unknown) > 1:
    to = translator.shape(shape)
  else:
    to = np.array([side if isinstance(side, int) else -1 for side in shape], np.int64)
  return translator.graph.tensor('Reshape', [x, to], _like(shape, x.dtype))


def _broadcast_in_dim(translator: 'Translator', equation: Any, x: Value, *sizes: Value) -> Value:
  """The sides stand where they should, of size 1 where they are repeated: `Translator.full` repeats them."""
  shape: list[Dim] = [1] * len(equation.outvars[0].aval.shape)
  for axis, side in zip(equation.params['broadcast_dimensions'], x.shape, strict=True):
    shape[axis] = side
  return reshaped(translator, x, shape)


def _transpose(translator: 'Translator', equation: Any, x: Value) -> Value:
  return _transposed(translator, x, equation.params['permutation'])


def _transposed(translator: 'Translator', x: Value, permutation: Sequence[int]) -> Value:
  if isinstance(x, np.ndarray):
    return x.transpose(permutation)
  like = _like([x.shape[axis] for axis in permutation], x.dtype)
  return transposed(translator.graph, x, permutation, like)


def _reduce(op: str) -> Callable[..., Value]:
  def rule(translator: 'Translator', equation: Any, x: Value) -> Value:
    axes = np.array(equation.params['axes'], np.int64)
    return translator.graph.tensor(op, [x, axes], equation.outvars[0].aval, keepdims=0)

  return rule


def _concatenate(translator: 'Translator', equation: Any, *inputs: Value) -> Value:
  axis = equation.params['dimension']
  return translator.graph.tensor('Concat', inputs, equation.outvars[0].aval, axis=axis)


def _stack(translator: 'Translator', equation: Any, *inputs: Value) -> Value:
  axis = equation.params['axis']
  single = [translator.graph.add('Unsqueeze', [x, np.array([axis])])[0] for x in inputs]
  return translator.graph.tensor('Concat', single, equation.outvars[0].aval, axis=axis)


def _slice(translator: 'Translator', equation: Any, x: Value) -> Value:
  params, shape = equation.params, equation.invars[0].aval.shape
  strides = params['strides'] or (1,) * len(shape)
  cut = [
    (axis, start, limit, stride)
    for axis, (start, limit, stride) in enumerate(
      zip(params['start_indices'], params['limit_indices'], strides, strict=True)
    )
    if not (isinstance(start, int) and start == 0 and stride == 1 and limit == shape[axis])
  ]
  return _sliced(translator, x, cut, equation.outvars[0].aval)


def _sliced(translator: 'Translator', x: Value, cut: Sequence[tuple[int, int, int, int]], like: Any) -> Value:
  """`cut`: axis, start, limit and stride of each axis that is cut."""
  if not cut:
    return x
  axes, starts, limits, strides = (np.array(each, np.int64) for each in zip(*cut, strict=True))
  return translator.graph.tensor('Slice', [x, starts, limits, axes, strides], like)


def _split(translator: 'Translator', equation: Any, x: Value) -> Any:
  axis = equation.params['axis']
  sizes = np.array(equation.params['sizes'], np.int64)
  names = translator.graph.add('Split', [x, sizes], outputs=len(sizes), axis=axis)
  return [
    Tensor(name, variable.aval.shape, x.dtype) for name, variable in zip(names, equation.outvars, strict=True)
  ]


def _pad(translator: 'Translator', equation: Any, x: Value, value: Value) -> Value:
  config = equation.params['padding_config']
  if any(interior for _, _, interior in config):
    raise UserError('The model pads between numbers, which has no translation to ONNX yet.')
  borders = np.array([low for low, _, _ in config] + [high for _, high, _ in config], np.int64)
  return translator.graph.tensor('Pad', [x, borders, value], equation.outvars[0].aval)


def _gather(translator: 'Translator', equation: Any, x: Value, indices: Value) -> Value:
  """What lies at known places: one slice."""
  shape, out, sizes = equation.invars[0].aval.shape, equation.outvars[0].aval, equation.params['slice_sizes']
  axes = equation.params['dimension_numbers'].start_index_map
  if not isinstance(indices, np.ndarray) or indices.ndim != 1:
    raise UserError('The model reads an array by numbers in a way that has no translation to ONNX yet.')
  cut = [(axis, int(start), int(start) + sizes[axis], 1) for axis, start in zip(axes, indices, strict=True)]
  whole = [sizes[axis] if axis in axes else shape[axis] for axis in range(len(shape))]
  return reshaped(translator, _sliced(translator, x, cut, _like(whole, x.dtype)), out.shape)


def _dot_general(translator: 'Translator', equation: Any, a: Value, b: Value) -> Value:
  (contract_a, contract_b), (batch_a, batch_b) = equation.params['dimension_numbers']
  out = equation.outvars[0].aval
  free_a = [axis for axis in range(len(a.shape)) if axis not in (*contract_a, *batch_a)]
  free_b = [axis for axis in range(len(b.shape)) if axis not in (*contract_b, *batch_b)]
  if isinstance(a, np.ndarray) and not batch_a:  # as (b a^T)^T, so that what is known is on the right
    shape = [b.shape[axis] for axis in free_b] + [a.shape[axis] for axis in free_a]
    y = _product(translator, b, a, (contract_b, contract_a), ((), ()), _like(shape, out.dtype))
    order = [*range(len(free_b), len(shape)), *range(len(free_b))]
    return _transposed(translator, y, order)
  return _product(translator, a, b, (contract_a, contract_b), (batch_a, batch_b), out)


def _product(translator: 'Translator', a: Value, b: Value, contract: Any, batch: Any, out: Any) -> Value:
  """A matrix product for each element of the batch dimensions, (batch, free of a, free of b)."""
  if a.dtype != out.dtype:
    a, b = (_converted(translator, x, out.dtype) for x in (a, b))
  free_a, free_b = (
    [axis for axis in range(len(x.shape)) if axis not in (*contract[i], *batch[i])]
    for i, x in enumerate((a, b))
  )
  if _is_pointwise(a, b, contract, batch, free_a):
    return _pointwise(translator, a, b, out)
  inner = math.prod(a.shape[axis] for axis in contract[0])
  batches = [a.shape[axis] for axis in batch[0]]
  sides_a, sides_b = [a.shape[axis] for axis in free_a], [b.shape[axis] for axis in free_b]
  a = _transposed(translator, a, [*batch[0], *free_a, *contract[0]])
  b = _transposed(translator, b, [*batch[1], *contract[1], *free_b])
  rows = sides_a if not batches else [math.prod(sides_a)]
  a = reshaped(translator, a, [*batches, *(rows or [1]), inner])
  b = reshaped(translator, b, [*batches, inner, math.prod(sides_b)])
  y = translator.graph.tensor(
    'MatMul', [a, b], _like([*batches, *(rows or [1]), math.prod(sides_b)], out.dtype)
  )
  return reshaped(translator, y, out.shape)


def _converted(translator: 'Translator', x: Value, dtype: Any) -> Value:
  if isinstance(x, np.ndarray):
    return x.astype(dtype)
  return translator.graph.tensor('Cast', [x], _like(x.shape, dtype), to=onnx_type(dtype))


def _is_pointwise(a: Value, b: Value, contract: Any, batch: Any, free_a: Sequence[int]) -> bool:
  """Whether a product is a convolution of a feature map (B, H, W, C) with a kernel of one pixel."""
  maps = len(a.shape) == 4 and tuple(contract[0]) == (3,) and not batch[0]
  return maps and isinstance(b, np.ndarray) and b.ndim == 2


def _pointwise(translator: 'Translator', a: Value, b: Any, out: Any) -> Value:
  """That product as a convolution, since runtimes keep feature maps with the channels first."""
  kernel = (b if b.shape[0] == a.shape[3] else b.T).T[:, :, None, None]
  first = _transposed(translator, a, (0, 3, 1, 2))
  shape = (out.shape[0], out.shape[3], *out.shape[1:3])
  maps = translator.graph.tensor('Conv', [first, kernel], _like(shape, out.dtype), kernel_shape=[1, 1])
  return _transposed(translator, maps, (0, 2, 3, 1))


def _convolution(translator: 'Translator', equation: Any, x: Value, kernel: Value) -> Value:
  params, numbers, out = equation.params, equation.params['dimension_numbers'], equation.outvars[0].aval
  borders = params['padding']
  if any(side != 1 for side in params['lhs_dilation']) or min(min(pair) for pair in borders) < 0:
    raise UserError('The model has a convolution of a kind that has no translation to ONNX yet.')
  first = _transposed(translator, x, numbers.lhs_spec)
  weights = _transposed(translator, kernel, numbers.rhs_spec)
  maps = translator.graph.tensor(
    'Conv',
    [first, weights],
    _like([out.shape[axis] for axis in numbers.out_spec], out.dtype),
    kernel_shape=list(weights.shape[2:]),
    strides=list(params['window_strides']),
    pads=[low for low, _ in borders] + [high for _, high in borders],
    dilations=list(params['rhs_dilation']),
    group=params['feature_group_count'],
  )
  return _transposed(translator, maps, np.argsort(numbers.out_spec).tolist())


def _largest_of_window(translator: 'Translator', equation: Any, x: Value) -> Value:
  params, out = equation.params, equation.outvars[0].aval
  window, strides, borders = params['window_dimensions'], params['window_strides'], params['padding']
  if (
    len(window) != 4
    or window[0] != 1
    or window[3] != 1
    or {*params['base_dilation'], *params['window_dilation']} != {1}
  ):
    raise UserError('The model takes maxima of windows of a kind that has no translation to ONNX yet.')
  first = _transposed(translator, x, (0, 3, 1, 2))
  maps = translator.graph.tensor(
    'MaxPool',
    [first],
    _like([out.shape[axis] for axis in (0, 3, 1, 2)], out.dtype),
    kernel_shape=list(window[1:3]),
    strides=list(strides[1:3]),
    pads=[low for low, _ in borders[1:3]] + [high for _, high in borders[1:3]],
  )
  return _transposed(translator, maps, (0, 2, 3, 1))


# Rules of inputs whose repeated sides may be of size 1, which the operation repeats by itself.
BROADCASTING: dict[str, Callable[..., Any]] = {
  **{name: _elementwise(op) for name, op in _ELEMENTWISE.items()},
  **dict.fromkeys(
    ('copy', 'copy_p', 'stop_gradient', 'name', 'optimization_barrier', 'sharding_constraint'), _same
  ),
  'rsqrt': _rsqrt,
  'erfc': _erfc,
  'square': _square,
  'integer_pow': _integer_pow,
  'select_n': _select,
  'clamp': _clamp,
  'convert_element_type': _cast,
  'broadcast_in_dim': _broadcast_in_dim,
}
# Rules of inputs in their whole shapes.
RULES: dict[str, Callable[..., Any]] = {
  'reshape': _reshape,
  'squeeze': _reshape,
  'expand_dims': _reshape,
  'transpose': _transpose,
  'reduce_sum': _reduce('ReduceSum'),
  'reduce_max': _reduce('ReduceMax'),
  'reduce_min': _reduce('ReduceMin'),
  'concatenate': _concatenate,
  'stack': _stack,
  'slice': _slice,
  'split': _split,
  'pad': _pad,
  'gather': _gather,
  'dot_general': _dot_general,
  'conv_general_dilated': _convolution,
  'reduce_window_max': _largest_of_window,
}
