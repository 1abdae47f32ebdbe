"""Scalings of updates by norms of whole layers; in a stack of blocks, by those of each block."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from vit_jax.foundation import pytrees

_STACK = re.compile(r'(^|/)blocks/')  # paths of parameters that hold all blocks, also those of a second tower


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


def _each_layer(scale: Callable[[jax.Array, jax.Array], jax.Array]) -> optax.GradientTransformation:
  """`scale` of each update and its parameter, or of each block's where they are stacks of blocks."""

  def update(updates: optax.Updates, params: Any) -> optax.Updates:
    paths = pytrees.map_with_path(lambda path, _: path, params)
    return jax.tree.map(
      lambda path, *leaves: (jax.vmap(scale) if _STACK.search(path) else scale)(*leaves),
      *(paths, updates, params),
    )

  return optax.stateless(update)
