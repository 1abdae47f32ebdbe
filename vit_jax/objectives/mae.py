"""Masked autoencoding (MAE, arXiv 2111.06377): the pixels of the patches that the encoder has not seen.

The model is a masked autoencoder (models/mae.py), whose `patch_dropout` says how many patches that are.
"""

import dataclasses
import math
from typing import ClassVar

import chex
import jax
import jax.numpy as jnp

from vit_jax.data.config import DataConfig
from vit_jax.foundation.errors import UserError
from vit_jax.models import patch_dropout
from vit_jax.models.base import Model, ModelConfig
from vit_jax.models.capabilities import ReconstructionOptions, Reconstructs
from vit_jax.objectives.base import Batch, Headless, Metrics

_EPSILON = 1e-6  # added to the variance of a patch's pixels


@dataclasses.dataclass(frozen=True)
class MaeObjective(Headless):
  """Mean squared error of the pixels of hidden patches; no labels."""

  # Normalisation of each patch's pixels by their own mean and deviation, which makes better features (section 4.1).
  normalise_patches: bool = True

  title: ClassVar[str] = 'masked autoencoding'

  def loss_and_metrics(
    self, model: Model, batch: Batch, keys: jax.Array, data: DataConfig
  ) -> tuple[jax.Array, Metrics]:
    """The mean over images of the mean over their hidden patches and the numbers of each."""
    assert isinstance(model, Reconstructs)  # by `check_run`
    predicted, hidden = model.reconstruct(batch['image'], keys)
    targets = pixels(batch['image'], model.config.patch_pixels)
    chex.assert_equal_shape([predicted, targets])
    if self.normalise_patches:
      targets -= targets.mean(axis=-1, keepdims=True)
      targets *= jax.lax.rsqrt(targets.var(axis=-1, keepdims=True, ddof=1) + _EPSILON)
    losses = jnp.square(predicted - targets).mean(axis=-1)
    return ((losses * hidden).sum(axis=1) / hidden.sum(axis=1)).mean(), {}

  def check_run(self, model: ModelConfig, data: DataConfig) -> None:
    name = "config.objective.name is 'mae'"
    if not isinstance(model, ReconstructionOptions):
      raise UserError(f'{name}; it needs a masked autoencoder, --config.model.name=mae.')
    patches = math.prod(model.grid(data.image_size))
    if patch_dropout.kept(patches, model.patch_dropout) == patches:
      raise UserError(
        f'{name}, and config.model.patch_dropout {model.patch_dropout} hides none of the patches ({patches}) that it '
        'could predict; raise it, or make the patches smaller.'
      )
    if data.num_classes is not None:
      raise UserError(f'{name}, which has no classes; leave config.data.num_classes out.')


def pixels(images: jax.Array, patch: int) -> jax.Array:
  """(B, H, W, C) -> (B, N, P²C): the numbers of each patch, row by row; what is left of rows and columns is cut off."""
  b, height, width, channels = images.shape
  rows, columns = height // patch, width // patch
  images = images[:, : rows * patch, : columns * patch]
  cells = images.reshape(b, rows, patch, columns, patch, channels)
  return cells.swapaxes(2, 3).reshape(b, rows * columns, -1)
