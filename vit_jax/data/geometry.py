"""Where the pixels of a model's input lie: the size of a resized image, and the place of what is cut out of it.

Each rule is computed as the project computes it whose checkpoints need it, so that no size is off by one pixel.
"""

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Size = tuple[int, int]  # height, width

_LARGEST_RESIZED = 2**26  # pixels; of larger images only the middle is resized
_MARGIN = 4  # pixels beside that middle, which interpolation looks at (Lanczos at 3)


def shorter_side(size: Size, pixels: int, *, nearest: bool = False) -> Size:
  """The size of an image whose shorter side gets so many pixels.

  The longer side is rounded down, as by torchvision and transformers, or to the nearest (a half to the even number),
  as by big_vision.
  """
  sides = (Fraction(pixels * side, min(size)) for side in size)
  height, width = map(round if nearest else math.floor, sides)
  return height, width


def keep_ratio(size: Size, target: Size, *, within: bool) -> Size:
  """The size of an image resized until it covers `target`, or until it lies within it, as timm's ResizeKeepRatio.

  timm divides floats; in exact arithmetic 5 sizes of 100,000 would differ, all of them ties.
  """
  ratio = (max if within else min)(side / wanted for side, wanted in zip(size, target, strict=True))
  height, width = (max(round(side / ratio), 1) for side in size)
  return height, width


def within_patches(size: Size, patch: int, patches: int) -> Size:
  """The largest size, whole patches, of an image that keeps its aspect ratio within a patch and has at most `patches`.

  As big_vision's `resize_to_sequence` and transformers' Siglip2ImageProcessor search for it.
  """
  low, high, close = 1e-6, 100.0, 1e-5

  def scaled(scale: float) -> Size:
    height, width = (max(math.ceil(side * scale / patch), 1) * patch for side in size)
    return height, width

  while high - low >= close:
    middle = (low + high) / 2
    height, width = scaled(middle)
    if (height / patch) * (width / patch) <= patches:
      low = middle
    else:
      high = middle
  return scaled(low)


def column(image: np.ndarray, patch: int, patches: int) -> np.ndarray:
  """(h P, w P, C) -> (patches P, P, C): the patches row by row, below each other, and zeros behind them."""
  height, width, channels = image.shape
  rows = image.reshape(height // patch, patch, width // patch, patch, channels)
  result = np.zeros((patches * patch, patch, channels), image.dtype)
  result[: height * width // patch] = rows.transpose(0, 2, 1, 3, 4).reshape(-1, patch, channels)
  return result


def picture(column: np.ndarray, grid: npt.ArrayLike) -> np.ndarray:
  """The inverse of `column`: (N P, P, C), the grid's rows and columns -> (h P, w P, C)."""
  (rows, columns), (_, patch, channels) = np.asarray(grid).tolist(), column.shape
  patches = column[: rows * columns * patch].reshape(rows, columns, patch, patch, channels)
  return patches.transpose(0, 2, 1, 3, 4).reshape(rows * patch, columns * patch, channels)


def cut(image: np.ndarray, size: Size, *, half_even: bool = False, fill: npt.ArrayLike = 0) -> np.ndarray:
  """The middle of an image; a side that is too short gets a border.

  Args:
    image: (H, W, C).
    size: of the middle.
    half_even: half a pixel is rounded to the even one, as by torchvision's CenterCrop, which puts the odd row of a
      border below; otherwise down, and the odd row above, as by transformers.
    fill: the border's value: one for all channels, or one for each.
  """
  missing = [max(wanted - side, 0) for side, wanted in zip(image.shape, size, strict=False)]
  if any(missing):
    (top, left), (height, width) = ((side + (not half_even)) // 2 for side in missing), image.shape[:2]
    framed = np.empty((height + missing[0], width + missing[1], image.shape[2]), image.dtype)
    framed[:] = fill
    framed[top : top + height, left : left + width] = image
    image = framed
  rests = [side - wanted for side, wanted in zip(image.shape, size, strict=False)]
  top, left = (rest // 2 + (half_even and rest % 4 == 3) for rest in rests)
  return image[top : top + size[0], left : left + size[1]]


def middle(image: np.ndarray, whole: Size, size: Size) -> tuple[np.ndarray, Size]:
  """What to resize, (H, W, C), and to which size, where the middle of `size` is cut out of an image resized to `whole`.

  It is all of the image, unless that would become so large (of a strip a few pixels wide, say) that memory and
  time could run out: then the middle of the image, which gives the same up to the position between two pixels.
  """
  if math.prod(whole) <= _LARGEST_RESIZED:
    return image, whole
  spans, resized = [], []
  for extent, large, small in zip(image.shape, whole, size, strict=False):
    scale = large / extent
    needed = math.ceil(small / scale) + 2 * math.ceil(_MARGIN * max(1, 1 / scale))
    length = min(extent, needed + (extent - needed) % 2)  # around the same centre
    spans.append(slice((extent - length) // 2, (extent + length) // 2))
    resized.append(large if length == extent else max(round(length * scale), small))
  return image[*spans], (resized[0], resized[1])
