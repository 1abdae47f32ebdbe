"""Attention by kernels that never write its N x N weights to memory: cuDNN's on GPUs, our own and splash on TPUs.

The compiler cannot split a kernel over devices, so each device runs it on its own part (`jax.shard_map`): its
examples, and its heads where the mesh splits those.
"""

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.foundation.errors import UserError
from vit_jax.models.base import device_of
from vit_jax.models.parts import short_attention

if TYPE_CHECKING:
  from vit_jax.models.vit_config import ViTConfig

_LANES = 128  # numbers in a row of a TPU, of which splash's blocks are multiples
_LARGEST_BLOCK = 1024  # tokens
# From so many tokens on splash is faster than XLA (benchmarks/attention.py).
_SPLASH_TOKENS = 512


def choose(
  asked: str,
  query: jax.Array | jax.ShapeDtypeStruct,
  *,
  dropout: float = 0.0,
  biased: bool = False,
  sharding: NamedSharding | None = None,
) -> str:
  """Which implementation computes attention: 'xla', 'cudnn', 'splash' or 'short' (short_attention.py).

  Args:
    asked: config.model.attention; only for 'auto' there is anything to choose.
    query: (B, N, H, Dh).
    dropout, biased: of the attention weights, and whether something is added to the logits; kernels have neither.
    sharding: of the residual stream; its devices decide, which in a plan are not those of this process. None
      (a model that was loaded for the user's own program): nobody knows how the program will be split.
  """
  if asked != 'auto':
    return asked
  _, tokens, heads, head_size = query.shape
  if sharding is None or dropout or biased or heads % _head_parts(sharding) or query.dtype != jnp.bfloat16:
    return 'xla'
  device, local_heads = device_of(sharding), heads // _head_parts(sharding)
  if device.platform == 'tpu' and device.device_kind != 'TPU v2':  # whose fast memory holds less
    wide = short_attention.is_wide(device.device_kind)
    if short_attention.heads_at_once(tokens, local_heads, head_size, wide=wide):
      return 'short'
  kernel = _kernel_of(sharding)
  is_faster = tokens >= _SPLASH_TOKENS if kernel == 'splash' else _cudnn_has(head_size)
  return kernel if kernel and is_faster else 'xla'


def check(asked: str, heads: int, head_size: int, sharding: NamedSharding | None) -> None:
  """Raises UserError where config.model.attention asks for a kernel that devices or heads (H, Dh) do not go with."""
  if asked in ('auto', 'xla'):
    return
  name, remedy = f'config.model.attention is {asked!r}', "choose 'auto' or 'xla'"
  if sharding is None:
    raise UserError(f'{name}, but the model is built without a mesh of devices; {remedy}.')
  if _kernel_of(sharding) != asked:
    needed = {'splash': 'TPUs, v4 or newer', 'cudnn': 'NVIDIA GPUs, Ampere or newer'}[asked]
    raise UserError(
      f'{name}, which is for {needed}, and this is {device_of(sharding).device_kind}; {remedy}.'
    )
  if asked == 'cudnn' and not _cudnn_has(head_size):
    raise UserError(f'{name}, whose heads are multiples of 8 up to 128, and not {head_size}; {remedy}.')
  parts = _head_parts(sharding)
  if heads % parts:
    raise UserError(f'{name}, and {heads} heads do not divide over config.mesh.tensor {parts}; {remedy}.')


def check_options(config: 'ViTConfig', path: str) -> None:
  """Raises UserError where an attention kernel is asked for what it does not have."""
  if config.attention in ('auto', 'xla'):
    return
  name = f'{path}.attention is {config.attention!r}'
  if config.attention_dropout:
    raise UserError(
      f'{name}, which has no dropout of attention weights, and {path}.attention_dropout is '
      f"{config.attention_dropout}; choose 'auto' or 'xla', or no such dropout."
    )
  if config.positions.adds_to_logits:
    raise UserError(
      f'{name}, which cannot add to the logits of attention what {path}.position '
      f"{config.position!r} does; choose 'auto' or 'xla'."
    )
  if config.attention == 'cudnn' and config.dtype != 'bfloat16':
    raise UserError(
      f"{name}, which computes in bfloat16, and {path}.dtype is {config.dtype!r}; choose 'bfloat16', or "
      f"attention 'auto' or 'xla'."
    )


