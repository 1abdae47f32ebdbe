"""Decoding with libjpeg-turbo against Pillow, which decodes everything at full size."""

import io

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import jpeg
from vit_jax.data.decode import Picture
from vit_jax.foundation.errors import UserError

pytest.importorskip('simplejpeg', reason='no wheel of it here; Pillow decodes')


def noise(height, width, channels=3):
  """Colours that differ between neighbours, so that a wrong row or a wrong chroma shows."""
  coarse = np.random.default_rng(0).integers(0, 256, (-(-height // 3), -(-width // 3), channels), np.uint8)
  return coarse.repeat(3, 0).repeat(3, 1)[:height, :width]


def encode(pixels, form='jpeg', mode=None, **options):
  file = io.BytesIO()
  Image.fromarray(pixels.squeeze()).convert(mode).save(file, form, **options)
  return file.getvalue()


def by_pillow(data, mode='RGB', factor=1):
  image = Image.open(io.BytesIO(data))
  size = (image.width // factor, image.height // factor) if factor > 1 else None
  image.draft(mode if mode == 'L' else None, size)
  return np.asarray(image.convert(mode)).reshape(*image.size[::-1], -1)


VARIANTS = {
  '4:4:4': {'subsampling': '4:4:4'},
  '4:2:2': {'subsampling': '4:2:2'},
  '4:2:0': {'subsampling': '4:2:0'},
  'progressive': {'progressive': True},
  'restart intervals': {'restart_marker_blocks': 5},
  'colours not converted': {'keep_rgb': True},
  'tables of its own': {'optimize': True, 'quality': 95},
}


@pytest.mark.parametrize('variant', VARIANTS)
@pytest.mark.parametrize('size', [(97, 131), (16, 16), (33, 250)])
@pytest.mark.parametrize('mode', ['RGB', 'L'])
def test_box_equals_that_of_the_whole_picture(variant, size, mode):
  data = encode(noise(*size), **VARIANTS[variant])
  assert jpeg.read_header(data)[:2] == size
  whole = by_pillow(data, mode)
  rng = np.random.default_rng(1)
  for _ in range(20):
    top, bottom = sorted(rng.choice(size[0] + 1, 2, replace=False))
    left, right = sorted(rng.choice(size[1] + 1, 2, replace=False))
    box = top, left, bottom - top, right - left
    got, same = Picture(data, len(mode), 'x').part(box)
    assert same == box
    np.testing.assert_array_equal(got[top:bottom], whole[top:bottom])


@pytest.mark.parametrize('variant', VARIANTS)
@pytest.mark.parametrize('factor', [2, 4, 8])
def test_upper_rows_at_reduced_scale_equal_those_of_the_whole(variant, factor):
  data = encode(noise(197, 230), **VARIANTS[variant])
  whole = by_pillow(data, factor=factor)
  for bottom in (50, 64, 99, 196, 197):
    got = jpeg.upper_rows(data, jpeg.read_header(data), bottom, factor, 3)
    rows = bottom // factor
    assert len(got) >= -(-bottom // factor) and got.shape[1:] == (-(-230 // factor), 3)
    np.testing.assert_array_equal(got[:rows], whole[:rows])


def test_gray_file_gives_one_or_three_channels():
  data = encode(noise(50, 40, 1))
  assert jpeg.read_header(data)[:2] == (50, 40)
  for channels in (1, 3):
    got, _ = Picture(data, channels, 'x').part((7, 9, 20, 30))
    np.testing.assert_array_equal(got[:27], np.repeat(by_pillow(data, 'L')[:27], channels, 2))


def test_rows_below_the_box_are_not_decoded():
  data = encode(noise(800, 100))
  assert len(jpeg.upper_rows(data, jpeg.read_header(data), 100, 1, 3)) < 120


def test_box_at_reduced_scale_is_where_part_says():
  y, x = np.mgrid[0:800, 0:1000]
  pixels = np.stack([y * 255 // 800, x * 255 // 1000, (y + x) * 255 // 1800], -1).astype(np.uint8)
  got, box = Picture(encode(pixels, quality=95), 3, 'x').part((300, 202, 401, 450), (100, 100))
  assert got.shape[1:] == (250, 3) and box == (75, 50.5, 100.25, 112.5)
  expected = pixels.reshape(200, 4, 250, 4, 3).mean((1, 3))[: len(got)]
  assert np.abs(got - expected).max() < 4


def exif(orientation):
  tags = Image.Exif()
  tags[0x0112 if orientation else 0x010F] = orientation or 'a maker'
  return tags


UNCOMMON = {
  'turned': encode(noise(30, 40), exif=exif(6)),
  'turned, as XMP says': encode(noise(30, 40), xmp=b'<rdf tiff:Orientation="6"/>', exif=exif(None)),
  'CMYK': encode(noise(30, 40), mode='CMYK'),
  'without its end': encode(noise(30, 40))[:-2],
  'with something behind it': encode(noise(30, 40)) + b'\0',
  'PNG': encode(noise(30, 40), 'png'),
  'nothing but a start': b'\xff\xd8\xff\xd9',
}


@pytest.mark.parametrize('kind', UNCOMMON)
def test_uncommon_kinds_are_left_to_pillow(kind):
  assert jpeg.read_header(UNCOMMON[kind]) is None


def test_upright_files_are_common():
  assert jpeg.read_header(encode(noise(30, 40), exif=exif(1)))
  assert jpeg.read_header(encode(noise(30, 40), exif=exif(None)))
  assert jpeg.read_header(encode(noise(30, 40), exif=b'Exif\0\0unreadable'))
  assert jpeg.read_header(encode(noise(30, 40), xmp=b'<rdf tiff:Orientation="1"/>'))


def test_without_simplejpeg_the_pixels_are_the_same(monkeypatch):
  data = encode(noise(300, 500))
  cases = [((100, 120, 130, 200), None), ((10, 20, 270, 480), (60, 90)), ((0, 0, 300, 500), (150, 200))]
  fast = [Picture(data, 3, 'x').part(*case) for case in cases]
  monkeypatch.setattr(jpeg, 'simplejpeg', None)
  for case, (pixels, box) in zip(cases, fast, strict=True):
    slow, same = Picture(data, 3, 'x').part(*case)
    assert box == same
    rows = int(box[0] + box[2])
    np.testing.assert_array_equal(slow[:rows], pixels[:rows])


def test_file_that_states_its_size_twice_is_refused():
  data = encode(noise(64, 64))
  place = jpeg.read_header(data).place - 5
  frame = data[place : place + 19]
  other = frame[:5] + (32).to_bytes(2) + frame[7:]
  with pytest.raises(UserError, match='the record cannot be decoded'):
    Picture(data[:place] + other + data[place:], 3, 'the record').pixels()
