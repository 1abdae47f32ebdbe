"""Multi-head attention (paper, appendix A): the projections, and `attend`, which computes it.

`attend` chooses a kernel by the devices: softmax and products as XLA compiles them (xla_attention.py), or one that
never writes the weights of all pairs of tokens to memory (fused_attention.py). `Attention.weights` is what pictures
show.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Initializer
from jax.sharding import NamedSharding

from vit_jax.models import token_weights
from vit_jax.models.base import ShardingRules
from vit_jax.models.dense_product import Dense
from vit_jax.models.layers import XAVIER
from vit_jax.models.parts import fused_attention, short_attention, xla_attention
from vit_jax.models.parts.positions import AttentionPosition
from vit_jax.models.parts.xla_attention import heads_first, logits_of, scaled
from vit_jax.models.scanned_blocks import constrain_examples
from vit_jax.models.token_weights import Places, TokenWeights


@dataclasses.dataclass(frozen=True)
class How:
  """What decides how attention is computed, and no parameter."""

  kernel: str = 'xla'  # config.model.attention; 'xla' is taken where queries and keys differ in number
  dropout: float = 0.0  # rate of the weights' dropout
  sharding: NamedSharding | None = None  # of the tokens (B, N, D)

  def kernel_for(self, query: jax.Array | jax.ShapeDtypeStruct, *, biased: bool = False) -> str:
    """The kernel of tokens that attend to each other, with queries (B, N, H, Dh) and perhaps a bias of the logits."""
    options = {'dropout': self.dropout, 'biased': biased, 'sharding': self.sharding}
    return fused_attention.choose(self.kernel, query, **options)


class Attention(nnx.Module):
  """Multi-head attention (paper, appendix A, equations 5 to 8) of some tokens to others, or to themselves."""

  sharding_rules: ClassVar[ShardingRules] = (
    (r'(query|key|value)/kernel', (None, 'fsdp', None), ('fsdp', 'tensor', None)),  # (D, H, Dh)
    (r'(query|key|value)/bias', ('tensor', None)),  # (H, Dh)
    (r'out/kernel', ('fsdp', None, None), ('tensor', None, 'fsdp')),  # (H, Dh, D)
    (r'out/bias', ()),
  )

  def __init__(
    self,
    width: int,
    heads: int,
    *,
    dtype: jnp.dtype | type = jnp.float32,
    position: AttentionPosition | None = None,
    head_norm: Callable[[int], nnx.Module] | None = None,
    sub_norm: Callable[[int], nnx.Module] | None = None,
    kernel_init: Initializer = XAVIER,
    how: How = How(),
    rngs: nnx.Rngs,
  ):
    """
    Args:
      width, heads: D, and H, which divides it.
      dtype: of the computation.
      position: what attention knows of positions, where tokens attend to themselves.
      head_norm: makes the norm of each head's queries, and of its keys (arXiv 2302.05442, section 2.1); or None.
      sub_norm: makes the norm of all heads' outputs before the last layer; or None.
      kernel_init: of the flattened matrices, (D, H*Dh) and (H*Dh, D).
      how: the kernel, and what it depends on.
    """
    options: dict[str, Any] = {
      'kernel_init': kernel_init,
      'dtype': dtype,
      'sharding': how.sharding,
      'rngs': rngs,
    }
    head = (heads, width // heads)
    self.query = Dense((width,), head, **options)
    self.key = Dense((width,), head, **options)
    self.value = Dense((width,), head, **options)
    self.out = Dense(head, (width,), **options)
    self.query_norm: Any = head_norm and head_norm(head[1])
    self.key_norm: Any = head_norm and head_norm(head[1])
    self.sub_norm: Any = sub_norm and sub_norm(width)
    self.position = position
    self.how = how

  def __call__(
    self,
    x: jax.Array,
    memory: jax.Array,
    *,
    dropout_keys: jax.Array | None = None,
    grid: Places | None = None,
    moves: jax.Array | None = None,
  ) -> jax.Array:
    """(B, Q, D), (B, N, D) -> (B, Q, D).

    Args:
      x: the tokens that attend, whose queries are taken.
      memory: the tokens that are attended to, whose keys and values are taken.
      dropout_keys: (B,) typed PRNG keys of dropout, or None.
      grid: rows and columns of the patches, where attention knows of positions; or the weights of `memory`.
      moves: of these, of each example (`Position.moves`); None: they stay.
    """
    if self._has_rows(x, memory, grid):
      return self._attend_rows(x, memory, grid, moves)
    query, key, bias = self._queries_and_keys(x, memory, grid, moves)
    return self._out(attend(query, key, self.value(memory), bias, dropout_keys, how=self.how))

  def _has_rows(self, x: jax.Array, memory: jax.Array, grid: Places | None) -> bool:
    """Whether a kernel takes the projections as matrices, with nothing between that it does not do itself."""
    if x.shape != memory.shape or self.query_norm is not None or self.key_norm is not None:
      return False
    if self.position is not None and not self.position.turns_alike:
      return False
    return self.how.kernel_for(self._heads_of(x), biased=isinstance(grid, TokenWeights)) == 'short'

  def _attend_rows(
    self, x: jax.Array, memory: jax.Array, grid: Places | None, moves: jax.Array | None
  ) -> jax.Array:
    """(B, N, D), (B, N, D) -> (B, N, D), heads being beside each other all the way."""
    assert self.how.sharding is not None, 'without a mesh of devices no kernel is chosen'
    products = (_row_product(self.query, x), _row_product(self.key, memory), _row_product(self.value, memory))
    biases = jnp.stack([_bias(layer) for layer in (self.query, self.key, self.value)])
    turns: short_attention.Turns = ()
    if self.position is not None:
      assert isinstance(grid, tuple), 'attention that knows of positions is given the grid of its patches'
      turns = self.position.turns(x.shape[1], grid, moves)
    head_size = self.query.out_features[-1]
    heads = fused_attention.attend_rows(products, biases, turns, head_size, self.how.sharding)
    if self.sub_norm is not None:
      heads = self.sub_norm(heads)
    return _row_product(self.out, heads) + _bias(self.out)

  def _heads_of(self, x: jax.Array) -> jax.ShapeDtypeStruct:
    """What queries (B, N, H, Dh) of the tokens are."""
    return jax.ShapeDtypeStruct((*x.shape[:2], *self.query.out_features), self.query.dtype)

  def _query(self, x: jax.Array) -> jax.Array:
    return self.query(x) if self.query_norm is None else self.query_norm(self.query(x))

  def _key(self, memory: jax.Array) -> jax.Array:
    return self.key(memory) if self.key_norm is None else self.key_norm(self.key(memory))

  def _out(self, heads: jax.Array) -> jax.Array:
    if self.sub_norm is not None:
      heads = self.sub_norm(heads.reshape(*heads.shape[:2], -1)).reshape(heads.shape)
    # On tpu7x:4x4x4 a step of L/16 else takes 67.5 ms by the compiler's estimate, and so 30.8.
    return self.out(constrain_examples(heads, self.how.sharding))

  def weights(self, x: jax.Array, memory: jax.Array, grid: Places | None = None) -> jax.Array:
    """How much each token of x (B, Q, D) attends to those of memory (B, N, D): float32 (B, H, Q, N)."""
    query, key, bias = self._queries_and_keys(x, memory, grid)
    return jax.nn.softmax(logits_of(heads_first(scaled(query)), heads_first(key), bias))

  def _queries_and_keys(
    self, x: jax.Array, memory: jax.Array, grid: Places | None, moves: jax.Array | None = None
  ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Queries (B, Q, H, Dh), keys (B, N, H, Dh) and the bias of their logits (or None), positions applied."""
    query, key = self._query(x), self._key(memory)
    if self.position is None:
      return query, key, token_weights.bias(grid)
    assert isinstance(grid, tuple), 'attention that knows of positions is given the grid of its patches'
    query, key = (self.position.rotate(heads, grid, moves) for heads in (query, key))
    return query, key, self.position.logits(scaled(query), grid)


