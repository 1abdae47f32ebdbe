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
  query = query / math.sqrt(query.shape[-1])
  logits = jnp.einsum('bqhd,bnhd->bhqn', query, key, preferred_element_type=jnp.float32)
  weights = jax.nn.softmax(logits).astype(value.dtype)
  weights = dropout(weights, rate, keys, Place.ATTENTION_WEIGHTS)
  return jnp.einsum('bhqn,bnhd->bqhd', weights, value)


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
