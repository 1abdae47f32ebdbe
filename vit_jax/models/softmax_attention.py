"""softmax(q k^T / sqrt(Dh)) v, in the forms that XLA compiles well on TPUs and CPUs (paper, equations 6 and 7).

Gradients are called as in FlashAttention-2 (arXiv 2307.08691, algorithms 1 and 2): dq, dk, dv and do are those of
queries, keys, values and outputs, dlogits and dweights those of its S and P; logsumexp is its L, and delta its D.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.models.dropout import Place, dropout

# A TPU computes on rows of 128 numbers; so few tokens beyond a multiple of it are a group of their own.
_LANES, _FEW = 128, 8
# Up to so many tokens there is memory for the weights of all blocks.
_MOST_KEPT = 512


def attend_by_weights(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  *,
  bias: jax.Array | None = None,
  rate: float = 0.0,
  dropout_keys: jax.Array | None = None,
  rounded: bool = False,
) -> jax.Array:
  """dropout(softmax(q k^T / sqrt(Dh) + bias)) v, the softmax in float32 (equations 6 and 7).

  Only this form has a bias and dropout; its backward pass reads the weights.

  Args:
    query: (B, Q, H, Dh).
    key: (B, N, H, Dh).
    value: (B, N, H, Dh).
    bias: float32 (B or 1, H, Q, N), or None.
    rate: dropout of the attention weights.
    dropout_keys: (B,) typed PRNG keys of that dropout; None: nothing is dropped.
    rounded: the softmax's input is rounded as `attend_and_keep` rounds it.

  Returns:
    (B, Q, H, Dh), of the dtype of `value`.
  """
  weights = attention_weights(query, key, bias, rounded).astype(value.dtype)
  weights = dropout(weights, rate, dropout_keys, Place.ATTENTION_WEIGHTS)
  return _heads_last(jnp.einsum('bhqn,bhnd->bhqd', weights, _heads_first(value)))


def attend_and_keep(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
  """softmax(q k^T / sqrt(Dh)) v, whose backward pass reads the softmax's input, rounded to the dtype of the queries.

  What is rounded is how far each logit is below the largest of its query, which the greatest weights hardly notice.

  Args:
    query: (B, Q, H, Dh).
    key, value: (B, N, H, Dh).

  Returns:
    (B, Q, H, Dh), of the dtype of `value`.
  """
  out: jax.Array = _keeping(_heads_first(scaled(query)), _heads_first(key), _heads_first(value))
  return _heads_last(out)


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
    tuple(_heads_first(scaled(query)) for query in queries),
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
  return (x[:, :whole], x[:, whole:]) if _are_two_groups(x.shape[1]) else (x,)


def _are_two_groups(tokens: int) -> bool:
  return tokens > _LANES and 0 < tokens % _LANES <= _FEW


def keeps_weights(
  tokens: int, dtype: jnp.dtype | type, sharding: jax.sharding.NamedSharding | None, *, unrolled: bool
) -> bool:
  """Whether the backward pass of XLA's attention had better read the rounded input of its softmax.

  In bfloat16 reading it is faster on a TPU than computing it again, where blocks are unrolled and tokens do not
  fill its rows. By the compiler's estimates for a step with 4,096 images:

  |                                   | read     | again    | why                                   |
  |-----------------------------------|----------|----------|---------------------------------------|
  | L/16, 4 blocks unrolled, v3-128   | 56.6 ms  | 61.7 ms  | no float32 logits change their layout |
  | L/16, 4 blocks unrolled, v4:4x4x4 | 35.3 ms  | 39.7 ms  | likewise                              |
  | L/16, 24 blocks as a loop, v3-128 | 371 ms   | 343 ms   | a loop copies what each block saves   |
  | H/14, 2 blocks unrolled, v3-128   | 57.4 ms  | 54.7 ms  | 257 tokens: `grouped` saves more      |
  | H/14, 2 blocks unrolled, v4:4x4x4 | 35.0 ms  | 33.4 ms  | likewise                              |

  Args:
    tokens: N.
    dtype: of queries, keys and values.
    sharding: of the tokens, whose devices decide; None: nobody knows the devices.
    unrolled: whether the blocks are compiled one after the other.
  """
  if not unrolled or sharding is None or dtype != jnp.bfloat16 or tokens > _MOST_KEPT:
    return False
  return _is_on_tpus(sharding) and tokens % _LANES > _FEW


def separates_groups(tokens: int, sharding: jax.sharding.NamedSharding | None, *, unrolled: bool) -> bool:
  """Whether the tokens had better stay in the groups of `grouped` through all blocks, as arrays of their own.

  On a TPU and unrolled they had: else each block pads 257 tokens to 264, and cuts and joins them twice. By the
  compiler's estimate a step of H/14 with 4,096 images takes 733 ms on v3-128 instead of 757.

  Args:
    tokens: N.
    sharding: of the tokens, whose devices decide; None: nobody knows the devices.
    unrolled: whether the blocks are compiled one after the other.
  """
  return unrolled and _are_two_groups(tokens) and sharding is not None and _is_on_tpus(sharding)


def _is_on_tpus(sharding: jax.sharding.NamedSharding) -> bool:
  return next(iter(sharding.device_set)).platform == 'tpu'


@jax.custom_vjp
def _attend(queries: Groups, keys: Groups, values: Groups) -> Groups:
  """softmax(q k^T) v of queries (B, H, Qi, Dh), keys and values (B, H, Ni, Dh), with its own backward pass.

  Like flash attention (arXiv 2205.14135) the backward pass computes the B*H*Q*N weights again from q and k
  rather than read them from memory: a tenth less time a block, by the compiler's estimate for a TPU v3.
  """
  return _attend_forward(queries, keys, values)[0]


def _attend_forward(queries: Groups, keys: Groups, values: Groups) -> tuple[Groups, Any]:
  """The outputs, and what the backward pass needs: inputs, outputs and the logsumexp of each query's logits."""
  outs, logsumexps = [], []
  for query in queries:
    logits = [_logits(query, key) for key in keys]
    largest = functools.reduce(jnp.maximum, (part.max(axis=-1, keepdims=True) for part in logits))
    weights = [jnp.exp(part - largest).astype(query.dtype) for part in logits]
    if query.shape[2] <= _FEW:  # so few sums cost a TPU less than the column of ones
      out, total = sums(weights, values)
    else:
      out, total = jax.lax.platform_dependent(weights, values, tpu=sums_by_one_product, default=sums)
    outs.append((out / total).astype(values[0].dtype))
    logsumexps.append(largest + jnp.log(total))
  return tuple(outs), (queries, keys, values, tuple(outs), logsumexps)


