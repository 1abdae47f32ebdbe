"""Blocks of the same shapes, stacked along a leading axis and applied one after the other by a scan."""

from collections.abc import Callable

import jax
import numpy as np
from flax import nnx

from vit_jax import config
from vit_jax.models.dropout import fold_in


def stack(depth: int, make, rngs: nnx.Rngs) -> nnx.Module:
  """`depth` modules as one, whose parameters have a leading axis of that size."""
  return nnx.split_rngs(splits=depth)(nnx.vmap(make, in_axes=0, out_axes=0))(rngs)


def apply(
  blocks: nnx.Module,
  z: jax.Array,
  keys: jax.Array | None,
  *,
  model: config.Model,
  depth: int,
  shared: tuple = (),
  layers: int | None = None,
  sharding: jax.sharding.Sharding | None = None,
  observe: Callable[[nnx.Module, jax.Array], jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array | None]:
  """What comes out of the last of the stacked blocks, and what was observed in each.

  Args:
    blocks: of `stack`; each is called with z, the probability of skipping a branch, its keys and `shared`.
    z: (B, N, D).
    keys: (B,) typed PRNG keys, of which block i gets those with i folded in; or None.
    model: how the blocks are computed, and the stochastic depth: the last block is skipped with that
      probability, the first never.
    depth: of the stack.
    shared: what all blocks are called with besides.
    layers: how many of the blocks to apply; None: all.
    sharding: of z, kept up after every block.
    observe: called with each block and what goes into it.

  Returns:
    (B, N, D), and what `observe` gave, stacked; None without it.
  """
  graphdef, params = nnx.split(blocks)

  def body(z, inputs):
    block, layer, skip_rate = inputs
    layer_keys = None if keys is None else fold_in(keys, layer)
    block = nnx.merge(graphdef, block)
    observed = None if observe is None else observe(block, z)
    return constrain(block(z, skip_rate, layer_keys, *shared), sharding), observed

  skip_rates = np.linspace(model.stochastic_depth, 0, depth, dtype=np.float32)[::-1]
  inputs = params, np.arange(depth), skip_rates
  if layers is not None:
    inputs = jax.tree.map(lambda leaf: leaf[:layers], inputs)
  body = rematerialised(body, model, loop=not model.unroll)
  return jax.lax.scan(body, z, inputs, unroll=depth if model.unroll else 1)


def constrain(z: jax.Array, sharding: jax.sharding.Sharding | None) -> jax.Array:
  """Keeps the residual stream split as it should be; left alone, the partitioner chooses badly."""
  return z if sharding is None else jax.lax.with_sharding_constraint(z, sharding)


def count(layer: int | None, depth: int) -> int | None:
  """How many blocks lie before what `features` calls `layer`; None: all, and the last norm.

  Raises:
    ValueError: there is no such block.
  """
  if layer is None or layer == -1:
    return None
  if not 0 <= layer < depth:
    raise ValueError(f'layer is {layer}; choose a block from 0 to {depth - 1}, or None for the final tokens.')
  return layer + 1


def rematerialised(function, model: config.Model, *, loop: bool = False):
  """The function, of which the backward pass computes again what the config's `remat` says.

  Args:
    function: a block.
    model: the config.
    loop: whether the function is the body of a loop. Only a loop keeps XLA from merging what is
      computed again with what was computed first; elsewhere it has to be told.
  """
  match model.remat:
    case 'none':
      return function
    case 'block':
      return jax.checkpoint(function, prevent_cse=not loop)
    case 'dots':
      return jax.checkpoint(function, prevent_cse=not loop, policy=_is_product_with_kernel)


def _is_product_with_kernel(primitive, *args, **params) -> bool:
  """Products of attention are none: they have batch dimensions (example, head). Computed again, they are
  cheap, and their B*H*N*N numbers are the largest of a block."""
  if primitive is jax.lax.conv_general_dilated_p:
    return True
  return jax.checkpoint_policies.dots_with_no_batch_dims_saveable(primitive, *args, **params)
