"""Changes of an image's pixels that random augmentation is made of, each a pure function.

An image is uint8 (H, W, C) with C = 1 or 3, and so is the result. Where Pillow defines the operation
(ImageOps, ImageEnhance), these give its values; a look-up table or OpenCV, which leave Python's lock, are
several times faster.
"""

import cv2
import numpy as np

_GRAY = 128  # of what is uncovered or cut out
_LEVELS = np.arange(256)
# Pillow's ImageFilter.SMOOTH.
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


def autocontrast(image: np.ndarray) -> np.ndarray:
  """Stretches each channel to 0 … 255."""
  tables = []
  for histogram in _histograms(image):
    low, high = np.flatnonzero(histogram)[[0, -1]]
    scale = 255 / max(high - low, 1)
    tables.append(_LEVELS * scale - low * scale if high > low else _LEVELS)
  return _look_up(image, *tables)


def equalize(image: np.ndarray) -> np.ndarray:
  """Makes each channel's histogram even."""
  tables = []
  for histogram in _histograms(image):
    highest = histogram[np.flatnonzero(histogram)[-1]]
    step = (histogram.sum() - highest) // 255
    below = np.cumsum(histogram) - histogram
    tables.append((step // 2 + below) // step if step else _LEVELS)
  return _look_up(image, *tables)


def invert(image: np.ndarray) -> np.ndarray:
  return _look_up(image, 255 - _LEVELS)


def posterize(image: np.ndarray, bits: int) -> np.ndarray:
  """Keeps the upper `bits` of each value, 1 to 8."""
  return _look_up(image, _LEVELS >> (8 - bits) << (8 - bits))


def solarize(image: np.ndarray, threshold: int) -> np.ndarray:
  """Inverts the values from the threshold on."""
  return _look_up(image, np.where(threshold > _LEVELS, _LEVELS, 255 - _LEVELS))


def solarize_add(image: np.ndarray, amount: int) -> np.ndarray:
  """Adds to the values below 128."""
  return _look_up(image, np.where(_LEVELS < 128, _LEVELS + amount, _LEVELS))


def brightness(image: np.ndarray, factor: float) -> np.ndarray:
  """0: black; 1: as it is; more: brighter."""
  return _look_up(image, _LEVELS * factor)


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
  """0: its mean gray; 1: as it is; more: further from that gray."""
  # The original had 196 (height * width / 256) for the mean until it was mended.
  mean = int(_luma(image).mean() + 0.5)
  return _look_up(image, mean + (_LEVELS - mean) * factor)


def saturation(image: np.ndarray, factor: float) -> np.ndarray:
  """0: gray; 1: as it is; more: more colourful."""
  return _blend(grayscale(image), image, factor)


def sharpness(image: np.ndarray, factor: float) -> np.ndarray:
  """0: smoothed, but for the outermost pixels; 1: as it is; more: sharper."""
  smooth = image.copy()
  smoothed = cv2.filter2D(image, -1, _SMOOTH).reshape(image.shape)
  smooth[1:-1, 1:-1] = smoothed[1:-1, 1:-1]
  return _blend(smooth, image, factor)


def grayscale(image: np.ndarray) -> np.ndarray:
  if image.shape[2] == 1:
    return image
  return cv2.cvtColor(_luma(image), cv2.COLOR_GRAY2RGB)


def blur(image: np.ndarray, sigma: float) -> np.ndarray:
  """Gaussian; sigma in pixels."""
  return cv2.GaussianBlur(image, (0, 0), sigma).reshape(image.shape)


def rotate(image: np.ndarray, degrees: float) -> np.ndarray:
  """About the centre."""
  height, width = image.shape[:2]
  cosine, sine = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
  centre = np.array([width - 1, height - 1]) / 2
  matrix = np.array([[cosine, -sine], [sine, cosine]])
  return _warp(image, np.column_stack([matrix, centre - matrix @ centre]))


def shear_x(image: np.ndarray, slope: float) -> np.ndarray:
  """Moves a row by its number times the slope."""
  return _warp(image, np.array([[1, slope, 0], [0, 1, 0]]))


def shear_y(image: np.ndarray, slope: float) -> np.ndarray:
  """Moves a column by its number times the slope."""
  return _warp(image, np.array([[1, 0, 0], [slope, 1, 0]]))


def translate_x(image: np.ndarray, pixels: float) -> np.ndarray:
  """To the left."""
  return _warp(image, np.array([[1, 0, pixels], [0, 1, 0]]))


def translate_y(image: np.ndarray, pixels: float) -> np.ndarray:
  """Upwards."""
  return _warp(image, np.array([[1, 0, 0], [0, 1, pixels]]))


def fill_box(
  image: np.ndarray, top: int, left: int, height: int, width: int, pixels: np.ndarray | int = _GRAY
) -> np.ndarray:
  """Puts pixels, or one value, into the part of a box that lies in the image."""
  result = image.copy()
  result[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = pixels
  return result


def _look_up(image: np.ndarray, *tables: np.ndarray) -> np.ndarray:
  """Replaces values by what the tables say, which are cut to 0 … 255 and rounded down as Pillow does.

  Args:
    image: uint8 (H, W, C).
    *tables: 256 numbers each: one for all channels, or one for each.
  """
  table = np.clip(np.stack(tables, axis=-1), 0, 255).astype(np.uint8)
  return cv2.LUT(image, table.reshape(1, 256, len(tables))).reshape(image.shape)


def _histograms(image: np.ndarray) -> list[np.ndarray]:
  """int64 (256,) for each channel."""
  channels = range(image.shape[2])
  return [cv2.calcHist([image], [c], None, [256], [0, 256]).ravel().astype(np.int64) for c in channels]


def _luma(image: np.ndarray) -> np.ndarray:
  """uint8 (H, W)."""
  return image[:, :, 0] if image.shape[2] == 1 else cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)


def _blend(first: np.ndarray, second: np.ndarray, factor: float) -> np.ndarray:
  """first + factor * (second - first), rounded (Pillow rounds down) and cut to 0 … 255."""
  return cv2.addWeighted(first, 1 - factor, second, factor, 0).reshape(second.shape)


def _warp(image: np.ndarray, matrix: np.ndarray) -> np.ndarray:
  """The pixel nearest to matrix (2, 3) @ (x, y, 1) for each x, y; gray where there is none."""
  height, width, channels = image.shape
  warped = cv2.warpAffine(
    image,
    matrix.astype(np.float64),
    (width, height),
    flags=cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP,
    borderMode=cv2.BORDER_CONSTANT,
    borderValue=(_GRAY,) * channels,
  )
  return warped.reshape(image.shape)
