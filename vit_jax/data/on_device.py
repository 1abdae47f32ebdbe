"""What is done to a batch of images on the device, inside the compiled step.

In training images are mirrored and mixed with each other. Image i is mixed with image i - 1 of the global
batch, the first with the last: neighbours are random, since batches are shuffled, and a device needs but one
image, in uint8, from the device before it.
"""

import jax
import jax.numpy as jnp

from vit_jax.data import augment_policy
from vit_jax.data.config import DataConfig

Batch = dict[str, jax.Array]


def prepare(images: jax.Array, data: DataConfig) -> jax.Array:
  """Scales to the model's value range.

  Args:
    images: uint8 (B, H, W, C), or what was mixed of such.
    data: its value_range is what 0 and 255 become.

  Returns:
    float32 (B, H, W, C).
  """
  low, high = data.value_range
  return images.astype(jnp.float32) * ((high - low) / 255) + low


def prepare_training(batch: Batch, data: DataConfig, key: jax.Array) -> Batch:
  """A training batch as the model is to see it: mirrored, mixed and scaled.

  Args:
    batch: 'image', uint8 (B, H, W, C), and 'label', int32 (B,) or (B, n).
    data: flip, mixup, cutmix, mix_per, value_range.
    key: a typed PRNG key of this step.

  Returns:
    'image', float32 (B, H, W, C), and 'label'. Where images are mixed, 'label' is of the image that has the
    larger share, 'other', of the same shape, of the other one, and 'share', float32 (B,), the first one's.
  """
  flip_key, mix_key = jax.random.split(key)
  images, labels = batch['image'], batch['label']
  if data.flip:
    mirrored = jax.vmap(jax.random.bernoulli)(keys_of_rows(flip_key, len(images)))
    images = jnp.where(mirrored[:, None, None, None], images[:, :, ::-1], images)
  weights = _weights(mix_key, data, images.shape)
  if weights is None:
    return {'image': prepare(images, data), 'label': labels}
  mixed = weights * images + (1 - weights) * _neighbours(images)
  share = jnp.broadcast_to(weights.mean(axis=(1, 2, 3)), len(images))
  keeps = (share >= 0.5).reshape(-1, *[1] * (labels.ndim - 1))
  others = _neighbours(labels)
  return {
    'image': prepare(mixed, data),
    'label': jnp.where(keeps, labels, others),
    'label_b': jnp.where(keeps, others, labels),
    'lam': jnp.maximum(share, 1 - share),
  }


def keys_of_rows(key: jax.Array, rows: int) -> jax.Array:
  """A key for each image, (B,), so that what is drawn does not depend on how a batch is divided."""
  return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(rows))


def _neighbours(rows: jax.Array) -> jax.Array:
  """Row i - 1 for row i; between devices one row each is sent (collective-permute)."""
  return jnp.roll(rows, 1, axis=0)


def _weights(key: jax.Array, data: DataConfig, shape: tuple[int, ...]) -> jax.Array | None:
  """The share of each image's own pixels: float32 (B or 1, H or 1, W or 1, 1); None: nothing is mixed."""
  alpha = augment_policy.mixup(data.augment) if data.mixup is None else data.mixup
  batch, height, width, _ = shape

  def draw(key: jax.Array) -> jax.Array:
    coin, mixup, cutmix = jax.random.split(key, 3)
    if not data.cutmix:
      return _blend(mixup, alpha)
    if not alpha:
      return _box(cutmix, data.cutmix, height, width)
    blends = jax.random.bernoulli(coin)
    return jnp.where(blends, _blend(mixup, alpha), _box(cutmix, data.cutmix, height, width))

  if not alpha and not data.cutmix:
    return None
  return jax.vmap(draw)(keys_of_rows(key, batch if data.mix_per == 'example' else 1))[..., None]


def _blend(key: jax.Array, alpha: float) -> jax.Array:
  """One share for all pixels, (1, 1), at least half ('mixup', arXiv 1710.09412).

  To exchange the two images changes nothing but which of them is called the other one.
  """
  share = jax.random.beta(key, alpha, alpha)
  return jnp.maximum(share, 1 - share).reshape(1, 1)


def _box(key: jax.Array, alpha: float, height: int, width: int) -> jax.Array:
  """0 in a box, 1 around it, (H, W) ('CutMix', arXiv 1905.04899, equation 2).

  Its centre is anywhere; what lies outside of the image is cut off, which leaves more to the image's own.
  """
  share_key, row_key, column_key = jax.random.split(key, 3)
  side = jnp.sqrt(1 - jax.random.beta(share_key, alpha, alpha))
  rows = _span(row_key, side, height)
  columns = _span(column_key, side, width)
  return 1.0 - (rows[:, None] & columns)


def _span(key: jax.Array, share: jax.Array, length: int) -> jax.Array:
  """Which of `length` places lie within a stretch of that share around a random one: bool (length,)."""
  size = (share * length).astype(jnp.int32)
  first = jax.random.randint(key, (), 0, length) - size // 2
  places = jnp.arange(length)
  return (places >= first) & (places < first + size)
