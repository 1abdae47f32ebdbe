"""Multi-head attention (paper, appendix A)."""

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models import fused_attention
from vit_jax.models.base import Grid
from vit_jax.models.layers import LayerNorm
from vit_jax.models.position import RelativeBias, RelativeKeys, Rotary
from vit_jax.models.softmax_attention import (
  Groups,
  attend_and_keep,
  attend_by_weights,
  attend_in_groups,
  attention_weights,
  grouped,
  keeps_weights,
  scaled,
  separates_groups,
)
from vit_jax.models.vit_config import AttentionKernel


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
      implementation: config.model.attention; 'xla' is taken where x and memory differ in length.
      position: what attention knows of positions, where tokens attend to themselves.
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
    to_themselves = x.shape[1] == memory.shape[1]
    kernel = fused_attention.choose(
      self.implementation if to_themselves else 'xla',
      queries,
      dropout=self.dropout,
      biased=biased,
      sharding=self.sharding,
    )
    dropping = self.dropout > 0 and dropout_keys is not None
    keeps = kernel == 'xla' and keeps_weights(
      memory.shape[1], queries.dtype, self.sharding, unrolled=self.unrolled
    )
    if kernel == 'xla' and self.position is None and not dropping and not keeps:
      outs = self.of_groups(grouped(x), grouped(memory))
      return jnp.concatenate(outs, axis=1)
    query, key, bias = self._queries_and_keys(x, memory, grid)
    value = self.value(memory)
    if biased or dropping:
      out = attend_by_weights(
        query, key, value, bias=bias, rate=self.dropout, dropout_keys=dropout_keys, rounded=keeps
      )
    elif keeps:
      out = attend_and_keep(query, key, value)
    elif kernel == 'xla':
      out = jnp.concatenate(attend_in_groups(grouped(query), grouped(key), grouped(value)), axis=1)
    else:
      assert self.sharding is not None, 'without a mesh of devices no kernel is chosen'
      out = fused_attention.attend(kernel, query, key, value, self.sharding)
    return self.out(out)

  def of_groups(self, x: Groups, memory: Groups) -> Groups:
    """Attention of tokens in the groups of `grouped`, each an array (B, Qi, D) or (B, Ni, D), with projections apart.

    Returns:
      (B, Qi, D) each. Positions and dropout are left out.
    """
    queries = tuple(self._query(group) for group in x)
    keys = tuple(self._key(group) for group in memory)
    values = tuple(self.value(group) for group in memory)
    return tuple(self.out(out) for out in attend_in_groups(queries, keys, values))

  def takes_groups(self, tokens: int) -> bool:
    """Whether blocks had better give `of_groups` so many tokens (N), none dropped, than `__call__`."""
    head = self.query.out_features
    queries = jax.ShapeDtypeStruct((1, tokens, *head), self.query.dtype)
    kernel = fused_attention.choose(self.implementation, queries, sharding=self.sharding)
    plain = kernel == 'xla' and self.position is None
    return plain and separates_groups(tokens, self.sharding, unrolled=self.unrolled)

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
    return query, key, self.position.logits(scaled(query), grid)

  def weights(self, x: jax.Array, memory: jax.Array, grid: Grid | None = None) -> jax.Array:
    """How much each token of x (B, Q, D) attends to those of memory (B, N, D): float32 (B, H, Q, N)."""
    return attention_weights(*self._queries_and_keys(x, memory, grid))
