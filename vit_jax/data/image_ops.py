"""The pixel operations of random augmentation, each a pure function.

Images are uint8 (H, W, C) with C = 1 or 3, and so are the results. Where Pillow defines the operation
(ImageOps, ImageEnhance), these return its values, several times faster: look-up tables and OpenCV release
Python's lock.
"""

import cv2
import numpy as np

_GRAY = 128  # fills what is uncovered or cut out
_LEVELS = np.arange(256)
# Pillow's ImageFilter.SMOOTH.
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


def autocontrast(image: np.ndarray) -> np.ndarray:
  """Stretches each channel to the range 0 … 255."""
  tables = []
  for histogram in _histograms(image):
    low, high = np.flatnonzero(histogram)[[0, -1]]
    scale = 255 / max(high - low, 1)
    tables.append(_LEVELS * scale - low * scale if high > low else _LEVELS)
  return _look_up(image, *tables)


def equalize(image: np.ndarray) -> np.ndarray:
  """Equalizes the histogram of each channel."""
  tables = []
  for histogram in _histograms(image):
    highest = histogram[np.flatnonzero(histogram)[-1]]
    step = (histogram.sum() - highest) // 255
    below = np.cumsum(histogram) - histogram
    tables.append((step // 2 + below) // step if step else _LEVELS)
  return _look_up(image, *tables)


def invert(image: np.ndarray) -> np.ndarray:
  """Replaces each value by 255 minus it."""
  return _look_up(image, 255 - _LEVELS)


def posterize(image: np.ndarray, bits: int) -> np.ndarray:
  """Keeps the upper `bits` bits of each value, 1 to 8."""
  return _look_up(image, _LEVELS >> (8 - bits) << (8 - bits))


def solarize(image: np.ndarray, threshold: int) -> np.ndarray:
  """Inverts the values that are not below the threshold."""
  return _look_up(image, np.where(threshold > _LEVELS, _LEVELS, 255 - _LEVELS))


def solarize_add(image: np.ndarray, amount: int) -> np.ndarray:
  """Adds an amount to the values below 128."""
  return _look_up(image, np.where(_LEVELS < 128, _LEVELS + amount, _LEVELS))


def brightness(image: np.ndarray, factor: float) -> np.ndarray:
  """Factor 0: black; 1: unchanged; more: brighter."""
  return _look_up(image, _LEVELS * factor)


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
  """Factor 0: the image's mean gray; 1: unchanged; more: further from that gray."""
  # The original took 196 (height * width / 256) for the mean until that was fixed.
  mean = int(_luma(image).mean() + 0.5)
  return _look_up(image, mean + (_LEVELS - mean) * factor)


def saturation(image: np.ndarray, factor: float) -> np.ndarray:
  """Factor 0: gray; 1: unchanged; more: more colourful."""
  return _blend(grayscale(image), image, factor)


def hue(image: np.ndarray, turn: float) -> np.ndarray:
  """Turns the hue by a share of the circle, -0.5 to 0.5."""
  if image.shape[2] == 1:
    return image
  hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
  hsv[..., 0] += np.uint8(int(turn * 256) % 256)  # which overflows as hues do
  return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL)


def sharpness(image: np.ndarray, factor: float) -> np.ndarray:
  """Factor 0: smoothed, except the outermost pixels; 1: unchanged; more: sharper."""
  smooth = image.copy()
  smoothed = cv2.filter2D(image, -1, _SMOOTH).reshape(image.shape)
  smooth[1:-1, 1:-1] = smoothed[1:-1, 1:-1]
  return _blend(smooth, image, factor)


def grayscale(image: np.ndarray) -> np.ndarray:
  """The image's luma in every channel."""
  if image.shape[2] == 1:
    return image
  return cv2.cvtColor(_luma(image), cv2.COLOR_GRAY2RGB)


def blur(image: np.ndarray, sigma: float) -> np.ndarray:
  """Gaussian blur; sigma in pixels."""
  return cv2.GaussianBlur(image, (0, 0), sigma).reshape(image.shape)


def rotate(image: np.ndarray, degrees: float) -> np.ndarray:
  """Rotates about the centre."""
  height, width = image.shape[:2]
  cosine, sine = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
  centre = np.array([width - 1, height - 1]) / 2
  matrix = np.array([[cosine, -sine], [sine, cosine]])
  return _warp(image, np.column_stack([matrix, centre - matrix @ centre]))


def shear_x(image: np.ndarray, slope: float) -> np.ndarray:
  """Shifts each row by its number times the slope."""
  return _warp(image, np.array([[1, slope, 0], [0, 1, 0]]))


def shear_y(image: np.ndarray, slope: float) -> np.ndarray:
  """Shifts each column by its number times the slope."""
  return _warp(image, np.array([[1, 0, 0], [slope, 1, 0]]))


def translate_x(image: np.ndarray, pixels: float) -> np.ndarray:
  """Shifts to the left."""
  return _warp(image, np.array([[1, 0, pixels], [0, 1, 0]]))


def translate_y(image: np.ndarray, pixels: float) -> np.ndarray:
  """Shifts upwards."""
  return _warp(image, np.array([[1, 0, 0], [0, 1, pixels]]))


def fill_box(
  image: np.ndarray, top: int, left: int, height: int, width: int, pixels: np.ndarray | int = _GRAY
) -> np.ndarray:
  """Puts pixels, or one value, into the part of a box that lies within the image."""
  result = image.copy()
  result[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = pixels
  return result


def _look_up(image: np.ndarray, *tables: np.ndarray) -> np.ndarray:
  """Replaces each value by its entry in a table of 256 numbers, clipped to 0 … 255 and rounded down as Pillow does.

  One table for all channels, or one for each.
  """
  table = np.clip(np.stack(tables, axis=-1), 0, 255).astype(np.uint8)
  return cv2.LUT(image, table.reshape(1, 256, len(tables))).reshape(image.shape)


def _histograms(image: np.ndarray) -> list[np.ndarray]:
  """The histogram of each channel, int64 (256,)."""
  channels = range(image.shape[2])
  return [cv2.calcHist([image], [c], None, [256], [0, 256]).ravel().astype(np.int64) for c in channels]


def _luma(image: np.ndarray) -> np.ndarray:
  """The luma, uint8 (H, W)."""
  return image[:, :, 0] if image.shape[2] == 1 else cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)


def _blend(first: np.ndarray, second: np.ndarray, factor: float) -> np.ndarray:
  """first + factor * (second - first), rounded (Pillow rounds down) and clipped to 0 … 255."""
  return cv2.addWeighted(first, 1 - factor, second, factor, 0).reshape(second.shape)


def _warp(image: np.ndarray, matrix: np.ndarray) -> np.ndarray:
  """Pixel (x, y) becomes the one nearest to matrix (2, 3) @ (x, y, 1), or gray if that lies outside."""
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
