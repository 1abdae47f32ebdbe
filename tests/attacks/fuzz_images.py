"""Encoded images of every kind, damages that only images have, and decoding in all the ways that pipelines do."""

import contextlib
import functools
import itertools
import os
import pathlib
import random
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from mutations import mutated
from PIL import Image

from vit_jax.data.config import DataConfig
from vit_jax.data.transforms import eval_image, train_image
from vit_jax.foundation.errors import UserError

NOISY = 'tiff'  # libtiff writes to stderr, and Pillow has no switch for it


def write(folder: pathlib.Path) -> None:
  """An encoded image of each kind, (120, 160) pixels."""
  y, x = np.mgrid[0:120, 0:160]
  waves = [127 + 100 * np.sin(y / 9 + x / 13), 255 * y / 120, 255 * x / 160]
  pixels = np.stack(waves, -1).astype(np.uint8)
  pixels[40:80, 50:90] = np.random.default_rng(0).integers(0, 256, (40, 40, 3))
  picture = Image.fromarray(pixels)
  frames = [Image.fromarray(np.roll(pixels, 20 * n, 1)) for n in range(1, 4)]
  deep = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
  exif = Image.Exif()
  exif[0x0112] = 6
  animated = {'save_all': True, 'append_images': frames}
  kinds: dict[str, tuple[Image.Image, dict[str, Any]]] = {
    'baseline.jpeg': (picture, {}),
    '444.jpeg': (picture, {'subsampling': 0, 'quality': 95}),
    'progressive.jpeg': (picture, {'progressive': True}),
    'gray.jpeg': (picture.convert('L'), {}),
    'cmyk.jpeg': (picture.convert('CMYK'), {}),
    'restart_exif.jpeg': (picture, {'restart_marker_blocks': 7, 'exif': exif}),
    'colour.png': (picture, {}),
    'palette.png': (picture.quantize(), {'transparency': 3}),
    '16_bits.png': (deep, {}),
    'animated.png': (picture, animated),
    'lossy.webp': (picture, {}),
    'lossless_exif.webp': (picture.convert('RGBA'), {'lossless': True, 'exif': exif}),
    'animated.webp': (picture, animated),
    'single.gif': (picture, {}),
    'animated.gif': (picture, animated),
    'lzw.tiff': (picture, {'compression': 'tiff_lzw'}),
    'colour.bmp': (picture, {}),
  }
  for name, (image, options) in kinds.items():
    image.save(folder / name, **options)


def damaged(content: bytes, rng: random.Random, others: list[bytes]) -> bytes:
  """Any damage of a file, one of the header, another file's end, another size, or noise."""
  kind = rng.randrange(6)
  if kind == 0:
    return mutated(content[:100], rng, is_json=False) + content[100:]
  if kind == 1:  # a piece is missing or there twice, or is another file's
    other = rng.choice([content, rng.choice(others)])
    return content[: rng.randrange(len(content))] + other[rng.randrange(len(other)) :]
  if kind == 2:
    return _other_size(content, rng)
  if kind == 3:
    return content[: rng.choice([0, 12])] + rng.randbytes(rng.randrange(1, 3000))
  return mutated(content, rng, is_json=False)


def _other_size(content: bytes, rng: random.Random) -> bytes:
  """Wherever the file has its width or height, in either order of bytes, it says something else."""
  for side, bias in ((120, 0), (160, 0), (119, 1), (159, 1)):
    new = max(rng.choice((0, 1, 7, 119, 121, 1000, 16383, 32767, 65535)) - bias, 0)
    for order in ('big', 'little'):
      content = content.replace(side.to_bytes(2, order), new.to_bytes(2, order))
  return content


def read(folder: pathlib.Path) -> list[bytes]:
  """The pixels of all images, decoded for training and evaluation, in colour and gray.

  Raises:
    UserError: one cannot be decoded.
    AssertionError: an error does not name its image, or something is written to stderr.
  """
  found, errors = [], []
  for path, channels, training in itertools.product(sorted(folder.iterdir()), (3, 1), (True, False)):
    with tempfile.TemporaryFile() as said:
      with _stderr_to(said.fileno()):
        try:
          found.append(_decoded(path.read_bytes(), path.name, channels, training))
        except UserError as error:
          assert path.name in str(error) and str(error).endswith('.'), error
          errors.append(error)
      said.seek(0)
      noise = said.read()
    assert not noise or path.suffix == f'.{NOISY}', noise
  if errors:
    raise errors[0]
  return found


@functools.lru_cache(maxsize=200)
def _decoded(content: bytes, name: str, channels: int, training: bool) -> bytes:
  options = DataConfig(image_size=(32, 48), channels=channels)
  if training:
    image = train_image(content, name, options, np.random.default_rng(0))
  else:
    image = eval_image(content, name, options, 'resize', None)
  assert image.shape == (32, 48, channels) and image.dtype == np.uint8
  return image.tobytes()


@contextlib.contextmanager
def _stderr_to(file: int) -> Iterator[None]:
  """What this process, its C libraries too, writes to stderr goes to a file."""
  kept = os.dup(2)
  os.dup2(file, 2)
  try:
    yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)
