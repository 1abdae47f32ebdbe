"""Which axis of the mesh splits which dimension of which parameter: one table, by parameter path.

`fsdp` splits one large dimension, so that each device holds its part of the parameters and of the
optimizer's state. `tensor` splits attention by heads, the MLP by its hidden units and the head by its
classes, so that each block needs one sum over the devices after attention and one after the MLP.
"""

import math
import re
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import keystr

_BLOCKS = r'blocks(/row|/column)?'  # the latter with axial attention
_MLP = rf'(({_BLOCKS}|map_pool)/mlp|blocks/(token|channel)_mlp)'  # of ViT, of MLP-Mixer

# (regex of the whole path, mesh axes of the LAST dimensions); the first match wins. Dimensions before
# those, such as the depth in which the blocks are stacked, are never split.
RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
  # A hybrid's stem, or a ResNet.
  (r'(stem/)?(root|block\d+/unit\d+/(conv\d|projection))/kernel', ('fsdp',)),  # (h, w, inputs, outputs)
  (r'(stem/)?(root_norm|block\d+/unit\d+/(norm\d|projection_norm))/(scale|bias)', ()),
  (r'patch_embedding/kernel', (None, 'fsdp')),  # (P, P, C, D)
  (r'(class|mask)_token|register_tokens|position_embedding(/\w+)?|map_pool/probe', ('fsdp',)),  # (1, N, D)
  # The blocks, with a leading depth, and attention pooling, without.
  (rf'({_BLOCKS}|map_pool)/attention/(query|key|value)/kernel', ('fsdp', 'tensor', None)),  # (D, H, Dh)
  (rf'({_BLOCKS}|map_pool)/attention/(query|key|value)/bias', ('tensor', None)),  # (H, Dh)
  (rf'({_BLOCKS}|map_pool)/attention/out/kernel', ('tensor', None, 'fsdp')),  # (H, Dh, D)
  (
    rf'{_BLOCKS}/attention/position/bias/(patches|among_others)',
    ('tensor', None, None),
  ),  # (H, rows, columns)
  (rf'{_BLOCKS}/attention/position/bias/(from|to)_others', ('tensor', None)),  # (H, tokens)
  (rf'{_BLOCKS}/attention/(query|key)_norm/(scale|bias)', ()),  # (Dh,)
  (rf'{_BLOCKS}/attention/position/keys/\w+', ()),  # (Dh, ...), which all heads share
  (rf'{_MLP}/dense_in/kernel', ('fsdp', 'tensor')),  # (D, M)
  (rf'{_MLP}/dense_in/bias', ('tensor',)),  # (M,)
  (rf'{_BLOCKS}/mlp/depthwise/(kernel|bias)', ('tensor',)),  # (3, 3, M), (M,)
  (rf'{_MLP}/dense_out/kernel', ('tensor', 'fsdp')),  # (M, D)
  (rf'(({_BLOCKS}|map_pool)/attention/out|{_MLP}/dense_out)/bias', ()),
  (rf'({_BLOCKS}/(attention|mlp|token|channel)_norm|map_pool/norm|norm)/(scale|bias)', ()),
  (rf'{_BLOCKS}/(attention|mlp)_scale', ()),  # (D,)
  (r'representation/kernel', ('fsdp', None)),  # (D, D')
  (r'(patch_embedding|representation)/bias', ()),
  (r'head/kernel', ('fsdp', 'tensor')),  # (D, K)
  (r'head/bias', ('tensor',)),  # (K,)
)


def param_shardings(shapes: Any, mesh: Mesh, min_shard_size: int) -> Any:
  """The sharding of every parameter.

  A dimension is split only where its rule says so and the axis divides it; a parameter with fewer than
  `min_shard_size` elements is copied to every device, because fetching it costs more than it saves.

  Args:
    shapes: tree of arrays or ShapeDtypeStructs; its paths, joined by '/', are what the rules match.
    mesh: from `make_mesh`.
    min_shard_size: elements.

  Returns:
    The same tree of NamedShardings.

  Raises:
    ValueError: no rule matches a path, or a rule has more dimensions than the parameter.
  """

  def sharding(path: Any, leaf: Any) -> NamedSharding:
    return NamedSharding(mesh, _spec(_name(path), leaf.shape, mesh, min_shard_size))

  return jax.tree.map_with_path(sharding, shapes)


def optimizer_shardings(state: Any, params: Any, mesh: Mesh, min_shard_size: int) -> Any:
  """The sharding of every leaf of an optimizer's state: moments lie where their parameter lies.

  A leaf belongs to a parameter if its path ends in the parameter's path and the shapes are equal.
  That holds for every optax transformation whose state is shaped like the parameters, however it is
  chained, masked or partitioned, and needs no list of them. All other leaves (counters, factored
  moments) are copied.

  Args:
    state: tree of arrays or ShapeDtypeStructs, of `optimizer.init` by `jax.eval_shape`.
    params: the tree of the parameters' shapes.
    mesh: from `make_mesh`.
    min_shard_size: elements.

  Returns:
    The same tree as `state`, of NamedShardings.
  """
  shardings = param_shardings(params, mesh, min_shard_size)
  by_path = {
    _keys(path): (leaf.shape, sharding)
    for (path, leaf), sharding in zip(jax.tree.leaves_with_path(params), jax.tree.leaves(shardings))
  }
  copied = NamedSharding(mesh, P())

  def sharding(path: Any, leaf: Any) -> NamedSharding:
    keys = _keys(path)
    # Longest ending first: 'blocks/norm/scale' must not be taken for 'norm/scale'.
    for start in range(len(keys)):
      shape, found = by_path.get(keys[start:], (None, copied))
      if shape == leaf.shape:
        return found
    return copied

  return jax.tree.map_with_path(sharding, state)


def _spec(path: str, shape: tuple[int, ...], mesh: Mesh, min_shard_size: int) -> P:
  axes = next((axes for pattern, axes in RULES if re.fullmatch(pattern, path)), None)
  if axes is None:
    raise ValueError(f'no sharding rule matches the parameter {path!r}: add one to {__name__}.RULES')
  if len(axes) > len(shape):
    raise ValueError(f'the sharding rule {axes} of {path!r} in {__name__} has more dimensions than {shape}')
  if math.prod(shape) < min_shard_size:
    return P()
  axes = (None,) * (len(shape) - len(axes)) + axes
  return P(*(_if_divides(axis, size, mesh) for axis, size in zip(axes, shape, strict=True)))


def _if_divides(axis: str | None, size: int, mesh: Mesh) -> str | None:
  return axis if axis is not None and mesh.shape[axis] > 1 and size % mesh.shape[axis] == 0 else None


def _name(path: Any) -> str:
  return keystr(path, simple=True, separator='/')


def _keys(path: Any) -> tuple[str, ...]:
  return tuple(keystr((key,), simple=True) for key in path)
