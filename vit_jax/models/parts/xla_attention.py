"""Attention as XLA compiles it, softmax and products, with a backward pass of our own.

Gradients are called as in FlashAttention-2 (arXiv 2307.08691, algorithms 1 and 2): dq, dk, dv and do are those of
queries, keys, values and outputs, dlogits and dweights those of its S and P; logsumexp is its L, and delta its D.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.models.dropout import Place, dropout


def attend(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  bias: jax.Array | None = None,
  dropout_keys: jax.Array | None = None,
  rate: float = 0.0,
) -> jax.Array:
  """`attention.attend`, (B, Q, H, Dh) and twice (B, N, H, Dh) -> (B, Q, H, Dh); weights are dropped at a rate."""
  arrays = (heads_first(x) for x in (scaled(query), key, value))
  return heads_first(_attend(*arrays, bias, dropout_keys, rate))


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(query: Any, key: Any, value: Any, bias: Any, dropout_keys: Any, rate: float) -> jax.Array:
  return _attend_forward(query, key, value, bias, dropout_keys, rate)[0]


def _attend_forward(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  bias: jax.Array | None,
  dropout_keys: jax.Array | None,
  rate: float,
) -> tuple[jax.Array, Any]:
  """Attention of queries (B, H, Q, Dh) to keys and values (B, H, N, Dh), and what its backward pass needs.

  Like flash attention (arXiv 2205.14135) the backward pass computes the B*H*Q*N weights again from q and k
  rather than read them from memory: a tenth less time a block, by the compiler's estimate for a TPU v3. The sum
  over the keys that the gradient of a softmax needs comes from the output (algorithm 4), which saves a pass.
  """
  logits = logits_of(query, key, bias)
  largest = logits.max(axis=-1, keepdims=True)
  weights = jnp.exp(logits - largest).astype(query.dtype)
  total = weights.astype(jnp.float32).sum(axis=-1, keepdims=True)
  dropped = dropout(weights, rate, dropout_keys, Place.ATTENTION_WEIGHTS)
  out = jnp.einsum('bhqn,bhnd->bhqd', dropped, value, preferred_element_type=jnp.float32)
  out = (out / total).astype(value.dtype)
  return out, (query, key, value, bias, dropout_keys, out, largest + jnp.log(total))


def _attend_backward(
  rate: float, saved: Any, do: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None, None]:
  """dq, dk, dv and the bias's gradient."""
  query, key, value, bias, dropout_keys, out, logsumexp = saved
  delta = (do.astype(jnp.float32) * out).sum(axis=-1, keepdims=True)  # the mean of dweights over the keys
  weights = jnp.exp(logits_of(query, key, bias) - logsumexp)
  dweights = jnp.einsum('bhqd,bhnd->bhqn', do, value, preferred_element_type=jnp.float32)
  dweights = dropout(dweights, rate, dropout_keys, Place.ATTENTION_WEIGHTS)
  dlogits = weights * (dweights - delta)
  dbias = None
  if bias is not None:
    repeated = tuple(axis for axis in range(4) if bias.shape[axis] != dlogits.shape[axis])
    dbias = dlogits.sum(axis=repeated, keepdims=True) if repeated else dlogits
  dlogits = dlogits.astype(query.dtype)
  dq = jnp.einsum('bhqn,bhnd->bhqd', dlogits, key)
  dk = jnp.einsum('bhqn,bhqd->bhnd', dlogits, query)
  dropped = dropout(weights.astype(value.dtype), rate, dropout_keys, Place.ATTENTION_WEIGHTS)
  dv = jnp.einsum('bhqn,bhqd->bhnd', dropped, do)
  return dq, dk, dv, dbias, None


_attend.defvjp(_attend_forward, _attend_backward)


def logits_of(query: jax.Array, key: jax.Array, bias: jax.Array | None = None) -> jax.Array:
  """(B, H, Q, Dh), (B, H, N, Dh) -> float32 (B, H, Q, N)."""
  logits = jnp.einsum('bhqd,bhnd->bhqn', query, key, preferred_element_type=jnp.float32)
  return logits if bias is None else logits + bias


def scaled(query: jax.Array) -> jax.Array:
  """Queries (..., Dh) whose products with keys are the logits: divided by sqrt(Dh)."""
  return query / math.sqrt(query.shape[-1])


def heads_first(x: jax.Array) -> jax.Array:
  """(B, N, H, Dh) -> (B, H, N, Dh), and back.

  With heads before tokens the products are plain batched ones, which on a CPU take 0.8 of the time of einsum
  in the order (B, N, H, Dh) and 0.6 of jax.nn.dot_product_attention's.
  """
  return x.transpose(0, 2, 1, 3)
