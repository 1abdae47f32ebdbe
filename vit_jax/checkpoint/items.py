"""The items of a step: trees of arrays, each leaf known by its path, such as 'blocks/mlp/kernel'."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from vit_jax.checkpoint import checksums, failures, renamed
from vit_jax.checkpoint.failures import Damaged
from vit_jax.foundation.errors import UserError
from vit_jax.foundation.pytrees import flatten, unflatten

_SMALLEST_PART = 2**20  # bytes of an array that a device writes


def storable(name: str, tree: Any) -> dict[str, Any]:
  """The leaves of an item by path, each an array; Python's and NumPy's numbers in the dtype JAX gives them.

  Raises ValueError for a random key, or a number that does not fit into that dtype.
  """
  result = {}
  for path, leaf in _by_path(tree).items():
    if not isinstance(leaf, jax.Array):
      value = np.asarray(leaf)
      leaf = value.astype(jax.dtypes.canonicalize_dtype(value.dtype))
      if not np.array_equal(leaf, value, equal_nan=value.dtype.kind == 'f'):
        raise ValueError(f'{name} {path} does not fit into {leaf.dtype}')
    elif jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      raise ValueError(f'{name} {path} is a random key; save the seed it is made from instead')
    result[path] = leaf
  return result


def item_handler(**options: Any) -> ocp.PyTreeCheckpointHandler:
  """Orbax's writer of an item, by which devices that hold the same array each write a part of it.

  Small arrays are written by one device: the others' parts would each be a program to compile, a hundred of them
  for the first save of a small model.
  """
  arrays = ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=_SMALLEST_PART)
  registry = ocp.type_handlers.create_type_handler_registry(
    (jax.Array, arrays), (np.ndarray, ocp.type_handlers.NumpyHandler())
  )
  return ocp.PyTreeCheckpointHandler(type_handler_registry=registry, **options)


class StoredItem:
  """An item of a step that lies on the disk, to be read in the shape of a tree that is asked for."""

  def __init__(self, step: epath.Path, name: str, tree: Any, stored: dict[str, dict[str, Any]]):
    """Compares what is stored with what is asked for, by its name today; reads nothing.

    What is `stored` in the step's directory: item -> path of a leaf -> shape, dtype and checksum. The tree has
    ShapeDtypeStructs with the shardings wanted; without one, this process's first device. Raises UserError where the
    step does not have that item, or not in these shapes and dtypes.
    """
    stored_name = renamed.stored_item(name, stored)
    if stored_name not in stored:
      raise UserError(
        f'Checkpoint {step} has no {name!r}; it has {", ".join(sorted(stored))}; use the config it was saved with, or '
        f'another workdir.'
      )
    self._name = name
    self._directory = step / stored_name
    self._tree = tree
    self._asked = _by_path(tree)
    self._stored = stored[stored_name]
    self._stored_paths = {path: renamed.stored_path(path, self._stored) for path in self._asked}
    self._check(step)

  def _check(self, step: epath.Path) -> None:
    today = {stored: path for path, stored in self._stored_paths.items()}
    there = {today.get(stored, stored): description for stored, description in self._stored.items()}
    here = {path: checksums.describe(leaf) for path, leaf in self._asked.items()}
    for path in sorted(here.keys() | there.keys()):
      have, want = _shape_text(there.get(path)), _shape_text(here.get(path))
      if have != want:
        raise UserError(
          f'Checkpoint {step} does not fit: {self._name} {path} is {have} there and {want} in this config; '
          f'use the config it was saved with, or another workdir.'
        )

  def read(self) -> dict[str, jax.Array]:
    """The arrays by path, not verified yet; Damaged where they cannot be read."""
    if not self._asked:
      return {}
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    abstract = {}
    for path, leaf in self._asked.items():
      sharding = getattr(leaf, 'sharding', None) or here
      abstract[self._stored_paths[path]] = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    args = ocp.args.StandardRestore(unflatten(abstract))

    def arrays() -> dict[str, jax.Array]:
      found = _by_path(ocp.StandardCheckpointHandler().restore(self._directory, args=args))
      return {path: found[stored] for path, stored in self._stored_paths.items()}

    return failures.read(arrays)

  def verified(self, arrays: dict[str, jax.Array]) -> Any:
    """The tree of the arrays that `read` returned, by all processes; Damaged where a checksum does not match."""
    for path, found in checksums.of_arrays(arrays).items():
      if found != self._stored[self._stored_paths[path]]:
        raise Damaged(f'the checksum of {self._name} {path} does not match')
    return jax.tree.unflatten(jax.tree.structure(self._tree), list(arrays.values()))


def _by_path(tree: Any) -> dict[str, Any]:
  """Maps paths to leaves, {'a/b': leaf}; a tree that is a leaf has the path 'value'."""
  flat = {path or 'value': leaf for path, leaf in flatten(tree).items()}
  if len(flat) != len(jax.tree.leaves(tree)):
    raise ValueError('two leaves of the tree have the same path')
  return flat


def _shape_text(description: dict[str, Any] | None) -> str:
  if description is None:
    return 'missing'
  return f'{description["dtype"]} {tuple(description["shape"])}'
