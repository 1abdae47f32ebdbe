"""Multi-head attention (paper, appendix A)."""

import functools
import math
import operator
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models import fused_attention
from vit_jax.models.base import Grid
from vit_jax.models.dropout import Place, dropout
from vit_jax.models.layers import LayerNorm
from vit_jax.models.position import RelativeBias, RelativeKeys, Rotary
from vit_jax.models.vit_config import AttentionKernel

# A TPU computes on rows of 128 numbers; so few tokens beyond a multiple of it are a group of their own.
_LANES, _FEW = 128, 8
# Up to so many tokens there is memory for the weights of all blocks.
_MOST_KEPT = 512

# What is rounded to the dtype of the queries before the softmax: the logits, or what each is below the largest of its
# query, whose rounding the greatest weights hardly notice.
Rounded = Literal['logits', 'differences']


def attend_by_weights(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  *,
  bias: jax.Array | None = None,
  rate: float = 0.0,
  dropout_keys: jax.Array | None = None,
  rounded: Rounded | None = None,
) -> jax.Array:
  """dropout(softmax(q k^T / sqrt(Dh) + bias)) v, the softmax in float32 (equations 6 and 7).

  Only this form has a bias and dropout; it keeps the weights for the backward pass.

  Args:
    query: (B, Q, H, Dh).
    key: (B, N, H, Dh).
    value: (B, N, H, Dh).
    bias: float32 (B or 1, H, Q, N), or None.
    rate: dropout of the attention weights.
    dropout_keys: (B,) typed PRNG keys of that dropout; None: nothing is dropped.
    rounded: what is rounded before the softmax; None: nothing.

  Returns:
    (B, Q, H, Dh), of the dtype of `value`.
  """
  weights = _weights(query, key, bias, rounded).astype(value.dtype)
  weights = dropout(weights, rate, dropout_keys, Place.ATTENTION_WEIGHTS)
  return _heads_last(jnp.einsum('bhqn,bhnd->bhqd', weights, _heads_first(value)))


Groups = tuple[jax.Array, ...]  # consecutive tokens of one sequence


def attend_in_groups(queries: Groups, keys: Groups, values: Groups) -> Groups:
  """softmax(q k^T / sqrt(Dh)) v of sequences cut into groups: a query attends to the keys of all groups.

  Args:
    queries: (B, Qi, H, Dh) each.
    keys, values: (B, Ni, H, Dh) each.

  Returns:
    (B, Qi, H, Dh) each.
  """
  outs = _attend(
    tuple(_heads_first(_scaled(query)) for query in queries),
    tuple(_heads_first(key) for key in keys),
    tuple(_heads_first(value) for value in values),
  )
  return tuple(_heads_last(out) for out in outs)


def grouped(x: jax.Array) -> Groups:
  """(B, N, ...) in groups: 257 tokens become a group of 256 and one of 1.

  A TPU pads an array's last side to a multiple of 128, so 257 tokens (16 x 16 patches and a class token)
  would take as long as 384. In groups a block of H/14 takes 0.87 of the time, by the compiler's estimate for
  a TPU v3.
  """
  whole = x.shape[1] // _LANES * _LANES
  return (x[:, :whole], x[:, whole:]) if whole and 0 < x.shape[1] - whole <= _FEW else (x,)


def kept_weights(
  tokens: int, dtype: jnp.dtype | type, sharding: jax.sharding.NamedSharding | None, *, unrolled: bool
) -> Rounded | None:
  """Whether the backward pass of XLA's attention reads its weights, and if so, what is rounded for them.

  In bfloat16 reading them is faster on a TPU than computing them again where tokens do not fill its rows. The
  softmax is in float32; its input is rounded, as that of Flax's (and so big_vision's) is. By the compiler's
  estimates, 32 images a core of v3-128, 64 of v5e:8x8:

  |                               | logits  | differences | again         | why                                    |
  |-------------------------------|---------|-------------|---------------|----------------------------------------|
  | L/16, 3 blocks unrolled, v3   | 44.4 ms | 44.8 ms     | 48 ms         | no float32 logits change their layout  |
  | L/16, 2 blocks unrolled, v5e  | 28.7 ms | 28.2 ms     |               | product and softmax are one fusion     |
  | L/16, a block alone, v4       | 4.78 ms | 4.68 ms     |               | likewise                               |
  | L/16, 24 blocks as a loop, v3 | 373 ms  |             | less than 361 | a loop copies what each block saves    |
  | H/14, 257 tokens, v3          | –       | –           | 840 ms        | `grouped` saves more                   |

  Args:
    tokens: N.
    dtype: of queries, keys and values.
    sharding: of the tokens, whose devices decide; None: nobody knows the devices.
    unrolled: whether the blocks are compiled one after the other.

  Returns:
    None: the weights are computed again.
  """
  if not unrolled or sharding is None or dtype != jnp.bfloat16 or tokens > _MOST_KEPT:
    return None
  device = next(iter(sharding.device_set))
  if device.platform != 'tpu' or tokens % _LANES <= _FEW:
    return None
  return 'logits' if device.device_kind in ('TPU v2', 'TPU v3') else 'differences'


