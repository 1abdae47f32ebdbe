"""A small data set in an emulated bucket, prepared there as `vit_jax.prepare` does it."""

import pathlib

import numpy as np
from PIL import Image

from vit_jax.prepare import run
from vit_jax.prepare.images import Shrinking

CLASSES = ('dark', 'grey', 'light')
SPLITS = {'train': 24, 'test': 6}  # images of each class


def write_images(folder: pathlib.Path, seed: int = 0) -> pathlib.Path:
  """Makes a folder of images of three brightnesses, SPLIT/CLASS/NUMBER.png."""
  rng = np.random.default_rng(seed)
  for split, count in SPLITS.items():
    for number, name in enumerate(CLASSES):
      (folder / split / name).mkdir(parents=True)
      for index in range(count):
        pixels = rng.integers(number * 80, number * 80 + 90, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / split / name / f'{index}.png')
  return folder


def prepare(images: pathlib.Path, address: str) -> str:
  """Prepares the images at an address of a running emulator; returns the source to train on."""
  run.prepare(str(images), address, run.Options(Shrinking()))
  return f'tfds:{address}'