def _row_product(layer: Dense, x: jax.Array) -> jax.Array:
  """(B, N, inputs) -> (B, N, outputs): a layer's product without its bias, heads and their numbers being one axis."""
  x, kernel = (array.astype(layer.dtype) for array in (x, layer.kernel[...]))
  return layer.dot_general(x, kernel.reshape(x.shape[-1], -1), (((2,), (0,)), ((), ())))


def _bias(layer: Dense) -> jax.Array:
  """(outputs,)."""
  assert layer.bias is not None, 'the layers of attention have biases'
  return layer.bias[...].astype(layer.dtype).reshape(-1)


def attend(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  bias: jax.Array | None = None,
  dropout_keys: jax.Array | None = None,
  *,
  how: How,
) -> jax.Array:
  """dropout(softmax(q k^T / sqrt(Dh) + bias)) v (equations 6 and 7), the softmax in float32.

  Args:
    query: (B, Q, H, Dh).
    key, value: (B, N, H, Dh).
    bias: float32 (B or 1, H or 1, Q or 1, N), or None.
    dropout_keys: (B,) typed PRNG keys of the weights' dropout; None: nothing is dropped.
    how: the kernel, and what it depends on.

  Returns:
    (B, Q, H, Dh), of the dtype of `value`.
  """
  kernel = 'xla' if query.shape != key.shape else how.kernel_for(query, biased=bias is not None)
  if kernel != 'xla':
    assert how.sharding is not None, 'without a mesh of devices no kernel is chosen'
    return fused_attention.attend(kernel, query, key, value, how.sharding)
  return xla_attention.attend(query, key, value, bias, dropout_keys, how.dropout)