@jax.custom_vjp
def _attend(queries: Groups, keys: Groups, values: Groups) -> Groups:
  """softmax(q k^T) v of queries (B, H, Qi, Dh), keys and values (B, H, Ni, Dh), with its own backward pass.

  Like flash attention (arXiv 2205.14135) the backward pass computes the B*H*Q*N weights again from q and k
  rather than read them from memory: a tenth less time a block, by the compiler's estimate for a TPU v3.
  """
  return _attend_forward(queries, keys, values)[0]


def _attend_forward(queries: Groups, keys: Groups, values: Groups) -> tuple[Groups, Any]:
  """The outputs, and what the backward pass needs: inputs, outputs and the log of each softmax's sum."""
  # A column of ones beside the values makes the same product give the weights' sums.
  values_and_ones = [jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1) for v in values]
  outs, log_totals = [], []
  for query in queries:
    logits = [_logits(query, key) for key in keys]
    largest = functools.reduce(jnp.maximum, (part.max(axis=-1, keepdims=True) for part in logits))
    weights = [jnp.exp(part - largest).astype(query.dtype) for part in logits]
    products = [
      jnp.einsum('bhqn,bhnd->bhqd', w, v, preferred_element_type=jnp.float32)
      for w, v in zip(weights, values_and_ones, strict=True)
    ]
    sums = functools.reduce(operator.add, products)
    out, total = sums[..., :-1], sums[..., -1:]
    outs.append((out / total).astype(values[0].dtype))
    log_totals.append(largest + jnp.log(total))
  return tuple(outs), (queries, keys, values, tuple(outs), log_totals)


def _attend_backward(saved: Any, grads: Groups) -> tuple[Groups, Groups, Groups]:
  """Gradients of queries, keys and values, from those of the outputs."""
  queries, keys, values, outs, log_totals = saved
  means = [  # of the weights' gradient, over the keys
    (grad.astype(jnp.float32) * out).sum(axis=-1, keepdims=True)
    for grad, out in zip(grads, outs, strict=True)
  ]
  of_queries, of_keys, of_values = ([jnp.zeros_like(x) for x in group] for group in (queries, keys, values))
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


def _weights(
  query: jax.Array, key: jax.Array, bias: jax.Array | None, rounded: Rounded | None = None
) -> jax.Array:
  """(B, Q, H, Dh), (B, N, H, Dh) -> float32 (B, H, Q, N), which sum to one over N."""
  dtype = query.dtype if rounded == 'logits' else jnp.float32
  logits = _logits(_heads_first(_scaled(query)), _heads_first(key), dtype).astype(jnp.float32)
  logits = logits if bias is None else logits + bias
  if rounded == 'differences':
    differences = logits - jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    weights = jnp.exp(differences.astype(query.dtype).astype(jnp.float32))
    return weights / weights.sum(axis=-1, keepdims=True)
  return jax.nn.softmax(logits)


def _logits(query: jax.Array, key: jax.Array, dtype: Any = jnp.float32) -> jax.Array:
  """(B, H, Q, Dh), (B, H, N, Dh) -> (B, H, Q, N) of `dtype`."""
  return jnp.einsum('bhqd,bhnd->bhqn', query, key, preferred_element_type=dtype)


def _scaled(query: jax.Array) -> jax.Array:
  return query / math.sqrt(query.shape[-1])


def _heads_first(x: jax.Array) -> jax.Array:
  """(B, N, H, Dh) -> (B, H, N, Dh).

  With heads before tokens the products are plain batched ones, which on a CPU take 0.8 of the time of einsum
  in the order (B, N, H, Dh) and 0.6 of jax.nn.dot_product_attention's.
  """
  return x.transpose(0, 2, 1, 3)


_heads_last = _heads_first  # the same transposition takes (B, H, N, Dh) back


