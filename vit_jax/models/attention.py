"""Multi-head attention (paper, appendix A)."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.dropout import Place, dropout


def attend(
  query: jax.Array, key: jax.Array, value: jax.Array, *, rate: float = 0.0, keys: jax.Array | None = None
) -> jax.Array:
  """softmax(q k^T / sqrt(Dh)) v, the softmax in float32 (equations 6 and 7).

  Args:
    query: (B, Q, H, Dh).
    key: (B, N, H, Dh).
    value: (B, N, H, Dh).
    rate: dropout of the attention weights.
    keys: (B,) typed PRNG keys of that dropout, or None.

  Returns:
    (B, Q, H, Dh), of the dtype of `value`.
  """
  weights = dropout(_weights(query, key).astype(value.dtype), rate, keys, Place.ATTENTION_WEIGHTS)
  return jnp.einsum('bhqn,bhnd->bhqd', weights, value.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


def _weights(query: jax.Array, key: jax.Array) -> jax.Array:
  """(B, Q, H, Dh), (B, N, H, Dh) -> float32 (B, H, Q, N), which sum to one over N."""
  # With heads before tokens both products are plain batched ones: on a CPU 0.8 of the time that
  # einsum needs in the order (B, N, H, Dh), and 0.6 of jax.nn.dot_product_attention.
  query, key = (x.transpose(0, 2, 1, 3) for x in (query / math.sqrt(query.shape[-1]), key))
  return _softmax(jnp.einsum('bhqd,bhnd->bhqn', query, key, preferred_element_type=jnp.float32))


@jax.custom_jvp
def _softmax(logits: jax.Array) -> jax.Array:
  """Softmax over the last axis, of which the backward pass needs the result only.

  That of jax.nn also saves the exponentials, as large again.
  """
  return jax.nn.softmax(logits)


@_softmax.defjvp
def _softmax_jvp(primals, tangents):
  weights = _softmax(*primals)
  (tangent,) = tangents
  return weights, weights * (tangent - (weights * tangent).sum(axis=-1, keepdims=True))


class Attention(nnx.Module):
  """Queries from one set of tokens, keys and values from another (or the same), and a projection."""

  def __init__(
    self, width: int, heads: int, *, dropout: float = 0.0, dtype: jnp.dtype = jnp.float32, rngs: nnx.Rngs
  ):
    # LinearGeneral initialises its kernel as the flattened matrix, (D, H*Dh) and (H*Dh, D).
    xavier = {'kernel_init': nnx.initializers.xavier_uniform(), 'dtype': dtype, 'rngs': rngs}
    head = (heads, width // heads)
    self.query = nnx.LinearGeneral(width, head, **xavier)
    self.key = nnx.LinearGeneral(width, head, **xavier)
    self.value = nnx.LinearGeneral(width, head, **xavier)
    self.out = nnx.LinearGeneral(head, width, axis=(-2, -1), **xavier)
    self.dropout = dropout

  def __call__(self, x: jax.Array, memory: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    """x (B, Q, D) attends to memory (B, N, D): (B, Q, D)."""
    query, key, value = self.query(x), self.key(memory), self.value(memory)
    return self.out(attend(query, key, value, rate=self.dropout, keys=keys))

  def weights(self, x: jax.Array, memory: jax.Array) -> jax.Array:
    """How much each token of x (B, Q, D) attends to those of memory (B, N, D): float32 (B, H, Q, N)."""
    return _weights(self.query(x), self.key(memory))