def sums(weights: Sequence[jax.Array], values: Groups) -> tuple[jax.Array, jax.Array]:
  """The sums of weighted values (B, H, Q, Dh) and of weights (B, H, Q, 1) over all keys, in float32."""
  products = [
    jnp.einsum('bhqn,bhnd->bhqd', w, v, preferred_element_type=jnp.float32)
    for w, v in zip(weights, values, strict=True)
  ]
  totals = [w.astype(jnp.float32).sum(axis=-1, keepdims=True) for w in weights]
  return functools.reduce(operator.add, products), functools.reduce(operator.add, totals)


def sums_by_one_product(weights: Sequence[jax.Array], values: Groups) -> tuple[jax.Array, jax.Array]:
  """As `sums`, by a column of ones beside the values.

  A TPU pads Dh to 128, so that the column is free; on a CPU it makes attention take twice as long.
  """
  values_and_ones = [jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1) for v in values]
  products = [
    jnp.einsum('bhqn,bhnd->bhqd', w, v, preferred_element_type=jnp.float32)
    for w, v in zip(weights, values_and_ones, strict=True)
  ]
  both = functools.reduce(operator.add, products)
  return both[..., :-1], both[..., -1:]


def _attend_backward(saved: Any, dos: Groups) -> tuple[Groups, Groups, Groups]:
  """dq, dk and dv of each group, from the groups' do."""
  queries, keys, values, outs, logsumexps = saved
  deltas = [_delta(do, out) for do, out in zip(dos, outs, strict=True)]
  dq, dk, dv = ([jnp.zeros_like(x) for x in group] for group in (queries, keys, values))
  for i, (query, logsumexp, delta, do) in enumerate(zip(queries, logsumexps, deltas, dos, strict=True)):
    for j, (key, value) in enumerate(zip(keys, values, strict=True)):
      weights = jnp.exp(_logits(query, key) - logsumexp)
      dweights = jnp.einsum('bhqd,bhnd->bhqn', do, value, preferred_element_type=jnp.float32)
      dlogits = (weights * (dweights - delta)).astype(query.dtype)
      dq[i] += jnp.einsum('bhqn,bhnd->bhqd', dlogits, key)
      dk[j] += jnp.einsum('bhqn,bhqd->bhnd', dlogits, query)
      dv[j] += jnp.einsum('bhqn,bhqd->bhnd', weights.astype(value.dtype), do)
  return tuple(dq), tuple(dk), tuple(dv)


