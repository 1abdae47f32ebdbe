import jax
import numpy as np
import pytest

from vit_jax import config
from vit_jax.data.on_device import prepare

IMAGES = np.random.default_rng(0).integers(0, 256, (200, 2, 3, 3), np.uint8)


@pytest.mark.parametrize('low,high', [(-1.0, 1.0), (0.0, 1.0), (0.0, 255.0)])
def test_value_range(low, high):
  got = prepare(IMAGES, config.Data(value_range=(low, high)))
  assert got.dtype == np.float32
  np.testing.assert_allclose(got, low + (high - low) * (IMAGES / 255), atol=1e-6 * (high - low))


def test_half_of_the_training_images_are_mirrored_each_by_its_own_key():
  keys = jax.random.split(jax.random.key(0), 200)
  data = config.Data(value_range=(0.0, 255.0))
  got = jax.jit(prepare, static_argnames='data')(IMAGES, data=data, keys=keys).round().astype(np.uint8)
  mirrored = (got == IMAGES[:, :, ::-1]).all((1, 2, 3))
  assert (mirrored | (got == IMAGES).all((1, 2, 3))).all()
  assert 70 < mirrored.sum() < 130
  again = prepare(IMAGES[50:60], data, keys=keys[50:60])
  np.testing.assert_array_equal(again.round(), got[50:60])


def test_no_mirroring_in_evaluation_or_without_flip():
  keys = jax.random.split(jax.random.key(0), 200)
  plain = prepare(IMAGES, config.Data())
  np.testing.assert_array_equal(prepare(IMAGES, config.Data(flip=False), keys=keys), plain)
