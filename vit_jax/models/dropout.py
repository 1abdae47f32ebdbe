"""Dropout with a key for every example.

An example's masks depend on its own key only, so they are the same however the batch is divided over
devices or accumulation steps. The keys' implementation must give each example the same bits under `jax.vmap`
as alone: 'threefry2x32' does, 'rbg' does not.
"""

import enum

import jax
import jax.numpy as jnp

fold_in = jax.vmap(jax.random.fold_in, in_axes=(0, None))  # one number into every example's key


class Place(enum.IntEnum):
  """Where in a block something is dropped: each place has masks of its own."""

  ATTENTION_WEIGHTS = 0
  ATTENTION_OUT = 1
  MLP_HIDDEN = 2
  MLP_OUT = 3
  ATTENTION_PATH = 4
  MLP_PATH = 5


def dropout(x: jax.Array, rate: float, keys: jax.Array | None, place: int) -> jax.Array:
  """Zeroes elements with probability `rate` and scales the others by 1 / (1 - rate).

  Args:
    x: (B, ...).
    rate: 0 does nothing, and costs nothing.
    keys: (B,) typed PRNG keys; None does nothing.
    place: a number that no other mask drawn from the same keys has.
  """
  if keys is None or rate == 0:
    return x
  keep = jax.vmap(lambda key: _keep(key, rate, x.shape[1:]))(fold_in(keys, place))
  return jnp.where(keep, x / (1 - rate), 0)


def _keep(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
  """bool of `shape`, each True with probability 1 - rate, to within 2^-16.

  Drawing random bits is most of the cost of dropout on a TPU, so each word of 32 bits serves two elements.
  """
  *rows, columns = shape
  bits = jax.random.bits(key, (*rows, -(-columns // 2)), jnp.uint32)
  draws = jnp.concatenate([bits & 0xFFFF, bits >> 16], axis=-1)
  return draws[..., :columns] >= round(rate * 2**16)


def drop_path(x: jax.Array, rate: jax.Array | float, keys: jax.Array | None, place: int) -> jax.Array:
  """Stochastic depth (arXiv 1603.09382): zeroes whole examples, scales the others by 1 / (1 - rate).

  Args:
    x: (B, ...), a residual branch.
    rate: in 0 ... 1, a scalar.
    keys: (B,) typed PRNG keys; None does nothing.
    place: a number that no other mask drawn from the same keys has.
  """
  if keys is None:
    return x
  keep = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate))(fold_in(keys, place))
  scale = jnp.where(keep, 1 / (1 - rate), 0).astype(x.dtype)
  return x * scale.reshape(-1, *[1] * (x.ndim - 1))
