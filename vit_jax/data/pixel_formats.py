"""What decoding and resizing agree on about the pixels of an image."""

import numpy as np
from PIL import Image

Box = tuple[float, float, float, float]  # top, left, height, width

MODES = {1: 'L', 3: 'RGB'}  # channels -> what Pillow calls them


def has_16_bits(image: Image.Image) -> bool:
  """Whether an image of Pillow's is gray with 16 bits per pixel."""
  return image.mode.startswith('I;16')


def upper_byte(image: Image.Image) -> np.ndarray:
  """The upper 8 of the 16 bits per pixel of an image for which `has_16_bits`: uint8 (H, W)."""
  return (np.asarray(image) >> 8).astype(np.uint8)
