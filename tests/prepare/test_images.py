"""Images on their way into a record."""

import dataclasses
import io
import os
import zipfile

import cv2
import numpy as np
import pytest
from image_bytes import jpeg, png
from PIL import ExifTags, Image

from vit_jax.foundation.errors import BadImage
from vit_jax.prepare import images, shard_plan
from vit_jax.prepare.images import Shrinking

NOISE = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
SMOOTH = cv2.resize(NOISE[:3, :4], (80, 60), interpolation=cv2.INTER_CUBIC)


def item_of(folder, content, name='a/1.jpg'):
  (folder / 'file').write_bytes(content)
  return shard_plan.Item(name, str(folder / 'file'), None, len(content), [0])


def pixels_of(content):
  return np.asarray(Image.open(io.BytesIO(content)))


@pytest.mark.parametrize(
  'shrinking,size,expected',
  [
    (Shrinking(), (600, 800), (600, 800)),
    (Shrinking(longest_side=400), (600, 800), (300, 400)),
    (Shrinking(longest_side=400), (800, 600), (400, 300)),
    (Shrinking(shortest_side=300), (600, 800), (300, 400)),
    (Shrinking(shortest_side=300), (300, 4000), (300, 4000)),
    (Shrinking(longest_side=800), (600, 800), (600, 800)),
    (Shrinking(longest_side=10), (1, 1000), (1, 10)),
    (Shrinking(longest_side=500, shortest_side=300), (600, 6000), (50, 500)),
  ],
)
def test_longest_and_shortest_side_limit_the_size(shrinking, size, expected):
  assert shrinking.size(*size) == expected


@pytest.mark.parametrize('encode', [jpeg, png])
def test_small_images_are_copied_byte_for_byte(tmp_path, encode):
  content = encode(NOISE)
  assert images.load(item_of(tmp_path, content), Shrinking()) == content
  assert images.load(item_of(tmp_path, content), Shrinking(longest_side=80, shortest_side=60)) == content


@pytest.mark.parametrize('encode', [jpeg, png])
def test_shrunk_images_are_jpegs_of_area_means(tmp_path, encode):
  loaded = {
    quality: images.load(item_of(tmp_path, encode(SMOOTH)), Shrinking(longest_side=40, quality=quality))
    for quality in (50, 95)
  }
  assert len(loaded[50]) < len(loaded[95])
  found = pixels_of(loaded[95])
  assert Image.open(io.BytesIO(loaded[95])).format == 'JPEG' and found.shape == (30, 40, 3)
  expected = SMOOTH.reshape(30, 2, 40, 2, 3).astype(float).mean((1, 3))  # the mean of each two by two
  assert np.abs(found - expected).mean() < 3


def test_orientation_is_applied_when_shrinking_and_kept_when_copying(tmp_path):
  exif = Image.Exif()
  exif[ExifTags.Base.Orientation] = 6  # to be turned by a quarter, clockwise
  content = jpeg(SMOOTH, exif=exif)
  assert images.load(item_of(tmp_path, content), Shrinking(shortest_side=60)) == content
  shrunk = pixels_of(images.load(item_of(tmp_path, content), Shrinking(shortest_side=30)))
  expected = cv2.resize(np.rot90(SMOOTH, -1), (30, 40), interpolation=cv2.INTER_AREA)
  assert shrunk.shape == (40, 30, 3) and np.abs(shrunk - expected.astype(float)).mean() < 4


@pytest.mark.parametrize(
  'content,reason',
  [
    (b'', r'is empty \(0 bytes\)'),
    (b'hello', 'is not an image of a known format'),
    (jpeg(NOISE)[:-200], r'cannot be decoded \(.*truncated'),
    (png(NOISE)[:-500], r'cannot be decoded \('),
  ],
)
def test_bad_images_are_named_with_a_reason(tmp_path, content, reason):
  with pytest.raises(BadImage, match=rf'^a/1.jpg {reason}'):
    images.load(item_of(tmp_path, content), Shrinking())


def test_a_decompression_bomb_is_bad(tmp_path, monkeypatch):
  monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 60 * 80 // 2 - 1)
  for encode in (jpeg, png):
    with pytest.raises(BadImage, match=r'a/1.jpg is refused \('):
      images.load(item_of(tmp_path, encode(NOISE)), Shrinking())


def test_unreadable_and_huge_images_are_bad(tmp_path, monkeypatch):
  os.mkfifo(tmp_path / 'pipe')  # opening one waits forever, and a device may have no end
  for place, reason in (
    ('none', r'\(No such file'),
    ('pipe', 'it is not a regular'),
    ('/dev/zero', 'it is not a regular'),
  ):
    with pytest.raises(BadImage, match=rf'^a/1.jpg cannot be read .*{reason}'):
      images.load(shard_plan.Item('a/1.jpg', str(tmp_path / place), None, None, [0]), Shrinking())
  with zipfile.ZipFile(tmp_path / 'x.zip', 'w', zipfile.ZIP_DEFLATED) as archive:
    archive.writestr('bomb.png', bytes(2**20))
    archive.writestr('good.jpg', jpeg(NOISE))

  def in_zip(name, size):
    return shard_plan.Item(name, str(tmp_path / 'x.zip'), name, size, [0])

  assert images.load(in_zip('good.jpg', 9), Shrinking()) == jpeg(NOISE)
  monkeypatch.setattr(images, '_LARGEST', 2**19)
  with pytest.raises(BadImage, match=r'bomb.png is refused'):
    images.load(in_zip('bomb.png', 2**20), Shrinking())
  with pytest.raises(BadImage, match=r'a/1.jpg is refused'):
    images.load(dataclasses.replace(item_of(tmp_path, bytes(2**19 + 1)), size=None), Shrinking())
