"""Damages images in every way and decodes them: each must give pixels or an error that names it.

  python tests/fuzz_decoder.py --count=2000

The decoding runs in a process of its own, so that a crash of a C library is seen, and is counted rather than
the end; an image that takes longer than --limit is a hang. Image number n is the same whatever the count.
"""

import argparse
import collections
import contextlib
import faulthandler
import io
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
from PIL import Image

from vit_jax.data.config import DataConfig
from vit_jax.data.transforms import eval_image, train_image
from vit_jax.foundation.errors import UserError


def whole_images() -> dict[str, bytes]:
  """An encoded image of each kind."""
  y, x = np.mgrid[0:120, 0:160]
  waves = [127 + 100 * np.sin(y / 9 + x / 13), 255 * y / 120, 255 * x / 160]
  pixels = np.stack(waves, -1).astype(np.uint8)
  pixels[40:80, 50:90] = np.random.default_rng(0).integers(0, 256, (40, 40, 3))
  picture = Image.fromarray(pixels)
  frames = [Image.fromarray(np.roll(pixels, 20 * n, 1)) for n in range(1, 4)]
  deep = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
  exif = Image.Exif()
  exif[0x0112] = 6

  def encoded(image: Image.Image, form: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()

  return {
    'jpeg': encoded(picture, 'jpeg'),
    'jpeg 4:4:4': encoded(picture, 'jpeg', subsampling=0, quality=95),
    'jpeg progressive': encoded(picture, 'jpeg', progressive=True),
    'jpeg gray': encoded(picture.convert('L'), 'jpeg'),
    'jpeg cmyk': encoded(picture.convert('CMYK'), 'jpeg'),
    'jpeg restart, exif': encoded(picture, 'jpeg', restart_marker_blocks=7, exif=exif),
    'png': encoded(picture, 'png'),
    'png palette': encoded(picture.quantize(), 'png', transparency=3),
    'png 16 bits': encoded(deep, 'png'),
    'png animated': encoded(picture, 'png', save_all=True, append_images=frames),
    'webp': encoded(picture, 'webp'),
    'webp lossless, exif': encoded(picture.convert('RGBA'), 'webp', lossless=True, exif=exif),
    'webp animated': encoded(picture, 'webp', save_all=True, append_images=frames),
    'gif': encoded(picture, 'gif'),
    'gif animated': encoded(picture, 'gif', save_all=True, append_images=frames),
    'tiff': encoded(picture, 'tiff', compression='tiff_lzw'),
    'bmp': encoded(picture, 'bmp'),
  }


def truncated(data: bytes, rng: np.random.Generator, others: list[bytes]) -> bytes:
  return data[: rng.integers(0, len(data))]


def flipped(data: bytes, rng: np.random.Generator, others: list[bytes], places: int = 10**9) -> bytes:
  """Some bytes are others, of the first `places`."""
  damaged = np.frombuffer(data, np.uint8).copy()
  where = rng.integers(0, min(len(data), places), 2 ** rng.integers(0, 7))
  damaged[where] = rng.integers(0, 256, len(where))
  return damaged.tobytes()


def header_flipped(data: bytes, rng: np.random.Generator, others: list[bytes]) -> bytes:
  return flipped(data, rng, others, places=100)


def spliced(data: bytes, rng: np.random.Generator, others: list[bytes]) -> bytes:
  """The beginning of one file and the end of another, or of itself: a piece is missing or there twice."""
  other = [data, others[rng.integers(len(others))]][rng.integers(2)]
  return data[: rng.integers(0, len(data))] + other[rng.integers(0, len(other)) :]


def wrong_size(data: bytes, rng: np.random.Generator, others: list[bytes]) -> bytes:
  """Wherever the file has its width or height, in either order of bytes, it says something else."""
  sizes = (0, 1, 7, 119, 121, 1000, 16383, 32767, 65535)
  for side, bias in ((120, 0), (160, 0), (119, 1), (159, 1)):
    new = int(rng.choice(sizes)) - bias
    for order in ('big', 'little'):
      data = data.replace(side.to_bytes(2, order), max(new, 0).to_bytes(2, order))
  return data


def random_bytes(data: bytes, rng: np.random.Generator, others: list[bytes]) -> bytes:
  """Nothing but noise, behind the file's own beginning half of the time."""
  return data[: rng.choice([0, 12])] + rng.bytes(rng.integers(1, 3000))


NOISY = 'tiff'  # libtiff writes to stderr, and Pillow has no switch for it

DAMAGES = (truncated, flipped, header_flipped, spliced, wrong_size, random_bytes)


def damaged_image(number: int, images: dict[str, bytes]) -> tuple[str, bytes]:
  """What it was and what was done to it, and the bytes."""
  rng = np.random.default_rng([7, number])
  kind = list(images)[number % len(images)]
  damage = DAMAGES[rng.integers(len(DAMAGES))]
  return f'{kind}, {damage.__name__}', damage(images[kind], rng, list(images.values()))


def outcome(data: bytes, name: str) -> str:
  """'decoded', 'named', or what went wrong; decoded in all the ways that pipelines do."""
  ends = set()
  for channels in (3, 1):
    options = DataConfig(image_size=(32, 48), channels=channels)
    for decode in (
      lambda: train_image(data, name, options, np.random.default_rng(0)),  # noqa: B023
      lambda: eval_image(data, name, options, 'resize', None),  # noqa: B023
    ):
      try:
        image = decode()
      except UserError as error:
        text = str(error)
        good = name in text and text.endswith('.') and '\n' not in text
        ends.add('named' if good else f'badly named: {text!r}')
      except Exception as error:
        ends.add(f'{type(error).__name__} escaped: {error}')
      else:
        good = image.shape == (32, 48, channels) and image.dtype == np.uint8
        ends.add('decoded' if good else f'wrong result: {image.shape} {image.dtype}')
  wrong = ends - {'decoded', 'named'}
  return ' and '.join(sorted(wrong)) or ('named' if 'named' in ends else 'decoded')


@contextlib.contextmanager
def stderr_to(file):
  """What this process, its C libraries too, writes to stderr goes to a file."""
  kept = os.dup(2)
  os.dup2(file.fileno(), 2)
  try:
    yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)


