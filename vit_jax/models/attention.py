"""Multi-head attention (paper, appendix A)."""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models import fused_attention
from vit_jax.models.dropout import Place, dropout
from vit_jax.models.layers import LayerNorm
from vit_jax.models.position import Grid, RelativeBias, RelativeKeys, Rotary


def attend_by_weights(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  *,
  bias: jax.Array | None = None,
  rate: float = 0.0,
  keys: jax.Array | None = None,
) -> jax.Array:
  """dropout(softmax(q k^T / sqrt(Dh) + bias)) v, the softmax in float32 (equations 6 and 7).

  What `attend_in_groups` and the kernels do not have: its weights are kept for the backward pass.

  Args:
    query: (B, Q, H, Dh).
    key: (B, N, H, Dh).
    value: (B, N, H, Dh).
    bias: float32 (B or 1, H, Q, N), or None.
    rate: dropout of the attention weights.
    keys: (B,) typed PRNG keys of that dropout; None: nothing is dropped.

  Returns:
    (B, Q, H, Dh), of the dtype of `value`.
  """
  weights = dropout(_weights(query, key, bias).astype(value.dtype), rate, keys, Place.ATTENTION_WEIGHTS)
  return _heads_last(jnp.einsum('bhqn,bhnd->bhqd', weights, _heads_first(value)))


Groups = tuple[jax.Array, ...]  # consecutive tokens of one sequence


def attend_in_groups(queries: Groups, keys: Groups, values: Groups) -> Groups:
  """softmax(q k^T / sqrt(Dh)) v of sequences cut into groups: a query attends to the keys of all of them.

  Args:
    queries: (B, Qi, H, Dh) each.
    keys, values: (B, Ni, H, Dh) each.

  Returns:
    (B, Qi, H, Dh) each.
  """
  heads_first = lambda groups: tuple(map(_heads_first, groups))
  return tuple(
    map(_heads_last, _attend(heads_first(map(_scaled, queries)), *map(heads_first, (keys, values))))
  )


def grouped(x: jax.Array) -> Groups:
  """(B, N, ...) in groups: the one token that 257 have more than 256 is a group of its own.

  A TPU computes with 128 numbers side by side, and what has tokens along that side is padded: 257 (16 x 16
  patches and a class token) would take as long as 384. By the compiler's estimate for a TPU v3, H/14's
  block takes 0.87 of the time so.
  """
  whole = x.shape[1] // _LANES * _LANES
  return (x[:, :whole], x[:, whole:]) if whole and 0 < x.shape[1] - whole <= _FEW else (x,)


_LANES, _FEW = 128, 8


@jax.custom_vjp
def _attend(queries: Groups, keys: Groups, values: Groups) -> Groups:
  """softmax(q k^T) v of (B, H, Qi, Dh), (B, H, Ni, Dh) twice, its backward pass our own.

  That computes the B*H*Q*N weights again from q and k, rather than read them from memory (as flash
  attention does, arXiv 2205.14135): the compiler's estimate for a TPU v3 is a tenth less time a block.
  """
  return _attend_forward(queries, keys, values)[0]


def _attend_forward(queries, keys, values):
  # A column of ones beside the values makes the same product give the weights' sums.
  values_and_ones = [jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1) for v in values]
  outs, log_totals = [], []
  for query in queries:
    logits = [_logits(query, key) for key in keys]
    largest = functools.reduce(jnp.maximum, (part.max(axis=-1, keepdims=True) for part in logits))
    weights = [jnp.exp(part - largest).astype(query.dtype) for part in logits]
    products = zip(weights, values_and_ones, strict=True)
    sums = sum(jnp.einsum('bhqn,bhnd->bhqd', w, v, preferred_element_type=jnp.float32) for w, v in products)
    out, total = sums[..., :-1], sums[..., -1:]
    outs.append((out / total).astype(values[0].dtype))
    log_totals.append(largest + jnp.log(total))
  return tuple(outs), (queries, keys, values, tuple(outs), log_totals)


def _attend_backward(saved, grads):
  queries, keys, values, outs, log_totals = saved
  means = [  # of the weights' gradient
    (grad.astype(jnp.float32) * out).sum(axis=-1, keepdims=True)
    for grad, out in zip(grads, outs, strict=True)
  ]
  of_queries, of_keys, of_values = [0] * len(queries), [0] * len(keys), [0] * len(keys)
  for i, (query, log_total, mean, grad) in enumerate(zip(queries, log_totals, means, grads, strict=True)):
    for j, (key, value) in enumerate(zip(keys, values, strict=True)):
      weights = jnp.exp(_logits(query, key) - log_total)
      grad_weights = jnp.einsum('bhqd,bhnd->bhqn', grad, value, preferred_element_type=jnp.float32)
      grad_logits = (weights * (grad_weights - mean)).astype(query.dtype)
      of_queries[i] += jnp.einsum('bhqn,bhnd->bhqd', grad_logits, key)
      of_keys[j] += jnp.einsum('bhqn,bhqd->bhnd', grad_logits, query)
      of_values[j] += jnp.einsum('bhqn,bhqd->bhnd', weights.astype(value.dtype), grad)
  return tuple(of_queries), tuple(of_keys), tuple(of_values)


_attend.defvjp(_attend_forward, _attend_backward)


