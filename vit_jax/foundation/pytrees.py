"""Nested dicts of arrays and the paths of their leaves, such as 'blocks/attention/query/kernel'."""

from collections.abc import Callable
from typing import Any

import jax
from flax import traverse_util
from jax.tree_util import keystr


def path_of(keys: tuple[Any, ...]) -> str:
  """A key path of JAX as text: 'a/b/0'."""
  return keystr(keys, simple=True, separator='/')


def flatten(tree: Any) -> dict[str, Any]:
  """{'a': {'b': leaf}} -> {'a/b': leaf}, in the order of `jax.tree.leaves`."""
  return {path_of(keys): leaf for keys, leaf in jax.tree.leaves_with_path(tree)}


def unflatten(flat: dict[str, Any]) -> dict[str, Any]:
  """{'a/b': leaf} -> {'a': {'b': leaf}}."""
  return traverse_util.unflatten_dict(flat, sep='/')


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
  """Two nested dicts as one: {'a': {'b': 1}} and {'a': {'c': 2}} -> {'a': {'b': 1, 'c': 2}}."""
  return unflatten(flatten(one) | flatten(other)) if other else one


def map_with_path(function: Callable[[str, Any], Any], tree: Any) -> Any:
  """The tree with each leaf replaced by `function(path, leaf)`."""
  return jax.tree.map_with_path(lambda keys, leaf: function(path_of(keys), leaf), tree)
