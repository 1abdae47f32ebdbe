"""Mirroring and mixing on the device against NumPy: what, how often, and how strongly."""

import functools

import jax
import numpy as np
import pytest
from scipy import stats

from vit_jax.config import Config
from vit_jax.data.config import DataConfig
from vit_jax.data.on_device import prepare, prepare_training
from vit_jax.training.step import model_inputs

IMAGES = np.random.default_rng(0).integers(0, 256, (200, 2, 3, 3), np.uint8)
LABELS = np.arange(200, dtype=np.int32)
BYTES = {'mean': (0.0,), 'std': (1 / 255,)}


@functools.partial(jax.jit, static_argnames='data')
def prepared(key, data, images=IMAGES, labels=LABELS):
  return prepare_training({'image': images, 'label': labels}, data, key)


@pytest.mark.parametrize(
  'mean,std', [((0.5,), (0.5,)), ((0.0,), (1 / 255,)), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
)
def test_pixels_are_normalised_by_mean_and_std_of_each_channel(mean, std):
  data = DataConfig(mean=mean, std=std)
  got = prepare(IMAGES, data)
  assert got.dtype == np.float32
  np.testing.assert_allclose(got, (IMAGES / 255 - mean) / std, rtol=1e-6, atol=1e-6)
  training = prepare_training({'image': IMAGES, 'label': LABELS}, data, jax.random.key(0))
  assert training['image'].dtype == np.float32


def test_without_mean_and_std_the_bits_are_those_of_the_range_from_minus_one_to_one():
  as_before = jax.jit(lambda images: images.astype(np.float32) * ((1.0 - -1.0) / 255) + -1.0)(IMAGES)
  half = {'mean': (0.5,) * 3, 'std': (0.5,) * 3}
  for data in (DataConfig(), DataConfig(mean=(0.5,), std=(0.5,)), DataConfig(**half)):
    np.testing.assert_array_equal(jax.jit(lambda images, data=data: prepare(images, data))(IMAGES), as_before)


@pytest.mark.slow
def test_half_of_the_training_images_are_mirrored_independently_of_the_batch_size():
  data, key = DataConfig(**BYTES), jax.random.key(0)
  batch = prepared(key, data)
  assert set(batch) == {'image', 'label'}
  got = batch['image'].round().astype(np.uint8)
  mirrored = (got == IMAGES[:, :, ::-1]).all((1, 2, 3))
  assert (mirrored | (got == IMAGES).all((1, 2, 3))).all()
  assert 70 < mirrored.sum() < 130
  fewer = prepared(key, data, IMAGES[:50], LABELS[:50])  # a larger batch leaves the others as they are
  np.testing.assert_array_equal(fewer['image'], batch['image'][:50])


def test_no_mirroring_without_flip():
  plain = prepare(IMAGES, DataConfig())
  np.testing.assert_array_equal(prepared(jax.random.key(0), DataConfig(flip=False))['image'], plain)


def unmixed(batch):
  """(own image, neighbour, share of the own one) of each row, after checking whose labels the batch has."""
  lam, label, label_b = (np.asarray(batch[name]) for name in ('lam', 'label', 'label_b'))
  assert (lam >= 0.5).all() and (lam <= 1).all()
  swapped = label != LABELS
  np.testing.assert_array_equal(np.where(swapped, label_b, label), LABELS)
  np.testing.assert_array_equal(np.where(swapped, label, label_b), np.roll(LABELS, 1))
  return IMAGES.astype(np.float64), np.roll(IMAGES, 1, axis=0).astype(np.float64), np.abs(swapped - lam)


@pytest.mark.slow
@pytest.mark.parametrize('mix_per', ['batch', 'example'])
def test_mixup_blends_each_image_with_its_neighbour(mix_per):
  data = DataConfig(flip=False, mixup=0.5, mix_per=mix_per, **BYTES)
  batch = prepared(jax.random.key(1), data)
  own, neighbour, share = unmixed(batch)
  weights = share[:, None, None, None]
  np.testing.assert_allclose(batch['image'], weights * own + (1 - weights) * neighbour, atol=1e-3)
  assert len(np.unique(share)) == (1 if mix_per == 'batch' else 200)
  assert (share >= 0.5).all()


@pytest.mark.slow
def test_lam_of_mixup_has_the_beta_distribution():
  data = DataConfig(flip=False, mixup=0.2, mix_per='example')
  lam = np.concatenate([prepared(jax.random.key(seed), data)['lam'] for seed in range(15)])
  expected = np.random.default_rng(0).beta(0.2, 0.2, 100_000).astype(np.float32)
  assert stats.ks_2samp(lam, np.maximum(expected, 1 - expected)).statistic < 0.035


def boxes(key, data, height=20, width=30, batch=200):
  """Where image i shows its neighbour, bool (B, H, W); images are of one value each."""
  images = (
    np.zeros((batch, height, width, 1), np.uint8) + np.arange(batch, dtype=np.uint8)[:, None, None, None]
  )
  got = prepared(key, data, images, LABELS[:batch])
  pixels = np.asarray(got['image'])[..., 0].round()
  neighbour = pixels == np.roll(np.arange(batch), 1)[:, None, None]
  assert (neighbour | (pixels == np.arange(batch)[:, None, None])).all()
  own_share = 1 - neighbour.mean((1, 2))
  np.testing.assert_allclose(got['lam'], np.maximum(own_share, 1 - own_share), atol=1e-6)
  keeps = np.asarray(got['label']) == np.arange(batch)
  assert (keeps == (own_share >= 0.5 - 1e-7)).all()
  return neighbour


@pytest.mark.slow
@pytest.mark.parametrize('mix_per', ['batch', 'example'])
def test_cutmix_puts_a_box_of_the_neighbour_in(mix_per):
  data = DataConfig(flip=False, cutmix=1.0, mix_per=mix_per, channels=1, **BYTES)
  found = boxes(jax.random.key(3), data)
  for box in found:
    assert box.sum() == box.any(0).sum() * box.any(1).sum()
  assert len(np.unique(found, axis=0)) > 150 or (mix_per == 'batch' and (found == found[0]).all())


def test_a_box_of_cutmix_lies_anywhere_in_a_square_and_not_on_its_diagonal(monkeypatch):
  """Boxes of half the sides, since a beta distribution takes seconds to compile."""
  monkeypatch.setattr(jax.random, 'beta', lambda key, a, b: 0.75)
  data = DataConfig(flip=False, cutmix=0.7, mix_per='example', channels=1, **BYTES)
  found = boxes(jax.random.key(5), data, height=16, width=16)
  rows, columns = (side @ np.arange(16) / side.sum(1) for side in (found.any(2), found.any(1)))
  assert abs(np.corrcoef(rows, columns)[0, 1]) < 0.2


@pytest.mark.slow
def test_box_of_cutmix_has_the_papers_area_and_place():
  """Against the paper's procedure in NumPy."""
  data = DataConfig(flip=False, cutmix=1.0, mix_per='example', channels=1, **BYTES)
  found = np.concatenate([boxes(jax.random.key(seed), data) for seed in range(15)])
  rng, areas, hits = np.random.default_rng(0), [], np.zeros((20, 30))
  for _ in range(20_000):
    side = np.sqrt(1 - rng.beta(1, 1))
    box = np.zeros((20, 30), bool)
    (top, bottom), (left, right) = (
      (max(centre - size // 2, 0), centre - size // 2 + size)
      for centre, size in ((rng.integers(length), int(side * length)) for length in (20, 30))
    )
    box[top:bottom, left:right] = True
    areas.append(box.mean())
    hits += box
  assert stats.ks_2samp(found.mean((1, 2)), areas).statistic < 0.035
  np.testing.assert_allclose(found.mean(0), hits / 20_000, atol=0.05)


@pytest.mark.slow
def test_mixup_and_cutmix_take_turns():
  data = DataConfig(flip=False, mixup=1.0, cutmix=1.0, channels=1, **BYTES)
  images = np.where(np.arange(2)[:, None, None, None], 255, 0) * np.ones((2, 8, 8, 1))
  images = images.astype(np.uint8)
  blends = 0
  for seed in range(200):
    got = np.asarray(prepared(jax.random.key(seed), data, images, LABELS[:2])['image'])
    blends += ((got > 0.5) & (got < 254.5)).any()
  assert 70 < blends < 130


@pytest.mark.slow
def test_level_brings_mixup_along_unless_mixup_is_given():
  def program(**options):
    return str(jax.make_jaxpr(functools.partial(prepared, data=DataConfig(**options)))(jax.random.key(2)))

  assert program(augment='medium1') == program(mixup=0.2) != program(mixup=0.3)
  assert program(augment='medium1', mixup=0.0) == program(augment='light1') == program()


@pytest.mark.slow
def test_lists_of_classes_are_swapped_as_a_whole():
  labels = np.arange(400, dtype=np.int32).reshape(200, 2)
  images = np.repeat(np.repeat(IMAGES, 5, axis=1), 5, axis=2)
  batch = prepared(jax.random.key(3), DataConfig(cutmix=1.0, mix_per='example'), images, labels)
  swapped = (np.asarray(batch['label']) != labels).any(1)
  assert 10 < swapped.sum() < 60  # boxes are cut at the edges, which leaves more to the image itself
  np.testing.assert_array_equal(batch['label'][swapped], np.roll(labels, 1, axis=0)[swapped])
  np.testing.assert_array_equal(batch['label_b'][swapped], labels[swapped])


def test_every_image_of_every_step_and_seed_has_a_key_of_its_own():
  data = DataConfig(image_size=(2, 2), flip=False)
  batch = {'image': np.zeros((8, 2, 2, 3), np.uint8), 'label': np.zeros(8, np.int32)}

  def keys(seed, step):
    config = Config(batch_size=8, seed=seed, data=data)
    return np.asarray(jax.random.key_data(model_inputs(config, batch, step)['key']))

  found = np.concatenate([keys(seed, step) for seed in (0, 1) for step in (0, 1, 100)])
  assert len(np.unique(found, axis=0)) == 48
  np.testing.assert_array_equal(keys(1, 100), found[-8:])
