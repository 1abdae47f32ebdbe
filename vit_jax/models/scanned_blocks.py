"""Blocks of the same shapes, stacked along a leading axis and applied one after the other by a scan."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.foundation import cpus, pytrees
from vit_jax.models.base import ModelConfig, Remat, loaded_on_processors, on_processors
from vit_jax.models.dropout import fold_in

P = ParamSpec('P')
R = TypeVar('R')

# Numbers of tokens (B, N, D) that a processor's cache holds together with what a block makes of them.
_AT_ONCE = 640_000
_PRODUCT = 'product with a kernel'
# A policy of jax.checkpoint: only the results that `product_with_kernel` names are saved.
named_products = jax.checkpoint_policies.save_only_these_names(_PRODUCT)


def stack(depth: int, make: Callable[[nnx.Rngs], nnx.Module], rngs: nnx.Rngs) -> nnx.Module:
  """`depth` modules as one, whose parameters have a leading axis of that size."""
  return nnx.split_rngs(splits=depth)(nnx.vmap(make, in_axes=0, out_axes=0))(rngs)


@dataclasses.dataclass(frozen=True)
class Loop:
  """How stacked blocks are applied."""

  depth: int
  drop_path: float  # rate of the last block; of the others in proportion to their depth, of the first 0
  remat: Remat | None  # config.model.remat
  unroll: bool  # compile the blocks one after the other instead of as a loop
  sharding: NamedSharding | None  # of the tokens, kept up after every block

  @classmethod
  def of(cls, config: ModelConfig, drop_path: float, sharding: NamedSharding | None) -> 'Loop':
    """That of a model's options."""
    return cls(config.num_layers, drop_path, config.remat, bool(config.unroll), sharding)


def apply(
  blocks: nnx.Module, z: jax.Array, keys: jax.Array | None, loop: Loop, *shared: Any, read: int | None = None
) -> jax.Array:
  """The output of the last of the stacked blocks, (B, N, D), or (B, read, D).

  Args:
    blocks: of `stack`; each is called with z, its drop path rate, its keys and `shared`. Where they
      have an attribute `frozen`, no gradient is computed of the first so many and of what is before them.
    z: (B, N, D).
    keys: (B,) typed PRNG keys; block i gets them with i folded in. None: nothing is dropped.
    loop: how.
    shared: further arguments of every block.
    read: of the last block's output only the first so many tokens are needed. Unrolled, and in training on processors,
      that block is called with `read` too, and stands behind the loop; in other loops all blocks are alike.
  """

  def run(z: jax.Array) -> jax.Array:
    body, inputs = _body(blocks, z, keys, loop, shared)
    if frozen := getattr(blocks, 'frozen', 0):
      first, inputs = (
        jax.tree.map(operator.itemgetter(which), inputs) for which in (slice(frozen), slice(frozen, None))
      )
      z = jax.lax.stop_gradient(_scan(body, z, first, loop)[0])
    if read is None or not (loop.unroll or on_processors(loop.sharding)):
      return _scan(body, z, inputs, loop)[0]
    before, last = (jax.tree.map(operator.itemgetter(which), inputs) for which in (slice(-1), -1))
    z, _ = _scan(body, z, before, loop)
    return rematerialised(functools.partial(body, read=read), loop.remat)(z, last)[0]

  return run(z) if keys is not None else _in_parts(run, z, loop, shared)


def features(blocks: nnx.Module, z: jax.Array, layers: int | None, loop: Loop, *shared: Any) -> jax.Array:
  """(B, N, D): the output of the first `layers` blocks, or of all (None); nothing is dropped."""
  return features_of_several(blocks, z, (layers,), loop, *shared)[0]


def features_of_several(
  blocks: nnx.Module, z: jax.Array, layers: Sequence[int | None], loop: Loop, *shared: Any
) -> list[jax.Array]:
  """`features` of each of `layers`; every block is applied once, and no other block's output is kept."""

  def run(z: jax.Array) -> list[jax.Array]:
    body, inputs = _body(blocks, z, None, loop, shared)
    wanted, outputs, first = [loop.depth if number is None else number for number in layers], {}, 0
    for last in sorted(set(wanted)):
      z, _ = _scan(body, z, jax.tree.map(operator.itemgetter(slice(first, last)), inputs), loop)
      outputs[last], first = z, last
    return [outputs[number] for number in wanted]

  return _in_parts(run, z, loop, shared)


