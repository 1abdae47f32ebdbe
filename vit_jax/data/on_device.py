"""What is done to a batch of images on the device, inside the compiled step."""

import jax
import jax.numpy as jnp

from vit_jax import config


def prepare(images: jax.Array, data: config.Data, *, keys: jax.Array | None = None) -> jax.Array:
  """Scales to the model's value range and, in training, mirrors half of the images left to right.

  Args:
    images: uint8 (B, H, W, C).
    data: its value_range is what 0 and 255 become; its flip says whether to mirror.
    keys: PRNG keys (B,), one per image, used for nothing else; None: evaluation, no mirroring.

  Returns:
    float32 (B, H, W, C).
  """
  if keys is not None and data.flip:
    mirrored = jax.vmap(jax.random.bernoulli)(keys)
    images = jnp.where(mirrored[:, None, None, None], images[:, :, ::-1], images)
  low, high = data.value_range
  return images.astype(jnp.float32) * ((high - low) / 255) + low
