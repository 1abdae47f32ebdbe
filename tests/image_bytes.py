"""Encoded images for tests."""

import io
from typing import Any

import numpy as np
from PIL import Image


def png(pixels: np.ndarray) -> bytes:
  """Pixels (H, W) or (H, W, 3), from 0 to 255, as a PNG."""
  file = io.BytesIO()
  Image.fromarray(pixels.astype(np.uint8)).save(file, 'png')
  return file.getvalue()


def jpeg(pixels: np.ndarray, **options: Any) -> bytes:
  """Pixels (H, W) or (H, W, 3), from 0 to 255, as a JPEG; `options` are Pillow's, such as quality."""
  file = io.BytesIO()
  Image.fromarray(pixels.astype(np.uint8)).save(file, 'jpeg', **options)
  return file.getvalue()
