import io

import cv2
import numpy as np
import pytest
from PIL import Image
from scipy import stats

from vit_jax.data import transforms
from vit_jax.data.config import DataConfig
from vit_jax.data.preprocess import Preprocess
from vit_jax.data.transforms import eval_image, resize, train_image


def rng(seed=0):
  return np.random.default_rng(seed)


@pytest.mark.parametrize('case', ['down', 'up', 'odd'])
def test_evaluation_resizes_as_the_original(golden, case):
  fixture = np.load(golden / 'j_preprocess.npz')
  image, expected = fixture[f'{case}/image'], fixture[f'{case}/eval']
  data = DataConfig(image_size=expected.shape[:2])
  got = eval_image(image, case, data, 'resize', None)
  assert got.dtype == np.uint8
  # Half a step of uint8, and what float32 itself loses.
  assert np.abs(got - (expected * 127.5 + 127.5)).max() <= 0.501
  file = io.BytesIO()
  Image.fromarray(image).save(file, 'png')
  np.testing.assert_array_equal(eval_image(file.getvalue(), case, data, 'resize', None), got)


def test_resize_of_one_channel_and_to_the_same_size():
  image = rng().integers(0, 256, (5, 7, 1), np.uint8)
  assert resize(image, (3, 4)).shape == (3, 4, 1)
  np.testing.assert_array_equal(resize(image, (5, 7)), image)


@pytest.mark.parametrize('size', [(60, 80), (97, 40), (224, 30), (500, 300)])
def test_resize_in_fixed_point_is_within_rounding(size):
  image = rng().integers(0, 256, (97, 121, 3), np.uint8)
  difference = resize(image, size).astype(int) - Preprocess(size).as_bytes(image)
  assert np.abs(difference).max() <= 1 and abs(difference.mean()) < 0.2


def test_box_between_pixels_is_interpolated():
  y, x = np.mgrid[0:80, 0:90]
  image = np.stack([3 * y, 2 * x, y + x], -1).astype(np.uint8)  # so that any place can be told by its value
  for box in ((10.5, 20.25, 30.0, 40.5), (0.5, 0.0, 79.0, 89.5)):
    got = resize(image, (20, 30), box)
    down, right = box[2] / 20, box[3] / 30
    y, x = np.mgrid[0:20, 0:30] + 0.5
    y, x = box[0] + y * down - 0.5, box[1] + x * right - 0.5
    assert np.abs(got - np.stack([3 * y, 2 * x, y + x], -1)).max() <= 1
  cut = resize(image[10:40, 20:60], (20, 30))
  np.testing.assert_array_equal(resize(image, (20, 30), (10, 20, 30, 40)), cut)


def boxes(size, area, count=20_000):
  generator = rng(1)
  return np.array([transforms.sample_box(size, area, generator) for _ in range(count)]).T


@pytest.mark.parametrize('size', [(300, 400), (400, 300), (224, 224)])
@pytest.mark.parametrize('area', [(0.05, 1.0), (0.3, 0.7)])
def test_inception_boxes_have_the_originals_distribution(size, area):
  top, left, height, width = boxes(size, area)
  assert (top >= 0).all() and (left >= 0).all() and (height > 0).all()
  assert (top + height <= size[0]).all() and (left + width <= size[1]).all()
  whole = size[0] * size[1]
  assert (height * width >= area[0] * whole).all() and (height * width <= area[1] * whole).all()
  aspect = width / height
  assert 0.75 - 0.5 / height.min() <= aspect.min() and aspect.max() <= 4 / 3 + 0.5 / height.min()
  # The same without rounding to pixels: aspect uniform, then height uniform over what is allowed.
  generator = rng(2)
  a = generator.uniform(3 / 4, 4 / 3, 20_000)
  highest = np.minimum(np.minimum(np.sqrt(area[1] * whole / a), size[0]), size[1] / a)
  lowest = np.minimum(np.sqrt(area[0] * whole / a), highest)
  h = generator.uniform(lowest, highest)
  assert stats.ks_2samp(height + generator.uniform(-0.5, 0.5, len(height)), h).statistic < 0.02
  assert stats.ks_2samp(height * width / whole, h * h * a / whole).statistic < 0.03
  # Position uniform over what the box leaves.
  for start, length, side in ((top, height, size[0]), (left, width, size[1])):
    place = (start + generator.uniform(0, 1, len(start))) / (side - length + 1)
    assert stats.kstest(place, 'uniform').statistic < 0.015


def test_inception_box_is_the_whole_image_if_none_fits():
  assert transforms.sample_box((1000, 3), (0.9, 1.0), rng()) == (0, 0, 1000, 3)
  assert transforms.sample_box((1, 1), (0.05, 1.0), rng()) == (0, 0, 1, 1)


