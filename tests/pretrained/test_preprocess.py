"""Preprocessing against Pillow and plain arithmetic."""

import dataclasses
import io
import json
import math
import pathlib
import re

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from vit_jax import options
from vit_jax.config import ClassificationEvaluatorConfig, Config, DataConfig, from_config_dict, to_config_dict
from vit_jax.data import geometry
from vit_jax.data.decode import Picture
from vit_jax.data.preprocess import Preprocess
from vit_jax.data.transforms import central
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import preprocessor_config, timm_config
from vit_jax.pretrained.json_values import JsonObject

PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8))
UNIT = Preprocess((20, 16), mean=(0.0,), std=(1 / 255,), antialias=True)  # pixels as they are


def resized(size: tuple[int, int], box: tuple[int, int, int, int] | None = None) -> np.ndarray:
  """Pillow's bicubic (height, width), and of it a box (left, top, right, bottom)."""
  picture = PHOTO.resize(size[::-1], Image.Resampling.BICUBIC)
  return np.asarray(picture.crop(box) if box else picture, np.float32)


@pytest.mark.parametrize(
  ('options', 'expected'),
  [
    ({}, resized((20, 16))),
    ({'shorter': 30}, resized((30, 45), (14, 5, 30, 25))),
    ({'whole': (24, 24)}, resized((24, 24), (4, 2, 20, 22))),
  ],
)
def test_sizes_and_cuts_are_those_of_pillow(options, expected):
  preprocess = dataclasses.replace(UNIT, method='bicubic', **options)
  found = preprocess([PHOTO])
  assert found.dtype == np.float32
  np.testing.assert_allclose(found[0], expected, atol=1e-4)


@pytest.mark.parametrize(('half_even', 'rounded'), [(True, round), (False, math.floor)])
def test_middle_is_cut_where_torchvision_rounds_to_and_otherwise_half_a_pixel_up(half_even, rounded):
  rows = np.arange(23, dtype=np.uint8)[:, None, None].repeat(9, axis=1)
  for height in range(1, 23):
    found = geometry.cut(rows, (height, 9), half_even=half_even)
    first = rounded((23 - height) / 2.0)  # torchvision's center_crop: int(round(rest / 2.0))
    np.testing.assert_array_equal(found, rows[first : first + height])


@pytest.mark.parametrize(
  ('side', 'crop_pct', 'resized'), [(224, 0.875, 256), (224, 0.9, 248), (300, 0.904, 331), (384, 1.0, 384)]
)
def test_images_are_resized_to_timms_floor_before_the_cut(side, crop_pct, resized):
  values = JsonObject(pathlib.Path(), {'crop_pct': crop_pct})
  assert timm_config.preprocess(values, (side, side), 3).shorter == resized  # math.floor(img_size / crop_pct)


def test_another_size_cuts_in_proportion():
  half = dataclasses.replace(UNIT, size=(224, 224), shorter=256).at((112, 112))
  assert (half.size, half.shorter, half.whole) == ((112, 112), 128, None)
  squashed = dataclasses.replace(UNIT, size=(224, 224), whole=(248, 248)).at((448, 448))
  assert (squashed.size, squashed.shorter, squashed.whole) == ((448, 448), None, (496, 496))


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({}, None),
    ({'shorter': 24}, None),
    ({'whole': (24, 20), 'timm': 'squash'}, None),  # a rest of 4: there is no half pixel
    ({'whole': (17, 14), 'timm': 'squash'}, 'rounds the place of the cut otherwise'),  # 3 rows of a border
    ({'shorter': 24, 'timm': 'center'}, 'rounds the place of the cut otherwise'),
    ({'whole': (22, 18), 'timm': 'center'}, r'no resize of this kind \(timm_center, \(22, 18\) pixels\)'),
    ({'antialias': False}, 'the bilinear resize of this checkpoint does not'),
  ],
)
def test_what_a_file_of_transformers_cannot_say_is_said(changes, said):
  _, notes = preprocessor_config.write(dataclasses.replace(UNIT, **changes))
  assert len(notes) == (said is not None)
  assert said is None or re.search(said, notes[0])


