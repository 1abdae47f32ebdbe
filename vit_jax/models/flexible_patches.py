"""Patches of several sizes: each batch of a training run has one of them (FlexiViT, arXiv 2212.08013).

The kernel of the patch embedding has as many pixels along a side as the largest patches, and is resized for others;
positions have the grid of `config.patch`, and are resized as for images of another size. So one network classifies by
few large patches, quickly, or by many small ones.
"""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.foundation.errors import UserError
from vit_jax.models import position_resize

if TYPE_CHECKING:
  from vit_jax.models.vit_config import ViTConfig

PLACE = 2**32 - 2  # folded into a run's key, beyond every step


@functools.cache
def resize_matrix(old: int, new: int) -> np.ndarray:
  """float64 (new, old): resizes the rows, or the columns, of a kernel.

  A kernel w' so resized gives of bilinearly resized patches about what w gives of the patches; exactly so where patches
  grow: for a resize B, x w = (B x) w', w' being the pseudo-inverse of B^T times w (section 3.4). B works along rows and
  columns apart, and so does its pseudo-inverse.
  """
  return np.linalg.pinv(position_resize.weights('bilinear', old, new).T)


def draw(key: jax.Array, step: jax.typing.ArrayLike, sizes: int) -> jax.Array:
  """int32: which of so many sizes the batch of a step has; the key is the run's."""
  return jax.random.randint(jax.random.fold_in(jax.random.fold_in(key, PLACE), step), (), 0, sizes)


def use(model: Any, patch: int) -> None:
  """Changes a network, such as a step merges for itself: it cuts images into patches of this size."""
  model.config = dataclasses.replace(model.config, patch=patch)
  model.patch_embedding.patch = patch


def resized(kernel: jax.Array, patch: int) -> jax.Array:
  """(P, P, C, D) -> (patch, patch, C, D)."""
  if kernel.shape[0] == patch:
    return kernel
  matrix = jnp.asarray(resize_matrix(kernel.shape[0], patch), kernel.dtype)
  return jnp.einsum('ih,jw,hwcd->ijcd', matrix, matrix, kernel, precision=jax.lax.Precision.HIGHEST)


def check(config: 'ViTConfig', path: str) -> None:
  """Raises UserError for a model whose head, or whose blocks, are of one size of patches."""
  wrong = None
  if config.whole_grid:
    wrong = f'{config.whole_grid}, which was not tried with it; leave it out'
  elif config.pool == 'none':
    wrong = "pool 'none', by which every patch gets logits; choose another pool"
  if config.patch_sizes and wrong:
    raise UserError(f'{path}.patch_sizes is {config.patch_sizes}, and the model has {wrong}.')