_attend.defvjp(_attend_forward, _attend_backward)


def _delta(do: jax.Array, out: jax.Array) -> jax.Array:
  """float32 (B, H, Q, 1): the mean of the weights' gradient over the keys, from the output and its gradient."""
  return (do.astype(jnp.float32) * out).sum(axis=-1, keepdims=True)


@jax.custom_vjp
def _keeping(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
  """softmax(q k^T) v of (B, H, Q or N, Dh), with its own backward pass.

  JAX's gradient of the softmax sums the weights' gradient over the keys. Here the output gives that sum, as in flash
  attention (arXiv 2205.14135, algorithm 4), which is a pass over B*H*Q*N numbers less: 2 % of the step of L/16 on a
  TPU v3 and v5e, 6 % on a v4, by the compiler's estimate.
  """
  return _keeping_forward(query, key, value)[0]


def _keeping_forward(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, Any]:
  """The output, and what the backward pass needs: inputs, the softmax's input and sum, and the output."""
  logits = _logits(query, key)
  kept = (logits - logits.max(axis=-1, keepdims=True)).astype(query.dtype)
  exponentials = jnp.exp(kept.astype(jnp.float32))
  total = exponentials.sum(axis=-1, keepdims=True)
  weights = (exponentials / total).astype(value.dtype)
  out = jnp.einsum('bhqn,bhnd->bhqd', weights, value)
  return out, (query, key, value, kept, total, out)


def _keeping_backward(saved: Any, do: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """dq, dk and dv, from do."""
  query, key, value, kept, total, out = saved
  weights = jnp.exp(kept.astype(jnp.float32)) / total
  delta = _delta(do, out)
  dweights = jnp.einsum('bhqd,bhnd->bhqn', do, value, preferred_element_type=jnp.float32)
  dlogits = (weights * (dweights - delta)).astype(query.dtype)
  dq = jnp.einsum('bhqn,bhnd->bhqd', dlogits, key)
  dk = jnp.einsum('bhqn,bhqd->bhnd', dlogits, query)
  dv = jnp.einsum('bhqn,bhqd->bhnd', weights.astype(value.dtype), do)
  return dq, dk, dv


_keeping.defvjp(_keeping_forward, _keeping_backward)


def attention_weights(
  query: jax.Array, key: jax.Array, bias: jax.Array | None, rounded: bool = False
) -> jax.Array:
  """(B, Q, H, Dh), (B, N, H, Dh) -> float32 (B, H, Q, N), which sum to one over N; see `attend_by_weights`."""
  logits = _logits(_heads_first(scaled(query)), _heads_first(key))
  logits = logits if bias is None else logits + bias
  if rounded:
    logits -= jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    logits = logits.astype(query.dtype).astype(jnp.float32)
  return jax.nn.softmax(logits)


def _logits(query: jax.Array, key: jax.Array) -> jax.Array:
  """(B, H, Q, Dh), (B, H, N, Dh) -> float32 (B, H, Q, N)."""
  return jnp.einsum('bhqd,bhnd->bhqn', query, key, preferred_element_type=jnp.float32)


def scaled(query: jax.Array) -> jax.Array:
  """Queries (..., Dh) whose products with keys are the logits: divided by sqrt(Dh)."""
  return query / math.sqrt(query.shape[-1])


def _heads_first(x: jax.Array) -> jax.Array:
  """(B, N, H, Dh) -> (B, H, N, Dh).

  With heads before tokens the products are plain batched ones, which on a CPU take 0.8 of the time of einsum
  in the order (B, N, H, Dh) and 0.6 of jax.nn.dot_product_attention's.
  """
  return x.transpose(0, 2, 1, 3)


_heads_last = _heads_first  # the same transposition takes (B, H, N, Dh) back
