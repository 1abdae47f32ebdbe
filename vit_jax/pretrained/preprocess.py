"""How images of any size become the input of a model, as for the training of its checkpoint."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageOps

_MODES = {1: 'L', 3: 'RGB'}
_PILLOW = {
  'nearest': Image.Resampling.NEAREST,
  'bilinear': Image.Resampling.BILINEAR,
  'bicubic': Image.Resampling.BICUBIC,
  'lanczos': Image.Resampling.LANCZOS,
}
_OPENCV = {'nearest': cv2.INTER_NEAREST, 'bilinear': cv2.INTER_LINEAR, 'bicubic': cv2.INTER_CUBIC}


@dataclasses.dataclass(frozen=True)
class Preprocess:
  """The size and the value range of the images that a checkpoint was trained with."""

  size: tuple[int, int]  # height, width of the model's input
  channels: int = 3  # of the model's input: 3 (RGB) or 1 (luma)
  # (pixel / 255 - mean) / std, with one number for all channels, or one for each.
  mean: tuple[float, ...] = (0.5,)
  std: tuple[float, ...] = (0.5,)
  # None: squash to `size`. Otherwise resize the shorter side to so many pixels, and cut the middle.
  shorter: int | None = None
  # In place of `shorter`: squash to this height and width, and cut the middle (DeiT in transformers).
  whole: tuple[int, int] | None = None
  method: str = 'bilinear'  # 'nearest', 'bilinear', 'bicubic' or, with antialias, 'lanczos'
  # Pillow's resize (uint8, its kernel widened when it shrinks), which Hugging Face's checkpoints were
  # trained with; otherwise float32, half-pixel centres and no antialiasing, as the original's.
  antialias: bool = False

  @classmethod
  def from_range(cls, size: tuple[int, int], low: float, high: float, **options: Any) -> 'Preprocess':
    """0 becomes `low` and 255 `high`."""
    return cls(size=size, mean=(-low / (high - low),), std=(1 / (high - low),), **options)

  def __call__(self, images: Sequence[Image.Image | np.ndarray]) -> np.ndarray:
    """Images of any size as a model's input.

    Args:
      images: Pillow's, of any mode, or uint8 arrays (H, W) or (H, W, C).

    Returns:
      float32 (B, *size, channels).
    """
    pixels = np.stack([self._resized(_pixels(image, self.channels)) for image in images])
    # (x / 255 - mean) / std as one product and sum, in float64.
    scale = 1 / (255 * np.asarray(self.std, np.float64))
    offset = -np.asarray(self.mean, np.float64) / np.asarray(self.std, np.float64)
    return (pixels * scale + offset).astype(np.float32)

  def at(self, size: tuple[int, int]) -> 'Preprocess':
    """The same for a model of another input size: what is cut off keeps its share of the image."""
    ratios = (size[0] / self.size[0], size[1] / self.size[1])
    shorter = None if self.shorter is None else round(self.shorter * max(ratios))
    whole = None
    if self.whole is not None:
      whole = (round(self.whole[0] * ratios[0]), round(self.whole[1] * ratios[1]))
    return dataclasses.replace(self, size=(size[0], size[1]), shorter=shorter, whole=whole)

  def _resized(self, image: np.ndarray) -> np.ndarray:
    """(H, W, C) -> (*size, C), uint8 or float32 in 0 … 255."""
    height, width = self.size
    if self.shorter is None:
      whole = self.whole or self.size
    else:
      # Rounded down, as torchvision and transformers do.
      scale = self.shorter / min(image.shape[:2])
      whole = tuple(max(int(side * scale), wanted) for side, wanted in zip(image.shape[:2], self.size))
    image = self._resize(image, whole)
    top, left = (whole[0] - height) // 2, (whole[1] - width) // 2
    return image[top : top + height, left : left + width]

  def _resize(self, image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if image.shape[:2] == tuple(size):
      return image
    height, width = size
    if self.antialias:
      pillow = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
      resized = np.asarray(pillow.resize((width, height), _PILLOW[self.method]))
    else:
      resized = cv2.resize(image.astype(np.float32), (width, height), interpolation=_OPENCV[self.method])
    return resized.reshape(height, width, image.shape[2])


def _pixels(image: Image.Image | np.ndarray, channels: int) -> np.ndarray:
  """uint8 (H, W, channels)."""
  if isinstance(image, Image.Image):
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith('I;16'):
      image = (np.asarray(image) >> 8).astype(np.uint8)
    else:
      image = np.asarray(image.convert(_MODES[channels]))
  if image.ndim == 2:
    image = image[:, :, None]
  if image.shape[2] == channels:
    return image
  if channels == 3:
    return np.repeat(image[:, :, :1], 3, axis=2)
  return cv2.cvtColor(np.ascontiguousarray(image[:, :, :3]), cv2.COLOR_RGB2GRAY)[:, :, None]
