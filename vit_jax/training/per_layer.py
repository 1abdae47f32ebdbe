"""Scalings of updates by what is known of whole layers; in a stack of blocks, of each block."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax.foundation import pytrees

# Paths of parameters that hold several blocks: all of them, also those of a second tower, or an EfficientNet's stage.
_STACK = re.compile(r'(^|/)(blocks|stage\d+/others)/')


def trust_ratio() -> optax.GradientTransformation:
  """LAMB's (arXiv 1904.00962, algorithm 2, with the identity as φ): each update times ‖parameter‖ / ‖update‖.

  An update stays as it is where one of the two norms is 0.
  """

  def scale(update: jax.Array, param: jax.Array) -> jax.Array:
    of_param, of_update = jnp.linalg.norm(param.ravel()), jnp.linalg.norm(update.ravel())
    ratio = of_param / jnp.where(of_update > 0, of_update, 1)
    return update * jnp.where((of_param > 0) & (of_update > 0), ratio, 1)

  return _each_layer(scale)


def clip_by_rms(limit: float) -> optax.GradientTransformation:
  """Adafactor's (arXiv 1804.04235, section 6): each update divided so that its RMS is at most `limit`."""

  def scale(update: jax.Array, param: jax.Array) -> jax.Array:
    del param
    return update / jnp.maximum(1, jnp.sqrt(jnp.mean(update**2)) / limit)

  return _each_layer(scale)


def factored_rms(**options: Any) -> optax.GradientTransformation:
  """`optax.scale_by_factored_rms` with its options; an array whose rows would be blocks of a stack is kept whole."""
  inner, least = optax.scale_by_factored_rms(**options), options.get('min_dim_size_to_factor', 128)

  def seen(tree: Any) -> Any:
    def flat(path: str, leaf: Any) -> Any:
      *_, second, first = (0, 0, *np.argsort(leaf.shape))  # the axes that would be factored
      mixes = _STACK.search(path) and 0 in (first, second) and leaf.shape[second] >= least
      return leaf.reshape(-1) if mixes else leaf

    return pytrees.map_with_path(flat, tree)

  def update(updates: optax.Updates, state: Any, params: Any = None) -> tuple[optax.Updates, Any]:
    scaled, state = inner.update(seen(updates), state, seen(params))
    return jax.tree.map(lambda leaf, update: leaf.reshape(update.shape), scaled, updates), state

  return optax.GradientTransformation(lambda params: inner.init(seen(params)), update)


def _each_layer(scale: Callable[[jax.Array, jax.Array], jax.Array]) -> optax.GradientTransformation:
  """`scale` of each update and its parameter, or of each block's where they are stacks of blocks."""

  def update(updates: optax.Updates, params: Any) -> optax.Updates:
    paths = pytrees.map_with_path(lambda path, _: path, params)
    return jax.tree.map(
      lambda path, *leaves: (jax.vmap(scale) if _STACK.search(path) else scale)(*leaves),
      *(paths, updates, params),
    )

  return optax.stateless(update)