def decode_all(first: int, count: int, limit: float) -> None:
  """The process that may die: a line when it begins with an image, and one with the outcome."""
  images = whole_images()
  said = os.fdopen(os.dup(2), 'w')
  faulthandler.enable(said)
  for number in range(first, count):
    what, data = damaged_image(number, images)
    line = {'number': number, 'what': what}
    print(json.dumps(line), flush=True)
    faulthandler.dump_traceback_later(limit, exit=True, file=said)
    with tempfile.TemporaryFile() as noise:
      with stderr_to(noise):
        line['outcome'] = outcome(data, f'image {number}')
      noise.seek(0)
      line['noise'] = noise.read().decode(errors='replace')
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps(line), flush=True)


def fuzz(count: int, limit: float) -> list[dict[str, str]]:
  """What each image was, how it ended and what was written to stderr meanwhile."""
  ends = []
  while len(ends) < count:
    command = [sys.executable, __file__, f'--count={count}', f'--limit={limit}', f'--first={len(ends)}']
    child = subprocess.run(command, capture_output=True, text=True)
    lines = [json.loads(line) for line in child.stdout.splitlines()]
    ends += [line for line in lines if 'outcome' in line]
    if child.returncode:
      if not lines:
        raise RuntimeError(f'The decoding process does not start: {child.stderr}')
      how = 'hang' if 'Timeout' in child.stderr else f'crash (exit code {child.returncode})'
      ends.append({**lines[-1], 'outcome': f'{how}: {child.stderr}', 'noise': ''})
  return ends


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--count', type=int, default=2000, help='of images')
  parser.add_argument('--limit', type=float, default=60, help='seconds for an image')
  parser.add_argument('--first', type=int, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.first is not None:
    return decode_all(args.first, args.count, args.limit)
  ends = fuzz(args.count, args.limit)
  wrong = [end for end in ends if end['outcome'] not in ('decoded', 'named')]
  noisy = [end for end in ends if end['noise'] and not end['what'].startswith(NOISY)]
  for end in wrong:
    print(f'Image {end["number"]} ({end["what"]}): {end["outcome"]}')
  for end in noisy:
    print(f'Image {end["number"]} ({end["what"]}) on stderr: {end["noise"].strip()}')
  for damage in DAMAGES:
    counts = collections.Counter(e['outcome'] for e in ends if e['what'].endswith(f', {damage.__name__}'))
    print(f'{damage.__name__:15} named {counts["named"]:4}, still decoded {counts["decoded"]:4}')
  print(f'{len(ends)} damaged images: {len(wrong)} of them wrong, {len(noisy)} with text on stderr.')
  sys.exit(bool(wrong or noisy))


if __name__ == '__main__':
  main()
