"""Attention of short sequences on TPUs: a kernel that has all tokens of some heads in fast memory.

XLA reads and writes the N x N weights of all heads several times, and changes the layout of queries, keys and values
for it. The kernel moves only these and their gradients, as the matrices (B, N, H*Dh) that dense layers make: by the
compiler's estimates for v5e it takes a third of the time. How many tokens fit is bounded (`heads_at_once`).

Kernels of TPU v3 have no products of bfloat16 matrices. There arrays are float32, which a product rounds to bfloat16
as it reads them.

The backward pass computes the weights again. They are kept transposed, keys by queries: a softmax is then a sum over
rows, which a TPU adds up without moving numbers within a row. Gradients are called as in xla_attention.py.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.models.parts.rotary import turned

_LANES = 128  # of a register, so that heads beside each other are cut at multiples of it
_MOST_HEADS = 8  # in a program of some thousand instructions, unless fewer do not fill registers
# What fast memory holds: tokens, numbers of an array of them, and weights of the heads that are computed at once.
_MOST_TOKENS = 1200
_MOST, _MOST_WIDE = (430_000, 2_200_000), (166_000, 850_000)
_MOST_STORED_MEANWHILE = 140_000  # numbers of a wide array: storing more delays the next step

Rows = tuple[jax.Array, ...]  # (B, N, H*Dh) each
Turns = tuple[jax.Array, ...]  # cosines and sines of rotary positions, ([B,] N, 1, Dh) each; or ()


class Kernel(NamedTuple):
  """How the kernel is called."""

  head_size: int  # Dh
  wide: bool  # whether bfloat16 arrays become float32 (`is_wide`)
  sharding: NamedSharding  # of the residual stream (B, N, D)
  head_axes: tuple[str, ...]  # of the mesh, that split heads
  interpret: bool = False  # as ordinary operations, on any platform: for tests


def is_wide(device_kind: str) -> bool:
  """Whether kernels of these devices have no bfloat16 arrays."""
  return device_kind == 'TPU v3'


def heads_at_once(tokens: int, heads: int, head_size: int, *, wide: bool) -> int | None:
  """Heads that a step of the kernel computes, a divisor of `heads` (of a device); None where none fits memory."""
  most_numbers, most_weights = _MOST_WIDE if wide else _MOST

  def fits(number: int) -> bool:
    whole = number == heads or number * head_size % _LANES == 0
    small = tokens * number * head_size <= most_numbers and tokens**2 * number <= most_weights
    return heads % number == 0 and whole and small and tokens <= _MOST_TOKENS

  fitting = [number for number in range(1, heads + 1) if fits(number)]
  few = [number for number in fitting if number <= _MOST_HEADS]
  if few or wide:
    return max(few, default=None)
  return min(fitting, default=None)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def attend(products: Rows, biases: jax.Array, turns: Turns, kernel: Kernel) -> jax.Array:
  """softmax(q k^T / sqrt(Dh)) v (paper, equations 6 and 7) of tokens that attend to each other.

  Args:
    products: what becomes of queries, keys and values with their biases, each (B, N, H*Dh), heads beside each other.
    biases: (3, H*Dh). Their gradients are sums over all tokens, which XLA would make in passes of their own.
    turns: by which queries and keys are turned; they have no gradients.
    kernel: how it is called.

  Returns:
    (B, N, H*Dh).
  """
  return _forward(products, biases, turns, kernel)[0]


def _forward(products: Rows, biases: jax.Array, turns: Turns, kernel: Kernel) -> tuple[jax.Array, Any]:
  query, key, value = (_given(x + bias, kernel) for x, bias in zip(products, biases, strict=True))
  arrays = query / math.sqrt(kernel.head_size), key, value
  (out,) = _call(kernel, _forward_kernel, arrays, turns)
  return out.astype(products[0].dtype), (arrays, biases, turns)


def _backward(kernel: Kernel, saved: Any, do: jax.Array) -> tuple[Rows, jax.Array, None]:
  arrays, biases, turns = saved
  *gradients, dbiases = _call(kernel, _backward_kernel, (*arrays, _given(do, kernel)), turns)
  return tuple(x.astype(do.dtype) for x in gradients), dbiases.sum(axis=0).astype(biases.dtype), None


attend.defvjp(_forward, _backward)


def _given(x: jax.Array, kernel: Kernel) -> jax.Array:
  return x.astype(jnp.float32) if kernel.wide else x


def _call(kernel: Kernel, body: Callable[..., None], arrays: Rows, turns: Turns) -> Rows:
  """What a body makes of arrays (B, N, H*Dh), each device having its part of the examples, and of the heads.

  The compiler cannot split a kernel over devices. The backward pass gives dq, dk and dv, and of each the sums over an
  example's tokens, (B, 3, H*Dh).
  """
  examples = kernel.sharding.spec[0]
  spec = P(examples, None, kernel.head_axes)
  tables = tuple(x.reshape(-1, x.shape[-3], x.shape[-1]) for x in turns)  # (1 or B, N, Dh)
  of_tables = tuple(P(examples if len(table) > 1 else None) for table in tables)
  outputs = (spec,) * (1 if body is _forward_kernel else 4)
  # check_vma: kernels do not say over which axes of the mesh their results differ.
  sharded = jax.shard_map(
    functools.partial(_local, kernel, body),
    mesh=kernel.sharding.mesh,
    in_specs=(of_tables, (spec,) * len(arrays)),
    out_specs=outputs,
    check_vma=False,
  )
  return sharded(tables, arrays)


def _local(kernel: Kernel, body: Callable[..., None], tables: Turns, arrays: Rows) -> Rows:
  """`_call` on one device. A step has an example's tokens and some heads; all steps are independent."""
  # Only here: importing it takes a second, and only TPUs need it.
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import tpu as pltpu

  batch, tokens, width = arrays[0].shape
  heads = heads_at_once(tokens, width // kernel.head_size, kernel.head_size, wide=kernel.wide)
  assert heads, 'no kernel is chosen where memory has no room for it'
  lanes = heads * kernel.head_size

  def block(rows: int, mode: pl.Buffered | None = None) -> pl.BlockSpec:
    return pl.BlockSpec((1, rows, lanes), lambda example, group: (example, 0, group), pipeline_mode=mode)

  def block_of_table(table: jax.Array) -> pl.BlockSpec:
    alike = len(table) == 1
    return pl.BlockSpec((1, *table.shape[1:]), lambda example, _: (0 if alike else example, 0, 0))

  once = kernel.wide and tokens * lanes > _MOST_STORED_MEANWHILE
  whole = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
  sums = jax.ShapeDtypeStruct((batch, 3, width), jnp.float32)
  outputs = (whole,) if body is _forward_kernel else (whole, whole, whole, sums)
  products = 2 if body is _forward_kernel else 5
  pairs = batch * tokens * tokens * width  # of tokens, in each number of their heads
  return pl.pallas_call(
    functools.partial(body, head_size=kernel.head_size),
    grid=(batch, width // lanes),
    in_specs=[*map(block_of_table, tables), *[block(tokens)] * len(arrays)],
    out_specs=tuple(block(output.shape[1], pl.Buffered(1) if once else None) for output in outputs),
    out_shape=outputs,
    name=f'short_attention{body.__name__.removesuffix("_kernel")}',
    interpret=kernel.interpret,
    compiler_params=pltpu.CompilerParams(dimension_semantics=('parallel', 'parallel')),
    # By which XLA decides what else is done meanwhile.
    cost_estimate=pl.CostEstimate(
      flops=2 * products * pairs,
      transcendentals=pairs // kernel.head_size,
      bytes_accessed=(len(arrays) + min(3, len(outputs))) * arrays[0].nbytes,
    ),
  )(*tables, *arrays)


def _forward_kernel(*refs: Any, head_size: int) -> None:
  """The output of some heads from blocks (1, N, lanes) of each, the queries being scaled; tables come first."""
  *tables, query, key, value, out = refs
  for head in _heads(query, head_size):
    weights = _weights(_turned(query[head], tables), _turned(key[head], tables)).astype(value.dtype)
    out[head] = _product(weights, value[head], 0, 0).astype(out.dtype)


def _backward_kernel(*refs: Any, head_size: int) -> None:
  """The gradients of some heads, and of each the sum over the tokens, (1, 3, lanes)."""
  *tables, query, key, value, do, dq, dk, dv, sums = refs
  for head in _heads(query, head_size):
    q, k = _turned(query[head], tables), _turned(key[head], tables)
    weights = _weights(q, k)
    dv[head] = _product(weights.astype(do.dtype), do[head], 1, 0).astype(dv.dtype)
    weighted = weights * _product(value[head], do[head], 1, 1)
    dlogits = (weighted - weights * weighted.sum(axis=0, keepdims=True)).astype(q.dtype)
    dk[head] = _turned(_product(dlogits, q, 1, 0), tables, back=True).astype(dk.dtype)
    dq[head] = _turned(_product(dlogits, k, 0, 0) * head_size**-0.5, tables, back=True).astype(dq.dtype)
  for i, block in enumerate((dq, dk, dv)):
    sums[0, i : i + 1] = block[0].astype(jnp.float32).sum(axis=0, keepdims=True)


def _turned(x: jax.Array, tables: Sequence[Any], *, back: bool = False) -> jax.Array:
  """Queries or keys (N, Dh) of a head, turned by their places, if there are tables."""
  if not tables:
    return x
  cosines, sines = (table[0] for table in tables)
  return turned(x, cosines, -sines if back else sines)


def _heads(block: Any, head_size: int) -> list[tuple[int, slice, slice]]:
  """The index of each head in a block (1, N, lanes)."""
  lanes = block.shape[-1]
  return [(0, slice(None), slice(begin, begin + head_size)) for begin in range(0, lanes, head_size)]


def _weights(query: jax.Array, key: jax.Array) -> jax.Array:
  """Scaled (N, Dh) and (N, Dh) -> float32 (N keys, N queries), of which each column sums to 1."""
  logits = _product(key, query, 1, 1)
  exponentials = jnp.exp(logits - logits.max(axis=0, keepdims=True))
  return exponentials * (1 / exponentials.sum(axis=0, keepdims=True))


def _product(a: jax.Array, b: jax.Array, of_a: int, of_b: int) -> jax.Array:
  """The float32 product of two matrices that is summed over these axes; a TPU reads them as bfloat16."""
  dimensions, precision = (((of_a,), (of_b,)), ((), ())), jax.lax.Precision.DEFAULT
  return jax.lax.dot_general(a, b, dimensions, precision, preferred_element_type=jnp.float32)