class Attention(nnx.Module):
  """Multi-head attention (paper, appendix A, equations 5 to 8) of some tokens to others, or to themselves."""

  def __init__(
    self,
    width: int,
    heads: int,
    *,
    dropout: float = 0.0,
    dtype: jnp.dtype | type = jnp.float32,
    implementation: AttentionKernel = 'xla',
    position: RelativeBias | RelativeKeys | Rotary | None = None,
    norm_epsilon: float | None = None,
    sharding: jax.sharding.NamedSharding | None = None,
    unrolled: bool = False,
    rngs: nnx.Rngs,
  ):
    """
    Args:
      width: D.
      heads: H, which divides D.
      dropout: of the attention weights.
      dtype: of the computation.
      implementation: config.model.attention; other than 'xla' only where tokens attend to themselves.
      position: what attention knows of positions; likewise.
      norm_epsilon: of the query-key normalisation (arXiv 2302.05442, section 2.1); None: there is none.
      sharding: of the tokens.
      unrolled: whether the blocks are compiled one after the other, and not as a loop.
      rngs: of the initial parameters.
    """
    # LinearGeneral initialises its kernel as the flattened matrix, (D, H*Dh) and (H*Dh, D).
    xavier = {'kernel_init': nnx.initializers.xavier_uniform(), 'dtype': dtype, 'rngs': rngs}
    head = (heads, width // heads)
    self.query = nnx.LinearGeneral(width, head, **xavier)
    self.key = nnx.LinearGeneral(width, head, **xavier)
    self.value = nnx.LinearGeneral(width, head, **xavier)
    self.out = nnx.LinearGeneral(head, width, axis=(-2, -1), **xavier)
    self.query_norm = None if norm_epsilon is None else LayerNorm(head[1], norm_epsilon)
    self.key_norm = None if norm_epsilon is None else LayerNorm(head[1], norm_epsilon)
    self.dropout = dropout
    self.implementation: AttentionKernel = implementation
    self.position = position
    self.sharding = sharding
    self.unrolled = unrolled

  def __call__(
    self, x: jax.Array, memory: jax.Array, *, dropout_keys: jax.Array | None = None, grid: Grid | None = None
  ) -> jax.Array:
    """(B, Q, D), (B, N, D) -> (B, Q, D).

    Args:
      x: the tokens that attend, whose queries are taken.
      memory: the tokens that are attended to, whose keys and values are taken.
      dropout_keys: (B,) typed PRNG keys of dropout, or None.
      grid: rows and columns of the patches, where attention knows of positions.
    """
    queries = jax.ShapeDtypeStruct((*x.shape[:2], *self.query.out_features), self.query.dtype)
    biased = isinstance(self.position, RelativeBias | RelativeKeys)
    kernel = fused_attention.choose(
      self.implementation, queries, dropout=self.dropout, biased=biased, sharding=self.sharding
    )
    dropping = self.dropout > 0 and dropout_keys is not None
    rounded = None
    if kernel == 'xla':
      rounded = kept_weights(memory.shape[1], queries.dtype, self.sharding, unrolled=self.unrolled)
    if kernel == 'xla' and self.position is None and not dropping and not rounded:
      return self._in_groups(x, memory)
    query, key, bias = self._queries_and_keys(x, memory, grid)
    value = self.value(memory)
    if biased or dropping or rounded:
      out = attend_by_weights(
        query, key, value, bias=bias, rate=self.dropout, dropout_keys=dropout_keys, rounded=rounded
      )
    elif kernel == 'xla':
      out = jnp.concatenate(attend_in_groups(grouped(query), grouped(key), grouped(value)), axis=1)
    else:
      assert self.sharding is not None, 'without a mesh of devices no kernel is chosen'
      out = fused_attention.attend(kernel, query, key, value, self.sharding)
    return self.out(out)

  def _in_groups(self, x: jax.Array, memory: jax.Array) -> jax.Array:
    """Attention by `attend_in_groups`, with the projections of each group apart."""
    queries = tuple(self._query(group) for group in grouped(x))
    keys = tuple(self._key(group) for group in grouped(memory))
    values = tuple(self.value(group) for group in grouped(memory))
    return jnp.concatenate([self.out(out) for out in attend_in_groups(queries, keys, values)], axis=1)

  def _query(self, x: jax.Array) -> jax.Array:
    return self.query(x) if self.query_norm is None else self.query_norm(self.query(x))

  def _key(self, memory: jax.Array) -> jax.Array:
    return self.key(memory) if self.key_norm is None else self.key_norm(self.key(memory))

  def _queries_and_keys(
    self, x: jax.Array, memory: jax.Array, grid: Grid | None
  ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Queries (B, Q, H, Dh), keys (B, N, H, Dh) and the bias of their logits (or None), positions applied."""
    query, key = self._query(x), self._key(memory)
    if self.position is None:
      return query, key, None
    assert grid is not None, 'attention that knows of positions is given the grid of its patches'
    if isinstance(self.position, Rotary):
      return self.position.rotate(query, grid), self.position.rotate(key, grid), None
    return query, key, self.position.logits(_scaled(query), grid)

  def weights(self, x: jax.Array, memory: jax.Array, grid: Grid | None = None) -> jax.Array:
    """How much each token of x (B, Q, D) attends to those of memory (B, N, D): float32 (B, H, Q, N)."""
    return _weights(*self._queries_and_keys(x, memory, grid))
