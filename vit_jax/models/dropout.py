"""Dropout with a key for every example.

An example's masks depend on its own key only, so they are the same however the batch is divided over
devices or accumulation steps. The keys' implementation must give each example the same numbers under `jax.vmap`
as alone: 'threefry2x32' does, 'rbg' does not.
"""

import enum
import math

import jax
import jax.numpy as jnp

fold_in = jax.vmap(jax.random.fold_in, in_axes=(0, None))  # one number into every example's key

_GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio: consecutive numbers lie far apart


class Place(enum.IntEnum):
  """Where in a block something is dropped: each place has masks of its own."""

  ATTENTION_WEIGHTS = 0
  ATTENTION_OUT = 1
  MLP_HIDDEN = 2
  MLP_OUT = 3
  ATTENTION_PATH = 4
  MLP_PATH = 5


def dropout(x: jax.Array, rate: float, keys: jax.Array | None, place: int) -> jax.Array:
  """Zeroes elements of x (B, ...) with probability `rate` and scales the others by 1 / (1 - rate).

  The keys are (B,) typed PRNG keys; with None, or a rate of 0, nothing is done. No other mask drawn from the same keys
  has the number `place`.
  """
  if keys is None or rate == 0:
    return x
  keep = jax.vmap(lambda key: _keep(key, rate, x.shape[1:]))(fold_in(keys, place))
  return jnp.where(keep, x / (1 - rate), 0)


def _keep(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
  """bool of `shape`, each True with probability 1 - rate.

  An element's 32 bits are a hash of its number and of the example's key: a multiplicative hash with three
  rounds of shifts, the constants of the second and third by C. Wellons' search for the least bias ('lowbias32').
  XLA computes them where they are used, forwards and backwards, and nothing is kept: by the TPU v3 compiler's
  estimate that takes a third of the time of Threefry's bits, which are written to memory.
  """
  first, second = jax.random.key_data(key)[:2]
  x = first + sum(
    jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    * jnp.uint32(_GOLDEN * math.prod(shape[axis + 1 :]) % 2**32)
    for axis in range(len(shape))
  )
  x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
  x = ((x ^ (x >> 15)) + second) * jnp.uint32(0x846CA68B)
  return (x ^ (x >> 16)) >= jnp.uint32(round(rate * 2**32))


def drop_path(x: jax.Array, rate: jax.Array | float, keys: jax.Array | None, place: int) -> jax.Array:
  """Stochastic depth (arXiv 1603.09382): as `dropout`, of whole examples of a residual branch; the rate is a scalar."""
  if keys is None:
    return x
  keep = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate))(fold_in(keys, place))
  scale = jnp.where(keep, 1 / (1 - rate), 0).astype(x.dtype)
  return x * scale.reshape(-1, *[1] * (x.ndim - 1))
