"""ImageNet-21k in small: a tar of a tar for each synset, with the kinds of images that the real one has.

python tests/prepare/made_imagenet21k.py FILE SYNSETS IMAGES makes one of any size.
"""

import io
import pathlib
import sys
import tarfile
from collections.abc import Iterator

import numpy as np
from made_sources import add_file
from PIL import Image


def synset(number: int) -> str:
  """The WordNet id of a made synset."""
  return f'n{1440764 + 13 * number:08}'


def image(kind: str, seed: int) -> bytes:
  """A file of 40 x 32 pixels: 'rgb', 'gray', 'cmyk', 'png' (which is called .JPEG too), or 'damaged'."""
  rng = np.random.default_rng(seed)
  mode = {'gray': 'L', 'cmyk': 'CMYK'}.get(kind, 'RGB')
  shape = (32, 40) if mode == 'L' else (32, 40, len(mode))
  pixels = rng.integers(0, 256, shape, np.uint8)
  file = io.BytesIO()
  Image.fromarray(pixels, mode).save(file, 'PNG' if kind == 'png' else 'JPEG')
  content = file.getvalue()
  return content[: len(content) // 2] if kind == 'damaged' else content


def contents(synsets: int, images: int) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
  """Each synset with its files.

  Of each ten synsets, the third one's first image is damaged, the fourth's is CMYK, the fifth's grayscale and
  the sixth's a PNG; the eighth's last image is that of the synset before.
  """
  kinds = {2: 'damaged', 3: 'cmyk', 4: 'gray', 5: 'png'}
  for number in range(synsets):
    files = []
    for k in range(images):
      kind = kinds.get(number % 10, 'rgb') if k == 0 else 'rgb'
      seed = number * images + k
      if number % 10 == 7 and k == images - 1:
        seed -= images
      files.append((f'{synset(number)}_{k}.JPEG', image(kind, seed)))
    yield synset(number), files


def write(path: pathlib.Path, synsets: int, images: int, folder: str = '') -> pathlib.Path:
  """Writes the tar of tars; `folder` is one around all of them ('winter21_whole/')."""
  with tarfile.open(path, 'w') as outer:
    for name, files in contents(synsets, images):
      inner_file = io.BytesIO()
      with tarfile.open(fileobj=inner_file, mode='w') as inner:
        for file, content in files:
          add_file(inner, file, content)
      add_file(outer, f'{folder}{name}.tar', inner_file.getvalue())
  return path


if __name__ == '__main__':
  write(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), 'winter21_whole/')
