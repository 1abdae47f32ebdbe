import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps, PngImagePlugin

from vit_jax.data.decode import Picture
from vit_jax.data.transforms import resize
from vit_jax.foundation.errors import UserError


def decode(data, channels=3):
  picture = Picture(data, channels, 'the record')
  pixels = picture.pixels()
  assert pixels.dtype == np.uint8 and pixels.shape == (*picture.size, channels)
  return pixels


def encode(image, form, **options):
  file = io.BytesIO()
  image.save(file, form, **options)
  return file.getvalue()


def smooth(height, width, channels=3):
  """A picture that JPEG keeps closely: (height, width, channels) uint8, different towards each corner."""
  y, x = np.mgrid[0:height:1.0, 0:width:1.0]
  planes = [20 + 200 * y / height, 230 - 200 * x / width, 128 + 60 * (y / height - x / width)]
  return np.stack(planes[:channels], -1).round().astype(np.uint8)


def close(a, b, tolerance):
  """Within a root-mean-square distance, in steps of uint8."""
  assert a.shape == b.shape
  assert np.sqrt(((a.astype(float) - b) ** 2).mean()) <= tolerance


@pytest.mark.parametrize('form,tolerance', [('png', 0), ('bmp', 0), ('tiff', 0), ('jpeg', 4), ('webp', 4)])
def test_colour_files_are_rgb_or_luma(form, tolerance):
  pixels = smooth(40, 56)
  close(decode(encode(Image.fromarray(pixels), form)), pixels, tolerance)
  luma = pixels @ [0.299, 0.587, 0.114]  # ITU-R 601
  close(decode(encode(Image.fromarray(pixels), form), 1)[..., 0], luma.round(), tolerance + 1)


@pytest.mark.parametrize('form,tolerance', [('png', 0), ('jpeg', 4), ('tiff', 0), ('gif', 0)])
def test_grayscale_files_are_repeated_or_kept(form, tolerance):
  pixels = smooth(40, 56, 1)
  data = encode(Image.fromarray(pixels[..., 0]), form)
  close(decode(data), np.repeat(pixels, 3, -1), tolerance)
  close(decode(data, 1), pixels, tolerance)


def test_one_bit_becomes_black_and_white():
  bits = np.eye(9, dtype=bool)
  np.testing.assert_array_equal(decode(encode(Image.fromarray(bits), 'png'), 1)[..., 0], 255 * bits)