def _in_parts(run: Callable[[jax.Array], Any], z: jax.Array, loop: Loop, shared: tuple[Any, ...]) -> Any:
  """What `run` gives of z (B, N, D), arrays that begin with B; of a loaded model on CPUs of a few examples in turn.

  What a block writes of so few stays in the cache: by one core of an AMD EPYC 32 images take S/16 0.79 of the time of
  all at once, Ti/16 0.86, and 16 take B/16 0.91. Arguments of blocks that are arrays are of all examples: then at once.
  """
  examples, tokens, width = z.shape
  symbolic = not isinstance(examples, int)  # of an export for batches of any size
  arrays = any(isinstance(x, jax.Array) for x in jax.tree.leaves(shared))
  if symbolic or arrays or not loaded_on_processors(loop.sharding):
    return run(z)
  most = max(1, _AT_ONCE * cpus.usable() // (tokens * width))
  part = max(part for part in range(1, min(most, examples) + 1) if examples % part == 0)
  if part == examples or 4 * part < most:
    return run(z)

  parts = jax.lax.map(run, z.reshape(-1, part, tokens, width))
  return jax.tree.map(lambda y: y.reshape(-1, *y.shape[2:]), parts)


def observe(
  blocks: nnx.Module, z: jax.Array, look: Callable[[Any, jax.Array], jax.Array], loop: Loop, *shared: Any
) -> tuple[jax.Array, jax.Array]:
  """The output of the last block, and what `look` gives of each block and its input, stacked; nothing is dropped."""
  body, inputs = _body(blocks, z, None, loop, shared, look)
  return _scan(body, z, inputs, loop)


def hidden_states(blocks: nnx.Module, z: jax.Array, loop: Loop, *shared: Any) -> jax.Array:
  """(L + 1, B, N, D): the tokens before the first block and after each; nothing is dropped."""
  last, inputs = observe(blocks, z, lambda block, z: z, loop, *shared)
  return jnp.concatenate([inputs, last[None]])


def _body(
  blocks: nnx.Module,
  z: jax.Array,
  keys: jax.Array | None,
  loop: Loop,
  shared: tuple[Any, ...],
  look: Callable[[Any, jax.Array], jax.Array | None] = lambda block, z: None,
) -> tuple[Callable[..., Any], Any]:
  """A block as a function (z, one of the inputs) -> (z, what is seen), and the inputs of all blocks, stacked."""
  graphdef, params = nnx.split(blocks)
  whole = _whole_kernels_kept(loop.sharding) if loop.unroll and loop.remat in (None, 'none') else None
  dtype = z.dtype

  def body(z: jax.Array, inputs: Any, **options: int) -> tuple[jax.Array, jax.Array | None]:
    block, layer, rate = inputs
    layer_keys = None if keys is None else fold_in(keys, layer)
    if whole is not None:
      block = pytrees.map_with_path(functools.partial(_gather_kernel, dtype=dtype, whole=whole), block)
    block: Any = nnx.merge(graphdef, block)
    seen = look(block, z)
    return constrain(block(z, rate, layer_keys, *shared, **options), loop.sharding), seen

  rates = np.linspace(loop.drop_path, 0, loop.depth, dtype=np.float32)[::-1]
  return body, (params, np.arange(loop.depth), rates)


def _scan(body: Callable[..., Any], z: jax.Array, inputs: Any, loop: Loop) -> Any:
  body = rematerialised(body, loop.remat, loop=not loop.unroll)
  return jax.lax.scan(body, z, inputs, unroll=loop.depth if loop.unroll else 1)


def _whole_kernels_kept(sharding: NamedSharding | None) -> NamedSharding | None:
  """The sharding of kernels that unrolled blocks gather once, for both passes; None: they do not.

  They do where `fsdp` alone splits the kernels. Left to itself the partitioner gathers each kernel again for the
  backward pass, since a scan, also an unrolled one, stacks what it saves: by the TPU compiler's estimates a step of
  L/16 takes 304.7 ms and 5.55 GiB instead of 308.6 and 6.09 on v3-128, and 105.9 ms instead of 112.2 on v6e:8x8.
  """
  if sharding is None or sharding.mesh.shape.get('fsdp', 1) == 1 or sharding.mesh.shape.get('tensor', 1) > 1:
    return None
  return NamedSharding(sharding.mesh, PartitionSpec())


def _gather_kernel(path: str, leaf: jax.Array, *, dtype: jnp.dtype, whole: NamedSharding) -> jax.Array:
  """A block's parameter; a kernel in the dtype in which all blocks use theirs, and whole on every device."""
  return _gather(leaf.astype(dtype), whole) if path.endswith('kernel/value') else leaf


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _gather(x: jax.Array, whole: NamedSharding) -> jax.Array:
  """x with that sharding. Its gradient is left to the partitioner, which sums it to parts; JAX's own would be whole."""
  return jax.lax.with_sharding_constraint(x, whole)


def _gather_forward(x: jax.Array, whole: NamedSharding) -> tuple[jax.Array, None]:
  return _gather(x, whole), None


def _gather_backward(whole: NamedSharding, saved: None, grad: jax.Array) -> tuple[jax.Array]:
  return (grad,)


_gather.defvjp(_gather_forward, _gather_backward)


def constrain(z: jax.Array, sharding: NamedSharding | None) -> jax.Array:
  """Keeps the residual stream split as it should be; left alone, the partitioner chooses badly."""
  return z if sharding is None else jax.lax.with_sharding_constraint(z, sharding)


def constrain_examples(x: jax.Array, sharding: NamedSharding | None) -> jax.Array:
  """Keeps the examples of x (B, ...) split as those of the residual stream are.

  For hidden units and heads: where `fsdp` splits the kernel that they meet next by these, the partitioner may else
  gather the examples instead of the kernel. How the other dimensions are split is left to it.
  """
  if sharding is None:
    return x
  spec = PartitionSpec(sharding.spec[0], *(PartitionSpec.UNCONSTRAINED,) * (x.ndim - 1))
  return jax.lax.with_sharding_constraint(x, NamedSharding(sharding.mesh, spec))


def blocks_before(layer: int | None, depth: int) -> int | None:
  """The blocks before what `Model.features` calls `layer`; None: all, and the last norm. Raises ValueError as there."""
  if layer is None or layer == -1:
    return None
  if not 0 <= layer < depth:
    raise ValueError(f'layer is {layer}; choose a block from 0 to {depth - 1}, or None for the final tokens.')
  return layer + 1


def rematerialised(function: Callable[P, R], remat: Remat | None, *, loop: bool = False) -> Callable[P, R]:
  """The function, a block, of which the backward pass computes again what `remat` (config.model.remat) says.

  Only in the body of a `loop` XLA does not merge what is computed again with what was computed first; elsewhere it has
  to be told.
  """
  if remat in (None, 'none'):
    return function
  policy = _is_product_with_kernel if remat == 'dots' else None
  return jax.checkpoint(function, prevent_cse=not loop, policy=policy)


def product_with_kernel(y: jax.Array) -> jax.Array:
  """y as it is, which 'dots' saves: for products that no primitive tells apart from other arithmetic."""
  return checkpoint_name(y, _PRODUCT)


def _is_product_with_kernel(primitive: Any, *args: Any, **params: Any) -> bool:
  """Whether an operation is a convolution or a product with a kernel, whose result is saved.

  Products of queries and keys have batch dimensions (example, head) and are none of these: computing them
  again is cheap, and their B*H*N*N numbers are the largest of a block.
  """
  if primitive is jax.lax.conv_general_dilated_p or named_products(primitive, *args, **params):
    return True
  return jax.checkpoint_policies.dots_with_no_batch_dims_saveable(primitive, *args, **params)