def smooth(height, width):
  y, x = np.mgrid[0:height, 0:width]
  waves = [127 + 100 * np.sin(y / 40 + x / 55), 255 * y / height, 255 * x / width]
  return np.stack(waves, -1).astype(np.uint8)


def test_inception_crop_shows_its_box_also_from_a_jpeg_at_reduced_scale():
  image, data = smooth(900, 1200), DataConfig(image_size=(64, 48), area=(0.3, 1.0))
  file = io.BytesIO()
  Image.fromarray(image).save(file, 'jpeg', quality=95)
  for seed in range(5):
    top, left, height, width = transforms.sample_box((900, 1200), (0.3, 1.0), rng(seed))
    expected = cv2.resize(image[top : top + height, left : left + width], (48, 64))
    full = train_image(image, 'x', data, rng(seed)).astype(int)
    assert np.abs(full - expected).max() <= 1
    reduced = train_image(file.getvalue(), 'x', data, rng(seed)).astype(int)
    assert np.sqrt(((reduced - expected) ** 2).mean()) < 1.5


@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize('how', ['bilinear', 'pillow_bicubic'])
@pytest.mark.parametrize('crop', ['inception', 'random'])
def test_image_written_to_a_row_of_a_batch_is_the_same_and_leaves_other_rows(channels, how, crop):
  image = smooth(90, 120)[:, :, :channels]
  data = DataConfig(image_size=(32, 40), channels=channels, interpolation=how, crop=crop)
  batch = np.full((3, 32, 40, channels), 7, np.uint8)
  batch[1] = train_image(image, 'x', data, rng(2), batch[1])
  np.testing.assert_array_equal(batch[1], train_image(image, 'x', data, rng(2)))
  assert (batch[[0, 2]] == 7).all()


def test_random_crop_reaches_every_place_equally():
  image = np.arange(1, 65, dtype=np.uint8).reshape(8, 8)
  data = DataConfig(image_size=(8, 8), channels=1, crop='random', padding=2)
  padded = np.pad(image, 2)
  places = {padded[y : y + 8, x : x + 8].tobytes(): 5 * y + x for y in range(5) for x in range(5)}
  generator = rng(3)
  counts = np.zeros(25)
  for _ in range(5000):
    counts[places[train_image(image, 'x', data, generator).tobytes()]] += 1
  assert stats.chisquare(counts).pvalue > 1e-4


def test_random_crop_resizes_first():
  image = smooth(30, 60)
  data = DataConfig(image_size=(24, 20), crop='random', resize=32)
  whole = resize(image, (32, 32))
  windows = {whole[y : y + 24, x : x + 20].tobytes() for y in range(9) for x in range(13)}
  assert {train_image(image, 'x', data, rng(seed)).tobytes() for seed in range(50)} <= windows


@pytest.mark.parametrize('shape,shorter,whole', [((40, 80), 32, (32, 64)), ((90, 60), 30, (45, 30))])
def test_central_crop_cuts_the_middle_of_the_resized_image(shape, shorter, whole):
  image = smooth(*shape)
  top, left = (whole[0] - 24) // 2, (whole[1] - 20) // 2
  cut = np.s_[top : top + 24, left : left + 20]
  data = DataConfig(image_size=(24, 20), crop='central', resize=shorter)
  np.testing.assert_array_equal(train_image(image, 'x', data, rng()), resize(image, whole)[cut])
  data = DataConfig(image_size=(24, 20), resize=77)  # of training only
  np.testing.assert_array_equal(
    eval_image(image, 'x', data, 'central', shorter), Preprocess(whole).as_bytes(image)[cut]
  )


def test_central_crop_without_resize_covers_the_image():
  image = smooth(40, 80)
  got = eval_image(image, 'x', DataConfig(image_size=(20, 20)), 'central', None)
  np.testing.assert_array_equal(got, Preprocess((20, 40)).as_bytes(image)[:, 10:30])


@pytest.mark.parametrize('crop', ['inception', 'random', 'central', 'resize'])
@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize('shape', [(1, 1), (3, 200), (200, 3, 3), (17, 31, 1)])
def test_any_image_becomes_the_models_size(crop, channels, shape):
  data = DataConfig(image_size=(16, 24), channels=channels, crop=crop, padding=2)
  image = rng().integers(0, 256, shape, np.uint8)
  for got in (
    train_image(image, 'x', data, rng()),
    eval_image(image, 'x', data, 'resize', None),
    eval_image(image, 'x', data, 'central', None),
  ):
    assert got.shape == (16, 24, channels) and got.dtype == np.uint8
