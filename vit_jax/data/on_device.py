"""What happens to a batch of images on the device, inside the compiled step.

Training images are mirrored and mixed with each other. Image i is mixed with image i - 1 of the global batch,
the first with the last: neighbours are random, because batches are shuffled, and each device needs only one
image, in uint8, from the device before it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data.config import DataConfig
from vit_jax.foundation.naflex import Patches

Batch = dict[str, jax.Array]  # what the pipeline makes, or a part of it


def prepare(images: jax.Array, data: DataConfig) -> jax.Array:
  """Images (B, H, W, C), uint8 or mixed ones in 0 … 255, in the range of `data.mean` and `std`: float32."""
  low, high = data.value_range
  return images.astype(jnp.float32) * np.asarray((high - low) / 255, np.float32) + np.asarray(low, np.float32)


def prepared(batch: Batch, data: DataConfig) -> Any:
  """The images of a batch, as the model takes them: float32 (B, H, W, C), or `Patches`."""
  images = prepare(batch['image'], data)
  return Patches(images, batch['grid']) if 'grid' in batch else images


def prepare_training(batch: Batch, data: DataConfig, key: jax.Array) -> Batch:
  """Mirrors, mixes and scales a training batch.

  Args:
    batch: 'image', uint8 (B, H, W, C), and 'label', int32 (B,) or (B, n); perhaps 'weight', float32 (B, n), and, where
      nothing is mixed, 'text', int32 (B, N), and extra crops, uint8 (B, n, H, W, C). Of images of any shape also
      'grid', int32 (B, 2); these are columns of patches, mirrored already.
    data: flip, mixup, cutmix, mix_per, mean, std.
    key: a typed PRNG key of this step.

  Returns:
    'image', float32 or `Patches`, extra crops, float32, and 'label', 'weight' and 'text', where they are there, as they
    were. If images are mixed, also 'label_b' (and 'weight_b'), of the same shapes, and 'lam', float32 (B,), 0.5 to 1:
    'label' belongs to the image that makes up the share `lam` of the mixture, 'label_b' to the other one.
  """
  flip_key, mix_key = jax.random.split(key)
  images = batch['image']
  targets = {name: batch[name] for name in ('label', 'weight', 'text') if name in batch}
  if data.flip and 'grid' not in batch:
    mirrored = jax.vmap(jax.random.bernoulli)(keys_of_rows(flip_key, len(images)))
    images = jnp.where(mirrored[:, None, None, None], images[:, :, ::-1], images)
  weights = _weights(mix_key, data, images.shape)
  if weights is None:
    crops = {name: values for name, values in batch.items() if values.ndim == 5}
    for number, (name, values) in enumerate(sorted(crops.items())):
      crops[name] = prepare(_some_mirrored(values, data, jax.random.fold_in(mix_key, number)), data)
    return {'image': prepared(batch | {'image': images}, data), **targets, **crops}
  mixed = weights * images + (1 - weights) * _neighbours(images)
  own = jnp.broadcast_to(weights.mean(axis=(1, 2, 3)), len(images))  # share of each row's own image
  is_larger = (own >= 0.5).reshape(-1, *[1] * (batch['label'].ndim - 1))
  result = {'image': prepare(mixed, data), 'lam': jnp.maximum(own, 1 - own)}
  for name, values in targets.items():
    neighbours = _neighbours(values)
    result[name] = jnp.where(is_larger, values, neighbours)
    result[f'{name}_b'] = jnp.where(is_larger, neighbours, values)
  return result


def _some_mirrored(crops: jax.Array, data: DataConfig, key: jax.Array) -> jax.Array:
  """Extra crops, (B, n, H, W, C), half of them mirrored where `data` says so."""
  if not data.flip:
    return crops
  keys = keys_of_rows(key, len(crops))
  mirrored = jax.vmap(lambda key: jax.random.bernoulli(key, shape=crops.shape[1:2]))(keys)
  return jnp.where(mirrored[:, :, None, None, None], crops[:, :, :, ::-1], crops)


def keys_of_rows(key: jax.Array, rows: int) -> jax.Array:
  """One key per row, (rows,), so that random numbers do not depend on how a batch is divided over devices."""
  return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(rows))


def _neighbours(rows: jax.Array) -> jax.Array:
  """Row i - 1 in place of row i; each device sends one row to the next (collective-permute)."""
  return jnp.roll(rows, 1, axis=0)


def _weights(key: jax.Array, data: DataConfig, shape: tuple[int, ...]) -> jax.Array | None:
  """The weight of each image's own pixels, float32 (B or 1, H or 1, W or 1, 1); None if nothing is mixed."""
  alpha = data.mixup_alpha
  batch, height, width, _ = shape

  def draw(key: jax.Array) -> jax.Array:
    coin_key, mixup_key, cutmix_key = jax.random.split(key, 3)
    if not data.cutmix:
      return _mixup_weights(mixup_key, alpha)
    if not alpha:
      return _cutmix_weights(cutmix_key, data.cutmix, height, width)
    return jnp.where(
      jax.random.bernoulli(coin_key),
      _mixup_weights(mixup_key, alpha),
      _cutmix_weights(cutmix_key, data.cutmix, height, width),
    )

  if not alpha and not data.cutmix:
    return None
  return jax.vmap(draw)(keys_of_rows(key, batch if data.mix_per == 'example' else 1))[..., None]


def _mixup_weights(key: jax.Array, alpha: float) -> jax.Array:
  """One weight for all pixels, (1, 1), at least 0.5 (mixup, arXiv 1710.09412).

  Mixing is symmetric: swapping the pair only swaps the roles of 'label' and 'label_b'.
  """
  lam = jax.random.beta(key, alpha, alpha)
  return jnp.maximum(lam, 1 - lam).reshape(1, 1)


def _cutmix_weights(key: jax.Array, alpha: float, height: int, width: int) -> jax.Array:
  """0 inside a box and 1 around it, (H, W) (CutMix, arXiv 1905.04899, equation 2).

  The centre of the box is anywhere in the image. The part outside the image is cut off, which leaves more of
  the image's own pixels.
  """
  lam_key, row_key, column_key = jax.random.split(key, 3)
  side = jnp.sqrt(1 - jax.random.beta(lam_key, alpha, alpha))
  rows = _inside(row_key, side, height)
  columns = _inside(column_key, side, width)
  return 1.0 - (rows[:, None] & columns)


def _inside(key: jax.Array, share: jax.Array, length: int) -> jax.Array:
  """Marks an interval of positions, `share` of them, around a random centre: bool (length,)."""
  size = (share * length).astype(jnp.int32)
  first = jax.random.randint(key, (), 0, length) - size // 2
  positions = jnp.arange(length)
  return (positions >= first) & (positions < first + size)
