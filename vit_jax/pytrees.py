"""Nested dicts of parameters and their paths."""

import functools
from typing import Any

import jax
from flax import nnx

from vit_jax import config, models


def shapes(
  model: config.Model, image_size: tuple[int, int], channels: int, num_classes: int
) -> tuple[nnx.GraphDef, dict[str, jax.ShapeDtypeStruct]]:
  """The graph of a model and the shape of each parameter by its path; nothing is allocated.

  Raises:
    UserError: sizes that do not go together.
  """
  build = functools.partial(
    models.build, model, image_size=image_size, channels=channels, num_classes=num_classes
  )
  graphdef, state = nnx.split(nnx.eval_shape(lambda: build(rngs=nnx.Rngs(0))))
  return graphdef, flatten(nnx.to_pure_dict(state))


def flatten(nested: dict[str, Any]) -> dict[str, Any]:
  """{'a': {'b': leaf}} -> {'a/b': leaf}."""
  leaves = jax.tree.leaves_with_path(nested)
  return {jax.tree_util.keystr(path, simple=True, separator='/'): leaf for path, leaf in leaves}


def unflatten(flat: dict[str, Any]) -> dict[str, Any]:
  """{'a/b': leaf} -> {'a': {'b': leaf}}."""
  result: dict[str, Any] = {}
  for path, leaf in flat.items():
    *parents, name = path.split('/')
    node = result
    for parent in parents:
      node = node.setdefault(parent, {})
    node[name] = leaf
  return result
