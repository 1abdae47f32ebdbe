import collections
import functools

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from vit_jax.data import augment, augment_policy, transforms
from vit_jax.data import image_ops as ops
from vit_jax.data.augment import augmentation
from vit_jax.data.config import DataConfig

NOISE = np.random.default_rng(7).integers(0, 256, (56, 112, 3), np.uint8)


def rng(seed=0):
  return np.random.default_rng(seed)


@pytest.mark.parametrize(
  'text', [*augment_policy.LEVELS, '3augment', 'jitter(0.4)', 'medium1 | erase(1)', 'dino(0.5,0.5)']
)
@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize('size', [(32, 32), (7, 5), (1, 1)])
def test_every_augmentation_keeps_shape_and_type_and_is_a_function_of_the_generator(text, channels, size):
  image = rng().integers(0, 256, (*size, channels), np.uint8)
  before = image.copy()
  for seed in range(20):
    got = augmentation(text)(image, rng(seed))
    assert got.shape == image.shape and got.dtype == np.uint8
    np.testing.assert_array_equal(got, augmentation(text)(image, rng(seed)))
  np.testing.assert_array_equal(image, before)


def test_training_images_are_augmented_after_their_crop():
  image = NOISE[:32, :32]
  data = DataConfig(image_size=(32, 32), crop='resize')
  np.testing.assert_array_equal(transforms.train_image(image, 'x', data, rng()), image)
  data = DataConfig(image_size=(32, 32), crop='resize', augment='strong1')
  got = transforms.train_image(image, 'x', data, rng(3))
  np.testing.assert_array_equal(got, augmentation('randaugment(2,20)')(image, rng(3)))


def test_randaugment_draws_operations_evenly_and_independently(monkeypatch):
  drawn = []

  def spy(name, image, level, rng):
    drawn.append((name, level))
    return image

  assert len(augment.RANDAUGMENT) == 16
  monkeypatch.setattr(augment, '_OPERATIONS', [functools.partial(spy, name) for name in augment.RANDAUGMENT])
  generator = rng()
  for _ in range(8000):
    augment.randaugment(NOISE, generator, layers=2, magnitude=15)
  assert {level for _, level in drawn} == {1.5}
  counts = collections.Counter(name for name, _ in drawn)
  assert stats.chisquare([counts[name] for name in augment.RANDAUGMENT]).pvalue > 1e-4
  pairs = collections.Counter((a, b) for (a, _), (b, _) in zip(drawn[::2], drawn[1::2], strict=True))
  expected = [pairs[a, b] for a in augment.RANDAUGMENT for b in augment.RANDAUGMENT]
  assert stats.chisquare(expected).pvalue > 1e-4


# The strengths that the original project computes at magnitudes 0, 5, 10, 15 and 20 (its autoaugment.py as a
# tf.function, run once beside ours).
STRENGTHS = {
  'Posterize': ('posterize', [1, 2, 4, 6, 8]),
  'Solarize': ('solarize', [0, 128, 0, 128, 0]),
  'SolarizeAdd': ('solarize_add', [0, 55, 110, 165, 220]),
  'Color': ('saturation', [0.1, 1.0, 1.9, 2.8, 3.7]),
  'Contrast': ('contrast', [0.1, 1.0, 1.9, 2.8, 3.7]),
  'Brightness': ('brightness', [0.1, 1.0, 1.9, 2.8, 3.7]),
  'Sharpness': ('sharpness', [0.1, 1.0, 1.9, 2.8, 3.7]),
  'Rotate': ('rotate', [0, 15, 30, 45, 60]),
  'ShearX': ('shear_x', [0, 0.15, 0.3, 0.45, 0.6]),
  'ShearY': ('shear_y', [0, 0.15, 0.3, 0.45, 0.6]),
  'TranslateX': ('translate_x', [0, 25, 50, 75, 100]),  # of 112 pixels
  'TranslateY': ('translate_y', [0, 12.5, 25, 37.5, 50]),  # of 56
}


@pytest.mark.parametrize('name', STRENGTHS)
def test_magnitudes_give_the_strengths_of_the_original(name):
  op, strengths = STRENGTHS[name]
  signed = name.startswith(('Rotate', 'Shear', 'Translate'))
  for magnitude, strength in zip((0, 5, 10, 15, 20), strengths, strict=True):
    generator = rng(magnitude)
    got = [augment.RANDAUGMENT[name](NOISE, magnitude / 10, generator) for _ in range(100)]
    positive, negative = (getattr(ops, op)(NOISE, sign * strength) for sign in (1, -1 if signed else 1))
    is_positive = [near(image, positive) for image in got]
    assert all(is_positive[i] or near(image, negative) for i, image in enumerate(got))
    if signed and strength:
      assert 30 < sum(is_positive) < 70


def near(image, expected):
  """Equal, up to the rounding of factors such as 0.1 + 3.6, which is not 3.7."""
  return np.abs(image.astype(int) - expected).max() <= 1