def attend(
  kernel: str,
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  sharding: NamedSharding,
  *,
  interpret: bool = False,
) -> jax.Array:
  """softmax(q k^T / sqrt(Dh)) v (equations 6 and 7) of tokens that attend to each other, all (B, N, H, Dh).

  Args:
    kernel: 'cudnn', 'splash' or 'short'.
    sharding: of the residual stream (B, N, D): which axes of the mesh split B. The other ones split H.
    interpret: run a TPU's kernel as ordinary operations, on any platform: for tests.
  """
  if kernel == 'short':
    rows = tuple(x.reshape(*x.shape[:2], -1) for x in (query, key, value))
    biases = jnp.zeros((3, rows[0].shape[-1]), query.dtype)
    return attend_rows(rows, biases, (), query.shape[-1], sharding, interpret=interpret).reshape(query.shape)
  spec = P(sharding.spec[0], None, _head_axes(sharding))

  def local(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    if kernel == 'cudnn':
      return _cudnn(query, key, value)
    return _splash(query, key, value, interpret)

  # check_vma: kernels do not say over which axes of the mesh their results differ.
  sharded = jax.shard_map(local, mesh=sharding.mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)
  return sharded(query, key, value)


def attend_rows(
  products: short_attention.Rows,
  biases: jax.Array,
  turns: short_attention.Turns,
  head_size: int,
  sharding: NamedSharding,
  *,
  interpret: bool = False,
) -> jax.Array:
  """`short_attention.attend`, on the devices of the residual stream's sharding as in `attend`."""
  wide = short_attention.is_wide(device_of(sharding).device_kind)
  kernel = short_attention.Kernel(head_size, wide, sharding, _head_axes(sharding), interpret)
  return short_attention.attend(products, biases, turns, kernel)


def _cudnn(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
  """The GPU kernel on (B, N, H, Dh) of one device; JAX refuses an odd N where there are gradients."""
  tokens = query.shape[1]
  if tokens % 2 == 0:
    return jax.nn.dot_product_attention(query, key, value, implementation='cudnn')
  query, key, value = (jnp.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0))) for x in (query, key, value))
  lengths = jnp.full(len(key), tokens, jnp.int32)
  out = jax.nn.dot_product_attention(query, key, value, key_value_seq_lengths=lengths, implementation='cudnn')
  return out[:, :tokens]


def _splash(query: jax.Array, key: jax.Array, value: jax.Array, interpret: bool) -> jax.Array:
  """The TPU kernel on (B, N, H, Dh) of one device, N padded to a multiple of its blocks."""
  # Only here: importing it takes a second, and only TPUs need it.
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_mask

  tokens, heads, head_size = query.shape[1:]
  block, padded = blocks(tokens)
  mask = splash_mask.MultiHeadMask([splash_mask.FullMask((padded, padded))] * heads)
  sizes = splash.BlockSizes(
    **dict.fromkeys(('block_q', 'block_kv', 'block_kv_compute'), block),
    **dict.fromkeys(('block_q_dkv', 'block_kv_dkv', 'block_kv_dkv_compute'), block),
    **dict.fromkeys(('block_q_dq', 'block_kv_dq'), block),
  )
  kernel = splash.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=interpret)
  segments = None
  if padded > tokens:  # tokens of one segment attend to each other: all queries are of that of the real keys
    key_segments = (jnp.arange(padded) >= tokens).astype(jnp.int32)
    segments = splash.SegmentIds(jnp.zeros(padded, jnp.int32), key_segments)

  def heads_first(x: jax.Array) -> jax.Array:
    return jnp.pad(x.transpose(0, 2, 1, 3), ((0, 0), (0, 0), (0, padded - tokens), (0, 0)))

  query = query / math.sqrt(head_size)
  apply: Any = jax.vmap(kernel, in_axes=(0, 0, 0, None))  # Any: a kernel may be asked for residuals too
  out = apply(*map(heads_first, (query, key, value)), segments)
  return out[:, :, :tokens].transpose(0, 2, 1, 3)


def blocks(tokens: int) -> tuple[int, int]:
  """(tokens of a block, tokens with padding): as few blocks as may be, and as little padding."""
  number = -(-tokens // _LARGEST_BLOCK)
  block = -(-tokens // (number * _LANES)) * _LANES
  return block, number * block


def _kernel_of(sharding: NamedSharding) -> str | None:
  """What its devices have: TPUs from v4 on splash, NVIDIA GPUs from Ampere on cuDNN's."""
  device = device_of(sharding)
  if device.platform == 'tpu':  # before v4, splash cannot multiply bfloat16 matrices
    return None if device.device_kind in ('TPU v2', 'TPU v3') else 'splash'
  capability = getattr(device, 'compute_capability', '')  # '9.0'; of an AMD GPU 'gfx90a'
  if device.platform == 'gpu' and capability[:1].isdigit() and float(capability) >= 8:
    return 'cudnn'
  return None


def _cudnn_has(head_size: int) -> bool:
  return head_size % 8 == 0 and head_size <= 128


def _head_axes(sharding: NamedSharding) -> tuple[str, ...]:
  """The axes of the mesh that do not split the batch."""
  batch = sharding.spec[0]
  batch = batch if isinstance(batch, tuple) else (batch,)
  return tuple(axis for axis in sharding.mesh.axis_names if axis not in batch)


def _head_parts(sharding: NamedSharding) -> int:
  return math.prod(sharding.mesh.shape[axis] for axis in _head_axes(sharding))
