"""Small images of every encoding, and how pipelines decode them."""

import contextlib
import io
import os
import pathlib
import tempfile
from collections.abc import Iterator

import numpy as np
from PIL import Image

from vit_jax.data.config import DataConfig
from vit_jax.data.transforms import eval_image, train_image
from vit_jax.foundation.errors import UserError


def write(folder: pathlib.Path) -> None:
  """An encoded image of each kind; they are small, so that their headers are damaged as often as their pixels."""
  y, x = np.mgrid[0:30, 0:40]
  waves = [127 + 100 * np.sin(y / 3 + x / 4), 255 * y / 30, 255 * x / 40]
  pixels = np.stack(waves, -1).astype(np.uint8)
  picture = Image.fromarray(pixels)
  frames = [Image.fromarray(np.roll(pixels, 5 * n, 1)) for n in range(1, 4)]
  deep = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
  exif = Image.Exif()
  exif[0x0112] = 6
  for name, image, options in (
    ('jpeg', picture, {}),
    ('444.jpeg', picture, {'subsampling': 0, 'quality': 95}),
    ('progressive.jpeg', picture, {'progressive': True}),
    ('gray.jpeg', picture.convert('L'), {}),
    ('cmyk.jpeg', picture.convert('CMYK'), {}),
    ('restart_exif.jpeg', picture, {'restart_marker_blocks': 7, 'exif': exif}),
    ('png', picture, {}),
    ('palette.png', picture.quantize(), {'transparency': 3}),
    ('deep.png', deep, {}),
    ('animated.png', picture, {'save_all': True, 'append_images': frames}),
    ('webp', picture, {}),
    ('lossless_exif.webp', picture.convert('RGBA'), {'lossless': True, 'exif': exif}),
    ('animated.webp', picture, {'save_all': True, 'append_images': frames}),
    ('gif', picture, {}),
    ('animated.gif', picture, {'save_all': True, 'append_images': frames}),
    ('tiff', picture, {'compression': 'tiff_lzw'}),
    ('bmp', picture, {}),
  ):
    file = io.BytesIO()
    image.save(file, name.rpartition('.')[2], **options)
    (folder / f'image.{name}').write_bytes(file.getvalue())


def read(folder: pathlib.Path) -> list[bytes]:
  """The pixels of each image as a training and an evaluation get them, in colour and in gray.

  Raises:
    UserError: for an image that cannot be decoded, which it names.
    AssertionError: another image is named, or something is written to stderr.
  """
  found = []
  for path in sorted(folder.iterdir()):
    with _stderr(path.suffix != '.tiff'):  # libtiff writes there, and Pillow has no switch for it
      for channels in (3, 1):
        options = DataConfig(image_size=(32, 48), channels=channels)
        try:
          images = (
            train_image(path.read_bytes(), path.name, options, np.random.default_rng(0)),
            eval_image(path.read_bytes(), path.name, options, 'resize', None),
          )
        except UserError as error:
          assert path.name in str(error), str(error)
          raise
        for image in images:
          assert image.shape == (32, 48, channels) and image.dtype == np.uint8
          found.append(image.tobytes())
  return found


@contextlib.contextmanager
def _stderr(silent: bool) -> Iterator[None]:
  """What this process writes to stderr, its C libraries too, is dropped; an AssertionError if it shall be silent."""
  kept = os.dup(2)
  with tempfile.TemporaryFile() as said:
    os.dup2(said.fileno(), 2)
    try:
      yield
    finally:
      os.dup2(kept, 2)
      os.close(kept)
      said.seek(0)
      text = said.read().decode(errors='replace')
      assert not (silent and text), text