@pytest.mark.parametrize('resize', [71, (71, 142), None])
def test_evaluator_keeps_its_crop_and_resize_in_json_and_on_the_command_line(resize):
  evaluator = ClassificationEvaluatorConfig(crop='timm_border', resize=resize)
  config = Config(data=DataConfig(image_size=(64, 128)), evaluators={'test': evaluator})
  assert options.from_dict(Config, json.loads(json.dumps(options.as_dict(config)))) == config
  assert from_config_dict(to_config_dict(config)) == config


def test_mean_and_deviation_are_applied_to_each_channel():
  mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
  preprocess = Preprocess((60, 90), mean=mean, std=std)
  expected = (np.asarray(PHOTO) / 255 - mean) / std
  np.testing.assert_allclose(preprocess([PHOTO])[0], expected, atol=1e-6)


def test_value_range_and_number_of_channels():
  preprocess = Preprocess.from_range((60, 90), 2.0, 4.0, channels=1)
  found = preprocess([Image.new('RGB', (90, 60)), Image.new('L', (90, 60), 255)])
  assert found.shape == (2, 60, 90, 1)
  np.testing.assert_allclose(found[0], 2)
  np.testing.assert_allclose(found[1], 4)


def test_sixteen_bits_are_halved_and_orientation_is_applied(tmp_path):
  deep = Image.fromarray((np.arange(5400, dtype=np.uint16) * 12).reshape(60, 90))
  assert deep.mode == 'I;16'
  found = Preprocess((60, 90), mean=(0.0,), std=(1 / 255,), channels=1)([deep])
  np.testing.assert_allclose(found[0, ..., 0], np.asarray(deep) >> 8, atol=1e-4)
  exif = Image.Exif()
  exif[274] = 6  # turned to the right
  PHOTO.save(tmp_path / 'x.png', exif=exif)
  turned = Preprocess((90, 60), mean=(0.0,), std=(1 / 255,))([Image.open(tmp_path / 'x.png')])
  np.testing.assert_allclose(turned[0], np.rot90(np.asarray(PHOTO), -1), atol=1e-4)


RGBA = np.random.default_rng(1).integers(0, 256, (24, 30, 4), dtype=np.uint8)


@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize(
  ('mode', 'array'),
  [('RGBA', RGBA), ('RGB', RGBA[..., :3]), ('LA', RGBA[..., :2]), ('L', RGBA[..., 0]), ('L', RGBA[..., :1])],
)
def test_arrays_are_converted_as_pillow_converts_images(mode, array, channels):
  """Alpha is dropped, gray repeated, colours weighed into gray."""
  found = Preprocess((24, 30), channels, mean=(0.0,), std=(1 / 255,))([array])
  picture = Image.fromarray(array.squeeze())
  assert picture.mode == mode
  expected = np.asarray(picture.convert({1: 'L', 3: 'RGB'}[channels]), np.float32)
  np.testing.assert_allclose(found[0], expected.reshape(24, 30, channels), atol=1e-4)


A_LIST = r'takes a list of images.*'


@pytest.mark.parametrize(
  ('given', 'message'),
  [
    ([RGBA[..., :3] / 255], r'of float64 and shape .*\(255 \* image\)'),
    ([RGBA[..., :3].astype(np.uint16) << 8], r'of uint16 .*\(image >> 8\)'),
    ([RGBA[..., :3].transpose(2, 0, 1)], r'shape \(3, 24, 30\).*image.transpose\(1, 2, 0\)'),
    ([np.zeros((0, 4, 3), np.uint8)], r'shape \(0, 4, 3\)'),
    ([Image.new('F', (4, 4))], '32 bits a pixel'),
    ([Image.new('RGB', (0, 5))], 'An image has 0 x 5 pixels'),
    ([Image.new('La', (5, 5))], "mode 'La' cannot be read"),
    (['photo.jpg'], r'An image is a str .*; give one of Pillow, such as Image\.open'),
    ([[[1, 2], [3]]], 'An image is no array'),
    ([], 'give at least one'),
    # A single image is not taken for a list of its rows.
    (PHOTO, A_LIST + r'preprocess\(\[image\]\)'),
    (RGBA[..., 0], A_LIST + r'preprocess\(\[image\]\)'),
    (jnp.asarray(RGBA[..., :3]), A_LIST + r'preprocess\(\[image\]\)'),
    (None, A_LIST + r'preprocess\(\[Image\.open\(path\)\]\)'),
    (pathlib.Path('photo.jpg'), A_LIST + r'preprocess\(\[Image\.open\(path\)\]\)'),
  ],
)
def test_what_is_no_list_of_images_of_one_meaning_is_refused_in_one_sentence(given, message):
  with pytest.raises(UserError, match=message) as error:
    UNIT(given)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('antialias', [False, True])
