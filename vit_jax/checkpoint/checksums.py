"""A checksum of each array of a tree, computed where the array is.

It is a function of the global array alone: neither sharding, mesh nor the number of processes enter,
so what was saved on one can be verified on another. Each element, as 32 bits, is mixed with its
position by a bijection, and all are added up: integer addition does not depend on the order, one
changed element always changes the sum, and two sums with different seeds leave 1 in 2^64 for the rest.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

_SEEDS = (0x9E3779B9, 0x7F4A7C15)

# Sums under way at a time. XLA's CPU client runs at most 32 programs on a device, and hangs where more of
# them have collectives and the devices outnumber the cores: the last part of one waits for a place that its
# other parts hold.
_UNDER_WAY = 16


def of_arrays(arrays: dict[str, Any]) -> dict[str, dict[str, Any]]:
  """{name: {'shape': [...], 'dtype': '...', 'checksum': 16 hexadecimal digits}}.

  In a run of several processes all of them must call this, with the same arrays.
  """
  sums: dict[str, jax.Array] = {}
  for number, (name, array) in enumerate(arrays.items(), 1):
    sums[name] = _sums(array, _everywhere(array))
    if number % _UNDER_WAY == 0:
      jax.block_until_ready(sums)
  return {name: describe(array) | {'checksum': _hexadecimal(sums[name])} for name, array in arrays.items()}


def describe(array: Any) -> dict[str, Any]:
  """Shape and dtype of an array or ShapeDtypeStruct, in JSON's types."""
  return {'shape': list(array.shape), 'dtype': str(np.dtype(array.dtype))}


def _hexadecimal(sums: jax.Array) -> str:
  return ''.join(f'{part:08x}' for part in np.asarray(sums).tolist())


def _everywhere(array: Any) -> NamedSharding | None:
  """Where every process can read the sums."""
  sharding = getattr(array, 'sharding', None)
  return NamedSharding(sharding.mesh, P()) if isinstance(sharding, NamedSharding) else None


@functools.partial(jax.jit, static_argnums=1)
def _sums(x: jax.Array, sharding: NamedSharding | None) -> jax.Array:
  """uint32 (2,): one sum for each seed."""
  bits = _bits(x)
  position = _positions(bits.shape)
  terms = [_mix(bits ^ _mix(position + np.uint32(seed))) for seed in _SEEDS]
  # One reduction for both: XLA then makes the terms as it adds them. Two sums, on the CPU, write each
  # term to memory first: twice the array's size, and 20 times slower.
  axes = tuple(range(bits.ndim))
  sums = jax.lax.reduce(terms, [np.uint32(0)] * 2, lambda a, b: [a[0] + b[0], a[1] + b[1]], axes)
  sums = jnp.stack(sums)
  return sums if sharding is None else jax.lax.with_sharding_constraint(sums, sharding)


def _bits(x: jax.Array) -> jax.Array:
  """The array's bits as uint32; of types of 8 bytes with a last axis of 2."""
  if x.dtype == jnp.bool_:
    return x.astype(jnp.uint32)
  unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}[x.dtype.itemsize]
  return jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)


def _positions(shape: tuple[int, ...]) -> jax.Array:
  """Each element's number in row-major order, modulo 2^32; made in place, however the array is split."""
  result = jnp.zeros(shape, jnp.uint32)
  for axis in range(len(shape)):
    stride = np.uint32(math.prod(shape[axis + 1 :]) % 2**32)
    result += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * stride
  return result


def _mix(h: jax.Array) -> jax.Array:
  """MurmurHash3's 32-bit finaliser, a bijection in which each bit depends on all bits."""
  h = (h ^ (h >> 16)) * np.uint32(0x85EBCA6B)
  h = (h ^ (h >> 13)) * np.uint32(0xC2B2AE35)
  return h ^ (h >> 16)