@pytest.mark.parametrize('orientation', [1, 6])
@pytest.mark.parametrize('bits, white_is_zero', [(12, False), (16, False), (16, True)])
def test_tiffs_of_more_than_eight_bits_have_their_whole_range_and_black_is_zero(
  bits, white_is_zero, orientation
):
  """Pillow opens 12 bits as 0 to 4,095 of 65,535, and inverts only 8 where the file says that 0 is white."""
  values = np.linspace(0, 2**bits - 1, 24).astype('<u2').reshape(4, 6)
  pixels = values.tobytes()
  if bits == 12:  # the first bit of a byte is its highest, whatever the order of bytes
    packed = ''.join(f'{value:012b}' for value in values.ravel().tolist())
    pixels = int(packed, 2).to_bytes(len(packed) // 8)
  fields = {256: 6, 257: 4, 258: bits, 259: 1, 262: int(not white_is_zero), 273: 134, 274: orientation}
  fields |= {277: 1, 278: 4, 279: len(pixels)}
  entries = b''.join(struct.pack('<HHII', tag, 4, 1, value) for tag, value in fields.items())
  tiff = b'II*\0' + struct.pack('<IH', 8, len(fields)) + entries + bytes(4) + pixels
  expected = values >> (bits - 8)
  expected = 255 - expected if white_is_zero else expected
  np.testing.assert_array_equal(
    decode(tiff, 1)[..., 0], np.rot90(expected, -1) if orientation == 6 else expected
  )


@pytest.mark.parametrize(
  'ink,colour',
  [((255, 0, 0, 0), (0, 255, 255)), ((0, 0, 255, 0), (255, 255, 0)), ((0, 0, 0, 255), (0, 0, 0))],
)
@pytest.mark.parametrize('form', ['jpeg', 'tiff'])  # Pillow writes JPEG's CMYK inverted, as Adobe does
def test_cmyk_becomes_rgb(ink, colour, form):
  data = encode(Image.new('CMYK', (16, 16), ink), form)
  if form == 'jpeg':
    assert b'Adobe' in data
  close(decode(data), np.full((16, 16, 3), colour), 3)


def test_sixteen_bits_keep_the_upper_eight():
  values = np.random.default_rng(0).integers(0, 2**16, (8, 9, 3), np.uint16)
  gray = cv2.imencode('.png', values[..., 0])[1].tobytes()
  np.testing.assert_array_equal(decode(gray, 1)[..., 0], values[..., 0] >> 8)
  np.testing.assert_array_equal(decode(gray)[..., 2], values[..., 0] >> 8)
  colour = cv2.imencode('.png', values[..., ::-1])[1].tobytes()
  np.testing.assert_array_equal(decode(colour), values >> 8)
  tiff = encode(Image.fromarray(values[..., 0]), 'tiff')
  np.testing.assert_array_equal(decode(tiff, 1)[..., 0], values[..., 0] >> 8)


def test_palette_and_alpha_give_the_colours_below():
  palette = Image.new('P', (2, 1))
  palette.putpalette([10, 20, 30, 200, 100, 50])
  palette.putpixel((1, 0), 1)
  colours = [[[10, 20, 30], [200, 100, 50]]]
  np.testing.assert_array_equal(decode(encode(palette, 'png', transparency=1)), colours)
  np.testing.assert_array_equal(decode(encode(palette, 'gif', transparency=1))[0, 0], [10, 20, 30])
  pixels = np.dstack([smooth(7, 5), np.zeros((7, 5), np.uint8)])
  np.testing.assert_array_equal(decode(encode(Image.fromarray(pixels), 'png')), pixels[..., :3])
  gray = Image.merge('LA', (Image.new('L', (3, 3), 77), Image.new('L', (3, 3), 5)))
  assert (decode(encode(gray, 'png')) == 77).all() and (decode(encode(gray, 'png'), 1) == 77).all()


def test_animation_gives_its_first_frame():
  frames = [Image.new('RGB', (5, 4), colour) for colour in ('red', 'lime', 'blue')]
  for form, options in (('gif', {}), ('webp', {'lossless': True}), ('png', {})):
    data = encode(frames[0], form, save_all=True, append_images=frames[1:], **options)
    assert (decode(data) == [255, 0, 0]).all(), form


# How a file of each EXIF orientation stores the upright picture.
STORED = {
  1: lambda x: x,
  2: lambda x: x[:, ::-1],
  3: lambda x: x[::-1, ::-1],
  4: lambda x: x[::-1],
  5: lambda x: x.transpose(1, 0, 2),
  6: lambda x: np.rot90(x, 1),
  7: lambda x: np.rot90(x, 2).transpose(1, 0, 2),
  8: lambda x: np.rot90(x, -1),
}


@pytest.mark.parametrize('form', ['jpeg', 'png', 'webp', 'tiff'])
@pytest.mark.parametrize('orientation', STORED)
def test_exif_orientation_is_applied(orientation, form):
  pixels = smooth(32, 48)
  exif = Image.Exif()
  exif[0x0112] = orientation
  data = encode(Image.fromarray(np.ascontiguousarray(STORED[orientation](pixels))), form, exif=exif)
  assert Picture(data, 3, 'x').size == (32, 48)
  close(decode(data), pixels, 6)
  if form == 'jpeg':
    assert Picture(data, 3, 'x').pixels((16, 24)).shape == (16, 24, 3)


@pytest.mark.parametrize('orientation', STORED)
def test_a_box_of_a_turned_jpeg_is_at_its_place_at_a_reduced_scale(orientation):
  """Beside the mean of all pixels: 757 and 1,003 leave the file's last pixels at 1/8 partly filled."""
  coarse = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)
  pixels = cv2.resize(coarse, (1003, 757), interpolation=cv2.INTER_CUBIC)
  exif, (top, left, height, width) = Image.Exif(), (96, 120, 480, 640)
  exif[0x0112] = orientation
  stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](pixels)))
  file = encode(stored, 'jpeg', exif=exif, quality=95)
  got, box = Picture(file, 3, 'x').part((top, left, height, width), (60, 80))
  assert got.shape[1] == 126 and box[2:] == (60, 80)
  expected = cv2.resize(
    pixels[top : top + height, left : left + width], (80, 60), interpolation=cv2.INTER_AREA
  )
  close(resize(got, (60, 80), box), expected, 3)


def xmp(orientation: int) -> bytes:
  return f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><x tiff:Orientation="{orientation}"/></x:xmpmeta>'.encode()


