"""Attention as XLA compiles it: softmax and products of tokens that may be in groups, with a backward pass of our own.

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
from jax.sharding import NamedSharding

from vit_jax.models.base import device_of
from vit_jax.models.dropout import Place, dropout

# A TPU computes on rows of 128 numbers; so few tokens beyond a multiple of it are a group of their own.
_LANES, _FEW = 128, 8
# Up to so many tokens there is memory for the weights of all blocks.
_MOST_KEPT = 512

Groups = tuple[jax.Array, ...]  # consecutive tokens of one sequence


def attend_groups(
  queries: Groups,
  keys: Groups,
  values: Groups,
  bias: jax.Array | None = None,
  dropout_keys: jax.Array | None = None,
  rate: float = 0.0,
  keeps: bool = False,
) -> Groups:
  """`attend` of consecutive tokens in groups, (B, Qi, H, Dh) and (B, Ni, H, Dh) each, by XLA."""
  outs: Any = _attend(
    tuple(heads_first(scaled(query)) for query in queries),
    tuple(heads_first(key) for key in keys),
    tuple(heads_first(value) for value in values),
    bias,
    dropout_keys,
    rate,
    keeps,
  )
  return tuple(_heads_last(out) for out in outs)


def _attend_forward(
  queries: Groups,
  keys: Groups,
  values: Groups,
  bias: jax.Array | None,
  dropout_keys: jax.Array | None,
  rate: float,
  keeps: bool,
) -> tuple[Groups, Any]:
  """Attention of queries (B, H, Qi, Dh) to keys and values (B, H, Ni, Dh), and what its backward pass needs.

  Like flash attention (arXiv 2205.14135) the backward pass computes the B*H*Q*N weights again from q and k
  rather than read them from memory: a tenth less time a block, by the compiler's estimate for a TPU v3. The sum
  over the keys that the gradient of a softmax needs comes from the output (algorithm 4), which saves a pass.

  With a bias or dropout there is one group of each. What is saved are the inputs, the outputs, and of each query its
  logits (where `keeps_logits`, rounded) and their logsumexp.
  """
  outs, of_logits = [], []
  for query in queries:
    logits = [logits_of(query, key, bias) for key in keys]
    largest = functools.reduce(jnp.maximum, (part.max(axis=-1, keepdims=True) for part in logits))
    below = [part - largest for part in logits]
    if keeps:  # how far each is below the largest: rounding is hardly noticed by the greatest weights
      below = [part.astype(query.dtype) for part in below]
    exponentials = [jnp.exp(part.astype(jnp.float32)) for part in below]
    if keeps:
      out, total = _normalised_first(exponentials, values, rate, dropout_keys)
      outs.append(out)
      of_logits.append((below, jnp.log(total)))
      continue
    weights = [part.astype(query.dtype) for part in exponentials]
    if dropout_keys is not None:
      dropped = [dropout(part, rate, dropout_keys, Place.ATTENTION_WEIGHTS) for part in weights]
      out, total = sums(dropped, values)[0], sums(weights, values)[1]
    elif query.shape[2] <= _FEW:  # so few sums cost a TPU less than the column of ones
      out, total = sums(weights, values)
    else:
      out, total = jax.lax.platform_dependent(weights, values, tpu=sums_by_one_product, default=sums)
    outs.append((out / total).astype(values[0].dtype))
    of_logits.append((None, largest + jnp.log(total)))
  return tuple(outs), (queries, keys, values, bias, dropout_keys, tuple(outs), of_logits)


def _attend_backward(
  rate: float, keeps: bool, saved: Any, dos: Groups
) -> tuple[Groups, Groups, Groups, jax.Array | None, None]:
  """dq, dk and dv of each group and the bias's gradient, from the groups' do."""
  queries, keys, values, bias, dropout_keys, outs, of_logits = saved
  dq, dk, dv = ([jnp.zeros_like(x) for x in group] for group in (queries, keys, values))
  dbias = None
  for i, (query, out, do, (kept, logsumexp)) in enumerate(zip(queries, outs, dos, of_logits, strict=True)):
    delta = (do.astype(jnp.float32) * out).sum(axis=-1, keepdims=True)  # the mean of dweights over the keys
    for j, (key, value) in enumerate(zip(keys, values, strict=True)):
      logits = kept[j].astype(jnp.float32) if keeps else logits_of(query, key, bias)
      weights = jnp.exp(logits - logsumexp)
      dweights = jnp.einsum('bhqd,bhnd->bhqn', do, value, preferred_element_type=jnp.float32)
      dweights = dropout(dweights, rate, dropout_keys, Place.ATTENTION_WEIGHTS)
      dlogits = weights * (dweights - delta)
      if bias is not None:
        repeated = tuple(axis for axis in range(4) if bias.shape[axis] != dlogits.shape[axis])
        dbias = dlogits.sum(axis=repeated, keepdims=True) if repeated else dlogits
      dlogits = dlogits.astype(query.dtype)
      dq[i] += jnp.einsum('bhqn,bhnd->bhqd', dlogits, key)
      dk[j] += jnp.einsum('bhqn,bhqd->bhnd', dlogits, query)
      dropped = dropout(weights.astype(value.dtype), rate, dropout_keys, Place.ATTENTION_WEIGHTS)
      dv[j] += jnp.einsum('bhqn,bhqd->bhnd', dropped, do)
  return tuple(dq), tuple(dk), tuple(dv), dbias, None


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attend(
  queries: Groups, keys: Groups, values: Groups, bias: Any, dropout_keys: Any, rate: float, keeps: bool
) -> Groups:
  return _attend_forward(queries, keys, values, bias, dropout_keys, rate, keeps)[0]


_attend.defvjp(_attend_forward, _attend_backward)


def _normalised_first(
  exponentials: Sequence[jax.Array], values: Groups, rate: float, dropout_keys: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
  """The output (B, H, Q, Dh), and the float32 sums of the exponentials (B, H, Q, 1) over all keys.

  Divided before the product with values, which then needs no float32: 1 % of a step of L/16 on v5e by its compiler.
  """
  total = functools.reduce(operator.add, (part.sum(axis=-1, keepdims=True) for part in exponentials))
  outs = []
  for part, value in zip(exponentials, values, strict=True):
    weights = dropout((part / total).astype(value.dtype), rate, dropout_keys, Place.ATTENTION_WEIGHTS)
    outs.append(jnp.einsum('bhqn,bhnd->bhqd', weights, value))
  return functools.reduce(operator.add, outs), total


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
  both, _ = sums(weights, tuple(values_and_ones))
  return both[..., :-1], both[..., -1:]


def grouped(x: jax.Array) -> Groups:
  """(B, N, ...) in groups: 257 tokens become a group of 256 and one of 1.

  A TPU pads an array's last side to a multiple of 128, so 257 tokens (16 x 16 patches and a class token)
  would take as long as 384. In groups a block of H/14 takes 0.87 of the time, by the compiler's estimate for
  a TPU v3.
  """
  tokens = x.shape[1]
  whole = tokens // _LANES * _LANES
  return (x[:, :whole], x[:, whole:]) if whole and 0 < tokens - whole <= _FEW else (x,)


def keeps_logits(
  tokens: int, dtype: jnp.dtype | type, sharding: NamedSharding | None, *, unrolled: bool
) -> bool:
  """Whether the backward pass of XLA's attention had better read the rounded input of its softmax.

  In bfloat16 reading it is faster on a TPU than computing it again, where blocks are unrolled and tokens do not
  fill its rows. By the compiler's estimates for a step with 4,096 images on v3-128:

  |                           | read     | again    | why                                   |
  |---------------------------|----------|----------|---------------------------------------|
  | L/16, 4 blocks unrolled   | 56.6 ms  | 61.7 ms  | no float32 logits change their layout |
  | L/16, 24 blocks as a loop | 371 ms   | 343 ms   | a loop copies what each block saves   |
  | H/14, 2 blocks unrolled   | 57.4 ms  | 54.7 ms  | 257 tokens: `grouped` saves more      |

  The devices are those of `sharding`; with None nobody knows them.
  """
  if not unrolled or sharding is None or dtype != jnp.bfloat16 or tokens > _MOST_KEPT:
    return False
  return device_of(sharding).platform == 'tpu' and tokens % _LANES > _FEW


def logits_of(query: jax.Array, key: jax.Array, bias: jax.Array | None = None) -> jax.Array:
  """(B, H, Q, Dh), (B, H, N, Dh) -> float32 (B, H, Q, N)."""
  logits = jnp.einsum('bhqd,bhnd->bhqn', query, key, preferred_element_type=jnp.float32)
  return logits if bias is None else logits + bias


def scaled(query: jax.Array) -> jax.Array:
  """Queries (..., Dh) whose products with keys are the logits: divided by sqrt(Dh)."""
  return query / math.sqrt(query.shape[-1])


def heads_first(x: jax.Array) -> jax.Array:
  """(B, N, H, Dh) -> (B, H, N, Dh).

  With heads before tokens the products are plain batched ones, which on a CPU take 0.8 of the time of einsum
  in the order (B, N, H, Dh) and 0.6 of jax.nn.dot_product_attention's.
  """
  return x.transpose(0, 2, 1, 3)


_heads_last = heads_first  # the same transposition takes (B, H, N, Dh) back
