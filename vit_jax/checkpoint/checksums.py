"""A checksum of each array of a tree, computed on the devices that hold it.

It depends on the global array alone, not on its sharding, the mesh or the number of processes, so that what
one run saved can be verified by another. Each element, as 32 bits, is mixed with its position by a bijection,
and the results are added modulo 2^32: integer addition does not depend on the order, and one changed element
always changes the sum. Two sums with different seeds leave a chance of 2^-64 for any other change.
"""

import functools
import hashlib
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

_SEEDS = (0x9E3779B9, 0x7F4A7C15)

# How many sums are computed at a time. XLA's CPU client runs at most 32 programs on a device. When more of
# them have collectives and there are more devices than cores, it hangs: the last part of a program waits for
# a place that its other parts hold.
_UNDER_WAY = 16


def of_arrays(arrays: dict[str, Any]) -> dict[str, dict[str, Any]]:
  """Maps each name to {'shape': [...], 'dtype': '...', 'checksum': 16 hexadecimal digits}.

  In a run of several processes all of them must call this with the same arrays.
  """
  sums: dict[str, jax.Array] = {}
  for number, (name, array) in enumerate(arrays.items(), 1):
    sums[name] = _sums(array, _everywhere(array))
    if number % _UNDER_WAY == 0:
      jax.block_until_ready(sums)
  digits = {name: ''.join(f'{part:08x}' for part in np.asarray(pair).tolist()) for name, pair in sums.items()}
  return {name: describe(array) | {'checksum': digits[name]} for name, array in arrays.items()}


def digest(arrays: dict[str, Any]) -> str:
  """64 hexadecimal digits of the sums of all arrays, in whatever order these are; called as `of_arrays`."""
  return hashlib.sha256(json.dumps(of_arrays(arrays), sort_keys=True).encode()).hexdigest()


def describe(array: Any) -> dict[str, Any]:
  """The shape and dtype of an array or ShapeDtypeStruct, in JSON's types."""
  return {'shape': list(array.shape), 'dtype': str(np.dtype(array.dtype))}


def _everywhere(array: Any) -> NamedSharding | None:
  """A sharding of the sums that lets every process read them."""
  sharding = getattr(array, 'sharding', None)
  return NamedSharding(sharding.mesh, P()) if isinstance(sharding, NamedSharding) else None


@functools.partial(jax.jit, static_argnums=1)
def _sums(x: jax.Array, sharding: NamedSharding | None) -> jax.Array:
  """The sums, uint32 (2,), one for each seed."""
  bits = _bits(x)
  position = _positions(bits.shape)
  terms = [_mix(bits ^ _mix(position + np.uint32(seed))) for seed in _SEEDS]
  # One reduction for both sums: XLA then makes the terms as it adds them. Two reductions would, on the CPU,
  # write all terms to memory first, which takes twice the array's size and is 20 times slower.
  zeros = [np.uint32(0) for _ in _SEEDS]
  sums = jnp.stack(jax.lax.reduce(terms, zeros, _add, tuple(range(bits.ndim))))
  return sums if sharding is None else jax.lax.with_sharding_constraint(sums, sharding)


def _add(one: list[jax.Array], other: list[jax.Array]) -> list[jax.Array]:
  return [a + b for a, b in zip(one, other, strict=True)]


def _bits(x: jax.Array) -> jax.Array:
  """The bits of each element as uint32; types of 8 bytes get a last axis of 2."""
  if x.dtype == jnp.bool_:
    return x.astype(jnp.uint32)
  unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}[x.dtype.itemsize]
  return jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)


def _positions(shape: tuple[int, ...]) -> jax.Array:
  """The number of each element in row-major order, modulo 2^32; every device makes its own part."""
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
