import functools

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from scipy import ndimage

from vit_jax.data import image_ops as ops


def pictures():
  """Waves, noise, few levels, one colour; square, not square."""
  rng = np.random.default_rng(0)
  y, x = np.mgrid[0:60, 0:80]
  waves = np.stack([127 + 100 * np.sin(y / 9 + x / 7), 4 * y, 3 * x], -1).astype(np.uint8)
  noise = rng.integers(0, 256, (50, 50, 3), np.uint8)
  dull = rng.integers(90, 140, (40, 90, 3), np.uint8)
  return [waves, noise, dull, np.full((12, 9, 3), 77, np.uint8)]


def with_argument(ours, pillows, name, value):
  return functools.partial(ours, **{name: value}), functools.partial(pillows, **{name: value})


EXACT = {
  'autocontrast': (ops.autocontrast, ImageOps.autocontrast),
  'equalize': (ops.equalize, ImageOps.equalize),
  'invert': (ops.invert, ImageOps.invert),
  'posterize 1': with_argument(ops.posterize, ImageOps.posterize, 'bits', 1),
  'posterize 6': with_argument(ops.posterize, ImageOps.posterize, 'bits', 6),
  'solarize 0': with_argument(ops.solarize, ImageOps.solarize, 'threshold', 0),
  'solarize 128': with_argument(ops.solarize, ImageOps.solarize, 'threshold', 128),
}


@pytest.mark.parametrize('name', EXACT)
@pytest.mark.parametrize('channels', [1, 3])
def test_operation_equals_pillows(name, channels):
  ours, pillows = EXACT[name]
  for image in pictures():
    image = image[..., :channels]
    expected = np.asarray(pillows(as_pillow(image))).reshape(image.shape)
    np.testing.assert_array_equal(ours(image), expected)


@pytest.mark.parametrize('factor', [0.1, 0.7, 1.0, 1.9, 3.7])
@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize(
  ('ours', 'pillows'),
  [
    (ops.brightness, ImageEnhance.Brightness),
    (ops.contrast, ImageEnhance.Contrast),
    (ops.saturation, ImageEnhance.Color),
    (ops.sharpness, ImageEnhance.Sharpness),
  ],
)
def test_enhancement_is_pillows_up_to_rounding(ours, pillows, channels, factor):
  for image in pictures():
    image = image[..., :channels]
    expected = np.asarray(pillows(as_pillow(image)).enhance(factor)).reshape(image.shape)
    # Pillow rounds down; and gray or smoothed values may round to a neighbour, which the factor magnifies.
    difference = np.abs(ours(image, factor).astype(int) - expected)
    assert difference.max() <= 1.5 + abs(1 - factor)
    assert (difference > 1).mean() < 0.05


def test_grayscale_is_pillows_up_to_rounding():
  for image in pictures():
    expected = np.asarray(as_pillow(image).convert('L'))[..., None]
    assert np.abs(ops.grayscale(image).astype(int) - expected).max() <= 1
  gray = pictures()[0][..., :1]
  np.testing.assert_array_equal(ops.grayscale(gray), gray)


@pytest.mark.parametrize('sigma', [0.1, 0.9, 2.0])
@pytest.mark.parametrize('channels', [1, 3])
def test_blur_is_gaussian(sigma, channels):
  for image in pictures():
    image = image[..., :channels]
    expected = ndimage.gaussian_filter(image.astype(float), (sigma, sigma, 0), mode='mirror', truncate=3)
    assert np.abs(ops.blur(image, sigma) - expected).max() < 1.5
  waves = pictures()[0]
  pillows = np.asarray(as_pillow(waves).filter(ImageFilter.GaussianBlur(sigma))).astype(int)
  # Pillow approximates the Gaussian by three boxes, and repeats the edge.
  assert np.abs(ops.blur(waves, sigma) - pillows)[6:-6, 6:-6].mean() < 0.6


def test_solarize_add_changes_dark_values_only():
  image = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
  got = ops.solarize_add(image, 110).ravel()
  np.testing.assert_array_equal(got[:128], np.arange(128) + 110)
  np.testing.assert_array_equal(got[128:], np.arange(128, 256))


ROTATION = [[np.cos(0.4), -np.sin(0.4)], [np.sin(0.4), np.cos(0.4)]]
# Operation -> its argument, matrix, shift, and whether it turns about the centre.
WARPS = {
  'rotate': (np.rad2deg(0.4), ROTATION, (0, 0), True),
  'shear_x': (0.31, [[1, 0.31], [0, 1]], (0, 0), False),
  'shear_y': (-0.17, [[1, 0], [-0.17, 1]], (0, 0), False),
  'translate_x': (13, np.eye(2), (13, 0), False),
  'translate_y': (-7.2, np.eye(2), (0, -7.2), False),
}


@pytest.mark.parametrize('name', WARPS)
@pytest.mark.parametrize('channels', [1, 3])
def test_warps_take_the_nearest_pixel_or_gray(name, channels):
  strength, matrix, shift, centred = WARPS[name]
  image = pictures()[1][:40, :, :channels]
  height, width = image.shape[:2]
  centre = np.array([width - 1, height - 1]) / 2 * centred
  grid = np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1)
  source = (grid - centre) @ np.transpose(matrix) + centre + shift
  got, right = getattr(ops, name)(image, strength), np.zeros((height, width), bool)
  for nudge in (-0.03, 0.03):  # OpenCV's coordinates have 5 bits behind the point
    column, row = np.moveaxis(np.rint(source + nudge).astype(int), -1, 0)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    expected = np.full(image.shape, 128, np.uint8)
    expected[inside] = image[row[inside], column[inside]]
    right |= (got == expected).all(-1)
  assert right.mean() > 0.995  # those nudged in one direction only are the others
  assert (got == 128).all(-1).mean() > 0.02


def test_box_is_clipped_at_the_edges():
  image = pictures()[1]
  got = ops.fill_box(image, -5, 40, 10, 20)
  expected = image.copy()
  expected[:5, 40:] = 128
  np.testing.assert_array_equal(got, expected)
  np.testing.assert_array_equal(ops.fill_box(image, -20, 3, 10, 10), image)


def as_pillow(image):
  return Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