@pytest.mark.parametrize('shape', [(60, 900), (901, 33), (700, 700)])
@pytest.mark.parametrize('shorter', [24, 33, 250])
def test_middle_of_a_large_image_is_that_of_the_whole_one(shape, shorter, antialias, monkeypatch):
  rows, columns = np.meshgrid(*(np.linspace(0, 255, extent) for extent in shape), indexing='ij')
  image = np.stack([rows, columns, (rows + columns) / 2], axis=-1).astype(np.uint8)  # smooth
  preprocess = dataclasses.replace(UNIT, shorter=shorter, antialias=antialias)
  expected = preprocess([image])
  expected_crop = central(Picture(image, 3, 'it'), (20, 16), shorter)
  monkeypatch.setattr(geometry, '_LARGEST_RESIZED', 0)
  step = 255 / shorter  # between two pixels of the resized image, at most
  np.testing.assert_allclose(preprocess([image]), expected, atol=step + 1)
  crop = central(Picture(image, 3, 'it'), (20, 16), shorter)
  np.testing.assert_allclose(crop.astype(float), expected_crop.astype(float), atol=step + 1)


@pytest.mark.parametrize('antialias', [False, True])
@pytest.mark.parametrize('shape', [(1, 60_000), (60_000, 2)])
def test_strip_whose_resized_image_would_take_gigabytes_is_cut_before(shape, antialias, monkeypatch):
  resize, sizes = Preprocess._resize, []

  def counted(self, image, size):
    sizes.append(size)
    return resize(self, image, size)

  monkeypatch.setattr(Preprocess, '_resize', counted)
  image = np.full((*shape, 3), 77, np.uint8)
  image[shape[0] // 3 : -(shape[0] // 3) or None, shape[1] // 3 : -(shape[1] // 3) or None] = 99
  found = Preprocess((224, 224), mean=(0.0,), std=(1 / 255,), shorter=256, antialias=antialias)([image])
  assert found.shape == (1, 224, 224, 3)
  np.testing.assert_allclose(found, 99, atol=1e-3)
  assert np.prod(sizes[0]) < 2**22


def objects(images: list) -> np.ndarray:
  """A one-dimensional array of images, as pandas has them."""
  result = np.empty(len(images), object)
  result[:] = images
  return result


@pytest.mark.parametrize(
  'given', [iter, lambda images: map(np.asarray, images), objects, lambda images: jnp.stack(images)]
)
def test_images_may_come_from_an_iterator_or_an_array_of_any_kind(given):
  images = [RGBA[..., :3], 255 - RGBA[..., :3]]
  np.testing.assert_array_equal(UNIT(given(images)), UNIT(images))


def test_file_of_pillow_that_cannot_be_decoded_is_named(tmp_path):
  file = tmp_path / 'photo.jpg'
  PHOTO.save(file)
  with Image.open(file) as closed:
    pass
  cut = tmp_path / 'cut.jpg'
  cut.write_bytes(file.read_bytes()[:1500])
  for image, name in ((closed, file), (Image.open(cut), cut)):
    with pytest.raises(UserError, match='cannot be decoded') as error:
      UNIT([image])
    assert str(error.value).startswith(str(name))


@pytest.mark.parametrize('form', ['jpeg', 'png', 'webp'])
def test_damaged_metadata_are_ignored_as_in_training(form):
  data = io.BytesIO()
  PHOTO.save(data, form, exif=b'Exif\0\0no TIFF at all')
  pixels = Picture(data.getvalue(), 3, 'x').pixels()
  np.testing.assert_array_equal(UNIT([Image.open(data)]), UNIT([pixels]))