def _weights(query: jax.Array, key: jax.Array, bias: jax.Array | None) -> jax.Array:
  """(B, Q, H, Dh), (B, N, H, Dh) -> float32 (B, H, Q, N), which sum to one over N."""
  logits = _logits(*map(_heads_first, (_scaled(query), key)))
  return jax.nn.softmax(logits if bias is None else logits + bias)


def _logits(query: jax.Array, key: jax.Array) -> jax.Array:
  """(B, H, Q, Dh), (B, H, N, Dh) -> float32 (B, H, Q, N)."""
  return jnp.einsum('bhqd,bhnd->bhqn', query, key, preferred_element_type=jnp.float32)


def _scaled(query: jax.Array) -> jax.Array:
  return query / math.sqrt(query.shape[-1])


def _heads_first(x: jax.Array) -> jax.Array:
  """(B, N, H, Dh) -> (B, H, N, Dh).

  With heads before tokens the products are plain batched ones: on a CPU 0.8 of the time that einsum needs
  in the order (B, N, H, Dh), and 0.6 of jax.nn.dot_product_attention.
  """
  return x.transpose(0, 2, 1, 3)


_heads_last = _heads_first  # the same exchange


class Attention(nnx.Module):
  """Queries from one set of tokens, keys and values from another (or the same), and a projection."""

  def __init__(
    self,
    width: int,
    heads: int,
    *,
    dropout: float = 0.0,
    dtype: jnp.dtype = jnp.float32,
    implementation: str = 'xla',
    position: RelativeBias | RelativeKeys | Rotary | None = None,
    norm_epsilon: float | None = None,
    sharding: jax.sharding.Sharding | None = None,
    rngs: nnx.Rngs,
  ):
    # LinearGeneral initialises its kernel as the flattened matrix, (D, H*Dh) and (H*Dh, D).
    xavier = {'kernel_init': nnx.initializers.xavier_uniform(), 'dtype': dtype, 'rngs': rngs}
    head = (heads, width // heads)
    self.query = nnx.LinearGeneral(width, head, **xavier)
    self.key = nnx.LinearGeneral(width, head, **xavier)
    self.value = nnx.LinearGeneral(width, head, **xavier)
    self.out = nnx.LinearGeneral(head, width, axis=(-2, -1), **xavier)
    # Of each head's queries and keys (arXiv 2302.05442, section 2.1), where there is an epsilon.
    self.query_norm, self.key_norm = (norm_epsilon and LayerNorm(head[1], norm_epsilon) for _ in range(2))
    self.dropout = dropout
    self.implementation = implementation  # of config.model.attention; other than 'xla' only for x = memory
    self.position = position  # likewise
    self.sharding = sharding  # of x

  def __call__(
    self, x: jax.Array, memory: jax.Array, *, keys: jax.Array | None = None, grid: Grid | None = None
  ) -> jax.Array:
    """x (B, Q, D) attends to memory (B, N, D): (B, Q, D).

    Args:
      x: the tokens that ask.
      memory: the tokens that are asked.
      keys: (B,) typed PRNG keys of dropout, or None.
      grid: rows and columns of the patches, where attention knows of positions.
    """
    queries = jax.ShapeDtypeStruct((*x.shape[:2], *self.query.out_features), self.query.dtype)
    biased = isinstance(self.position, RelativeBias | RelativeKeys)
    kernel = fused_attention.choose(
      self.implementation, queries, dropout=self.dropout, biased=biased, sharding=self.sharding
    )
    dropping = self.dropout and keys is not None
    if kernel == 'xla' and self.position is None and not dropping:
      return self._in_groups(x, memory)
    (query, key, bias), value = self._asked(x, memory, grid), self.value(memory)
    if biased or dropping:
      out = attend_by_weights(query, key, value, bias=bias, rate=self.dropout, keys=keys)
    elif kernel == 'xla':
      out = jnp.concatenate(attend_in_groups(*map(grouped, (query, key, value))), axis=1)
    else:
      out = fused_attention.attend(kernel, query, key, value, self.sharding)
    return self.out(out)

  def _in_groups(self, x: jax.Array, memory: jax.Array) -> jax.Array:
    project = lambda layer, tokens: tuple(map(layer, grouped(tokens)))
    queries, keys, values = project(self._query, x), project(self._key, memory), project(self.value, memory)
    return jnp.concatenate([self.out(out) for out in attend_in_groups(queries, keys, values)], axis=1)

  def _query(self, x: jax.Array) -> jax.Array:
    return self.query(x) if self.query_norm is None else self.query_norm(self.query(x))

  def _key(self, memory: jax.Array) -> jax.Array:
    return self.key(memory) if self.key_norm is None else self.key_norm(self.key(memory))

  def _asked(
    self, x: jax.Array, memory: jax.Array, grid: Grid | None
  ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Queries (B, Q, H, Dh), keys (B, N, H, Dh) and the bias of their logits, with their positions."""
    query, key, bias = self._query(x), self._key(memory), None
    if isinstance(self.position, Rotary):
      query, key = self.position.rotate(query, grid), self.position.rotate(key, grid)
    elif self.position is not None:
      bias = self.position.logits(_scaled(query), grid)
    return query, key, bias

  def weights(self, x: jax.Array, memory: jax.Array, grid: Grid | None = None) -> jax.Array:
    """How much each token of x (B, Q, D) attends to those of memory (B, N, D): float32 (B, H, Q, N)."""
    return _weights(*self._asked(x, memory, grid))