def test_cutout_is_a_gray_box_with_a_uniform_centre():
  white = np.full((112, 224, 1), 255, np.uint8)
  generator = rng()
  rows, columns, whole = np.zeros(112), np.zeros(224), 0
  for _ in range(3000):
    gray = augment.RANDAUGMENT['Cutout'](white, 0.5, generator)[..., 0] == 128
    down, across = gray.any(1), gray.any(0)
    assert gray.sum() == down.sum() * across.sum()
    assert down.sum() <= 20 and across.sum() <= 40  # 40 of 224 pixels, at half of the full range
    whole += down.sum() == 20 and across.sum() == 40
    rows += down
    columns += across
  assert whole / 3000 == pytest.approx((93 / 112) * (185 / 224), abs=0.03)
  for hits in (rows, columns):  # uniform except at the edges, which a box reaches from one side only
    inner = hits[len(hits) // 5 : -len(hits) // 5]
    assert inner.max() < 1.35 * inner.min() and hits[0] < 0.7 * inner.mean()
  full = augment.RANDAUGMENT['Cutout'](white, 2.0, rng())[..., 0] == 128
  assert full.any(0).sum() > 80


def test_three_augment_chooses_evenly_and_jitters_all():
  image = np.clip(NOISE.astype(int) // 2 + [20, 60, 100], 0, 255).astype(np.uint8)
  first = {'gray': ops.grayscale(image), 'solarized': ops.solarize(image, 128)}
  counts = collections.Counter()
  for seed in range(600):
    generator = rng(seed)
    got = augment.three_augment(image, generator)
    again = rng(seed)
    choice = ('gray', 'solarized', 'blurred')[again.integers(3)]
    counts[choice] += 1
    changed = first.get(choice)
    if changed is None:
      changed = ops.blur(image, again.uniform(0.1, 2.0))
    np.testing.assert_array_equal(got, augment.jitter(changed, again, strength=0.3))
    assert (choice == 'gray') == (got == got[..., :1]).all()
  assert stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_jitter_factors_are_uniform_in_every_order(monkeypatch):
  seen = {name: [] for name in ('brightness', 'contrast', 'saturation')}
  orders = collections.Counter()
  order = []

  def spy(name, image, factor):
    order.append(name)
    seen[name].append(factor)
    return image

  monkeypatch.setattr(augment, '_JITTERED', tuple(functools.partial(spy, name) for name in seen))
  generator = rng()
  for _ in range(3000):
    order.clear()
    augment.jitter(NOISE, generator, strength=0.4)
    orders[tuple(order)] += 1
  for factors in seen.values():
    assert stats.kstest(factors, stats.uniform(0.6, 0.8).cdf).statistic < 0.03
  assert len(orders) == 6 and stats.chisquare(list(orders.values())).pvalue > 1e-4


def test_jitter_applies_brightness_contrast_and_saturation():
  generator, again = rng(4), rng(4)
  expected = NOISE
  for index in again.permutation(3):
    factor = again.uniform(0.6, 1.4)
    expected = [ops.brightness, ops.contrast, ops.saturation][index](expected, factor)
  np.testing.assert_array_equal(augment.jitter(NOISE, generator, strength=0.4), expected)


@pytest.mark.slow
def test_erase_fills_a_box_of_the_papers_distribution_with_noise():
  image = np.full((200, 100, 3), 100, np.uint8)
  generator = rng()
  areas, aspects, erased = [], [], 0
  for _ in range(3000):
    got = augment.erase(image, generator, probability=0.25)
    box = (got != 100).any(-1)
    if not box.any():
      continue
    erased += 1
    height, width = box.any(1).sum(), box.any(0).sum()
    noise = got[box.any(1)][:, box.any(0)]
    assert abs(noise.mean() - 127.5) < 5 and noise.std() > 65
    areas.append(height * width / image[..., 0].size)
    aspects.append(height / width)
  assert erased / 3000 == pytest.approx(0.25, abs=0.03)
  assert min(areas) > 0.018 and max(areas) < 0.34
  assert min(aspects) > 0.27 and max(aspects) < 3.7
  # The paper's draw, without rounding to pixels; a box that does not fit is drawn again.
  area = generator.uniform(0.02, 1 / 3, 50_000)
  aspect = np.exp(generator.uniform(np.log(0.3), -np.log(0.3), 50_000))
  fits = (np.sqrt(20_000 * area * aspect) < 200) & (np.sqrt(20_000 * area / aspect) < 100)
  assert stats.ks_2samp(areas, area[fits]).statistic < 0.07
  assert stats.ks_2samp(np.log(aspects), np.log(aspect[fits])).statistic < 0.07


def test_erase_with_probability_zero_and_one():
  np.testing.assert_array_equal(augment.erase(NOISE, rng(), probability=0), NOISE)
  assert all((augment.erase(NOISE, rng(seed), probability=1) != NOISE).any() for seed in range(100))


@pytest.mark.parametrize('turn', [-0.1, 0.07])
def test_hues_turn_as_pillows(turn):
  """As torchvision does it: Pillow's HSV, whose hue is a byte."""
  image = np.asarray(Image.fromarray(NOISE).resize((56, 28), Image.Resampling.BOX))
  hsv = np.array(Image.fromarray(image).convert('HSV'))
  hsv[..., 0] += np.uint8(int(turn * 256) % 256)
  expected = np.asarray(Image.fromarray(hsv, 'HSV').convert('RGB')).astype(int)
  difference = np.abs(ops.hue(image, turn) - expected)
  assert difference.mean() < 1.5 and np.percentile(difference, 99) <= 8