def text_chunk(orientation: int, kind: str) -> PngImagePlugin.PngInfo:
  """What Adobe's programs (XMP) or ImageMagick (EXIF in hexadecimal digits) write into a PNG."""
  info = PngImagePlugin.PngInfo()
  if kind == 'xmp':
    info.add_itxt('XML:com.adobe.xmp', xmp(orientation).decode())
  else:
    exif = Image.Exif()
    exif[0x0112] = orientation
    raw = exif.tobytes()
    info.add_text('Raw profile type exif', f'\nexif\n{len(raw):8}\n{raw.hex()}\n')
  return info


@pytest.mark.parametrize('orientation', [3, 6])
@pytest.mark.parametrize(
  ('form', 'options'),
  [
    ('jpeg', lambda o: {'xmp': xmp(o)}),
    ('webp', lambda o: {'xmp': xmp(o), 'lossless': True}),
    ('png', lambda o: {'pnginfo': text_chunk(o, 'xmp')}),
    ('png', lambda o: {'pnginfo': text_chunk(o, 'exif')}),
  ],
  ids=['jpeg', 'webp', 'png', 'imagemagick'],
)
def test_orientation_beside_exif_is_applied_as_pillow_does(orientation, form, options):
  data = encode(Image.fromarray(smooth(32, 48)), form, **options(orientation))
  expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
  assert expected.shape == ((48, 32, 3) if orientation == 6 else (32, 48, 3))
  assert Picture(data, 3, 'x').size == expected.shape[:2]
  np.testing.assert_array_equal(decode(data), expected)


@pytest.mark.parametrize('form', ['jpeg', 'png', 'webp'])
@pytest.mark.parametrize('damaged', [b'II*', b'no TIFF at all', b'MM\0*\0\0\0\x08\0\x09\0'])
@pytest.mark.filterwarnings('error')
def test_unreadable_exif_is_ignored(form, damaged):
  image = Image.fromarray(smooth(20, 30))
  data = encode(image, form, exif=b'Exif\0\0' + damaged)
  np.testing.assert_array_equal(decode(data), decode(encode(image, form)))


@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize('at_least', [(1, 1), (60, 10), (37.5, 50), (75, 100), (76, 20), (400, 9)])
def test_jpeg_at_reduced_scale_is_large_enough_and_looks_the_same(at_least, channels):
  pixels = smooth(300, 400, channels)
  picture = Picture(encode(Image.fromarray(pixels.squeeze()), 'jpeg', quality=95), channels, 'x')
  assert picture.size == (300, 400)
  got = picture.pixels(at_least)
  assert all(side >= min(least, whole) for side, least, whole in zip(got.shape, at_least, (300, 400)))
  factor = max(f for f in (1, 2, 4, 8) if f == 1 or (300 / f >= at_least[0] and 400 / f >= at_least[1]))
  assert got.shape == (-(-300 // factor), 400 // factor, channels)
  close(cv2.resize(got, (400, 300)).reshape(300, 400, channels), pixels, 3)


def png_header(width, height):
  """A PNG whose header claims a size, with nothing to fill it."""

  def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))

  header = chunk(b'IHDR', struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0))
  return b'\x89PNG\r\n\x1a\n' + header + chunk(b'IDAT', zlib.compress(b'')) + chunk(b'IEND', b'')


def test_decompression_bomb_is_refused_by_its_header():
  with pytest.raises(UserError, match=r'the record .*2500000000 pixels.*limit of \d+ pixels'):
    decode(png_header(50_000, 50_000))


JPEG = encode(Image.fromarray(smooth(300, 300)), 'jpeg')
PNG = encode(Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)), 'png')


@pytest.mark.parametrize(
  'data,message',
  [
    (b'', r'the record is empty \(0 bytes\)'),
    (b'this is a text file', 'the record is not an image of a known format'),
    (JPEG[: len(JPEG) // 2], r'the record cannot be decoded \(image file is truncated'),
    (JPEG[:-20], r'the record cannot be decoded \(image file is truncated'),
    (PNG[: len(PNG) // 2], r'the record cannot be decoded \(image file is truncated'),
    (PNG[:200] + bytes(400) + PNG[600:], r'the record cannot be decoded \('),
    (encode(Image.new('F', (4, 4)), 'tiff'), r'the record cannot be decoded \(it has 32 bits a pixel'),
  ],
)
def test_undecodable_image_is_named_with_the_reason(data, message):
  with pytest.raises(UserError, match=message) as caught:
    decode(data)
  assert '\n' not in str(caught.value) and str(caught.value).endswith('.')
