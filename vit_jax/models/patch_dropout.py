"""Patch dropout: a training step computes some of each image's patches only (arXiv 2208.07220; FLIP, arXiv 2212.00794).

The patches that stay are drawn by the example's key, and keep the positions that were added to them. Tokens before
the patches always stay. A masked autoencoder hides patches from its encoder so, and predicts them (mae.py).
"""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from vit_jax.foundation.errors import UserError
from vit_jax.models.capabilities import ReconstructionOptions
from vit_jax.models.dropout import fold_in
from vit_jax.models.parts.positions import AttentionPosition

if TYPE_CHECKING:
  from vit_jax.models.vit_config import ViTConfig


def kept(patches: int, rate: float) -> int:
  """How many of an image's patches stay: at least one."""
  return max(int(patches * (1 - rate)), 1)


def random_order(keys: jax.Array, patches: int, place: int) -> jax.Array:
  """int32 (B, N): the numbers of each example's patches in a random order, of which the first ones stay.

  The keys are (B,) typed PRNG keys; no mask drawn from the same keys has the number `place`.
  """
  noise = jax.vmap(lambda key: jax.random.uniform(key, (patches,)))(fold_in(keys, place))
  return jnp.argsort(noise, axis=1)


def keep(tokens: jax.Array, chosen: jax.Array, leading: int) -> jax.Array:
  """(B, leading + N, D), int (B, V) -> (B, leading + V, D): the leading tokens, and the chosen patches."""
  patches = jnp.take_along_axis(tokens[:, leading:], chosen[..., None], axis=1)
  return jnp.concatenate([tokens[:, :leading], patches], axis=1)


def needs_grid(config: 'ViTConfig') -> str | None:
  """What has to know where on the grid each patch is, or gives each patch logits, and the remedy; None: nothing."""
  if issubclass(config.positions, AttentionPosition):
    return (
      f"position {config.position!r}, of which attention knows; choose one that is added, such as 'learned'"
    )
  if config.whole_grid:
    return f'{config.whole_grid}, which needs the whole grid; leave it out'
  if config.pool == 'none' and not isinstance(config, ReconstructionOptions):
    return "pool 'none', by which every patch gets logits; choose another pool"
  return None


def check(config: 'ViTConfig', path: str) -> None:
  """Raises UserError for a model that `needs_grid`."""
  if config.patch_dropout and (wrong := needs_grid(config)):
    raise UserError(f'{path}.patch_dropout is {config.patch_dropout}, and the model has {wrong}.')
