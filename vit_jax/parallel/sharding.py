"""Where parameters and optimizer state lie on the mesh, by the sharding rules of a model.

A model's rules (`ModelConfig.sharding_rules`) say which axis of the mesh splits which dimension of which
parameter, by its path. `fsdp` splits one large dimension, so that each device holds its part of the
parameters and of the optimizer's state; `tensor` splits every layer.

Where there is a choice, `fsdp` splits a dimension that is not the last in memory: the TPU compiler then sums a
gradient by a reduce-scatter. One that is cut along its last dimension it sums whole, by an all-reduce of twice the
traffic, and cuts it afterwards.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.foundation import pytrees

# As `models.base.ShardingRules`. A rule's way to split is the first by which the most axes split a dimension.
Rules = Sequence[tuple[str, *tuple[tuple[str | None, ...], ...]]]


def param_shardings(shapes: Any, rules: Rules, mesh: Mesh, min_shard_size: int) -> Any:
  """The sharding of every parameter: a tree as `shapes`, whose paths the rules match.

  A dimension is split only where its rule says so and the axis divides it; a parameter with fewer than
  `min_shard_size` elements is copied to every device, because fetching it costs more than it saves. Raises ValueError
  where no rule matches a path, or a rule has more dimensions than the parameter.
  """

  def sharding(path: str, leaf: Any) -> NamedSharding:
    return NamedSharding(mesh, _spec(path, leaf.shape, rules, mesh, min_shard_size))

  return pytrees.map_with_path(sharding, shapes)


def state_shardings(state: Any, params: Any, rules: Rules, mesh: Mesh, min_shard_size: int) -> Any:
  """The sharding of every leaf of a training state: moments and EMA lie where their parameter lies.

  A leaf belongs to a parameter if its path ends in the parameter's path and the shapes are equal.
  That holds for every optax transformation whose state is shaped like the parameters, however it is
  chained, masked or partitioned, and needs no list of them. All other leaves (counters, factored
  moments) are copied.
  """
  shardings = pytrees.flatten(param_shardings(params, rules, mesh, min_shard_size))
  by_path = {path: (leaf.shape, shardings[path]) for path, leaf in pytrees.flatten(params).items()}
  copied = NamedSharding(mesh, P())

  def sharding(path: str, leaf: Any) -> NamedSharding:
    keys = path.split('/')
    # Longest ending first: 'blocks/norm/scale' must not be taken for 'norm/scale'.
    for start in range(len(keys)):
      shape, found = by_path.get('/'.join(keys[start:]), (None, copied))
      if shape == leaf.shape:
        return found
    return copied

  return pytrees.map_with_path(sharding, state)


def with_shardings(shapes: Any, shardings: Any) -> Any:
  """A tree of ShapeDtypeStructs with the shardings of the same tree of NamedShardings."""
  return jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, shardings
  )


def place(array: Any, like: jax.Array | jax.ShapeDtypeStruct) -> jax.Array:
  """An array of the host, which every process has as a whole, with the dtype and the sharding of another."""
  host = np.asarray(array, like.dtype)
  return jax.make_array_from_callback(like.shape, like.sharding, host.__getitem__)


def place_tree(arrays: dict[str, np.ndarray], shapes: dict[str, Any]) -> dict[str, Any]:
  """The arrays (path -> array), which are given up one by one, as a tree with the shardings of `shapes`."""
  placed = {path: place(arrays.pop(path), leaf) for path, leaf in pytrees.flatten(shapes).items()}
  return pytrees.unflatten(placed)


def device_bytes(tree: Any) -> int:
  """Bytes on one device of a tree of ShapeDtypeStructs with shardings."""
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)
  )


def _spec(path: str, shape: tuple[int, ...], rules: Rules, mesh: Mesh, min_shard_size: int) -> P:
  ways = next((ways for pattern, *ways in rules if re.fullmatch(pattern, path)), None)
  if ways is None:
    raise ValueError(f'no sharding rule matches the parameter {path!r}: add one to the rules of its model')
  for axes in ways:
    if len(axes) > len(shape):
      raise ValueError(f'the sharding rule {axes} of {path!r} has more dimensions than {shape}')
  if math.prod(shape) < min_shard_size:
    return P()
  specs = [_those_that_divide((None,) * (len(shape) - len(axes)) + axes, shape, mesh) for axes in ways]
  return max(specs, key=lambda spec: sum(axis is not None for axis in spec))  # the first of several


def _those_that_divide(axes: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh) -> P:
  parts = [1 if axis is None else mesh.shape[axis] for axis in axes]
  pairs = zip(axes, parts, shape, strict=True)
  return P(*(axis if part > 1 and size % part == 0 else None for axis, part, size in pairs))
