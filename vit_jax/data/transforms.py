"""From a record's image to the model's input size: crops and resizing, on the host, in uint8.

Randomness comes from a generator that the caller gives; mirroring and the value range are left to
`on_device.py`.
"""

import math

import cv2
import numpy as np

from vit_jax import config
from vit_jax.data.decode import Picture

_ASPECTS = (3 / 4, 4 / 3)  # width over height of the inception crop's box
_ATTEMPTS = 100


def train_image(
  image: bytes | np.ndarray, name: str, data: config.Data, rng: np.random.Generator
) -> np.ndarray:
  """uint8 (*data.image_size, data.channels): a training image, cut as data.crop says.

  Raises:
    UserError: an image that cannot be decoded, by its name.
  """
  picture = Picture(image, data.channels, name)
  if data.crop == 'inception':
    return _inception(picture, data.image_size, data.area, rng)
  if data.crop == 'random':
    size = (data.resize, data.resize) if data.resize else data.image_size
    return random_position(resize(picture.pixels(size), size), data.image_size, data.padding, rng)
  if data.crop == 'central':
    return central(picture, data.image_size, data.resize, reduce=True)
  return resize(picture.pixels(data.image_size), data.image_size)


def eval_image(
  image: bytes | np.ndarray, name: str, data: config.Data, evaluator: config.Evaluator
) -> np.ndarray:
  """uint8 (*data.image_size, data.channels): an image to evaluate, decoded at full size.

  Raises:
    UserError: an image that cannot be decoded, by its name.
  """
  picture = Picture(image, data.channels, name)
  if evaluator.crop == 'central':
    return central(picture, data.image_size, evaluator.resize, reduce=False)
  return resize(picture.pixels(), data.image_size)


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
  """Bilinear, half-pixel centres, no antialiasing: what the original's tf.image.resize does.

  Args:
    image: uint8 (H, W, C).
    size: height, width.

  Returns:
    uint8 (*size, C): interpolated in float32, then rounded to nearest.
  """
  if image.shape[:2] == tuple(size):
    return image
  height, width = size
  resized = cv2.resize(image.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
  return np.rint(resized).astype(np.uint8).reshape(height, width, image.shape[2])


def sample_box(
  size: tuple[int, int], area: tuple[float, float], rng: np.random.Generator
) -> tuple[int, int, int, int]:
  """A random box (top, left, height, width), as tf.image.sample_distorted_bounding_box draws it.

  The aspect ratio is uniform in 3/4..4/3, then the height uniform over what the area's range and the image
  allow, then the position. The whole image, where no box fits.

  Args:
    size: height, width of the image.
    area: smallest and largest share of the image.
    rng: the randomness.
  """
  image_height, image_width = size
  low, high = (share * image_height * image_width for share in area)
  for _ in range(_ATTEMPTS):
    aspect = _ASPECTS[0] + (_ASPECTS[1] - _ASPECTS[0]) * rng.random()
    tallest = min(round(math.sqrt(high / aspect)), math.ceil((image_width + 0.5) / aspect) - 1, image_height)
    shortest = min(round(math.sqrt(low / aspect)), tallest)
    height = shortest + int(rng.random() * (tallest - shortest + 1))
    width = round(height * aspect)
    # Rounding may leave the range by a little.
    height += (height * width < low) - (height * width > high)
    width = round(height * aspect)
    fits = 0 < height <= image_height and 0 < width <= image_width
    if fits and low <= height * width <= high:
      top = int(rng.random() * (image_height - height + 1))
      left = int(rng.random() * (image_width - width + 1))
      return top, left, height, width
  return 0, 0, image_height, image_width


def _inception(
  picture: Picture, size: tuple[int, int], area: tuple[float, float], rng: np.random.Generator
) -> np.ndarray:
  """A random box of the picture, squashed to `size` ('Going deeper with convolutions', section 6)."""
  height, width = picture.size
  top, left, box_height, box_width = sample_box(picture.size, area, rng)
  pixels = picture.pixels((height * size[0] / box_height, width * size[1] / box_width))
  down, right = pixels.shape[0] / height, pixels.shape[1] / width  # 1, unless decoded at a reduced scale
  top, bottom = round(top * down), round((top + box_height) * down)
  left, right = round(left * right), round((left + box_width) * right)
  return resize(pixels[top:bottom, left:right], size)


def random_position(
  image: np.ndarray, size: tuple[int, int], padding: int, rng: np.random.Generator
) -> np.ndarray:
  """A window of `size` at a uniformly random position of the image with a black border added.

  Args:
    image: uint8 (H, W, C); with the padding at least as large as `size`.
    size: height, width of the window.
    padding: pixels added on every side.
    rng: the randomness.
  """
  height, width = image.shape[:2]
  top = int(rng.random() * (height + 2 * padding - size[0] + 1)) - padding
  left = int(rng.random() * (width + 2 * padding - size[1] + 1)) - padding
  bottom, right = top + size[0], left + size[1]
  if top >= 0 and left >= 0 and bottom <= height and right <= width:
    return image[top:bottom, left:right]
  window = np.zeros((*size, image.shape[2]), np.uint8)
  part = image[max(top, 0) : bottom, max(left, 0) : right]
  window[max(-top, 0) : part.shape[0] + max(-top, 0), max(-left, 0) : part.shape[1] + max(-left, 0)] = part
  return window


def central(picture: Picture, size: tuple[int, int], shorter: int | None, *, reduce: bool) -> np.ndarray:
  """Resizes the shorter side, keeping the aspect ratio, and cuts the middle.

  Args:
    picture: the image.
    size: height, width of the result.
    shorter: pixels of the shorter side; None: as small as covers `size`.
    reduce: whether a JPEG may be decoded at a reduced scale.
  """
  height, width = picture.size
  scale = shorter / min(height, width) if shorter else max(size[0] / height, size[1] / width)
  whole = (max(round(height * scale), size[0]), max(round(width * scale), size[1]))
  image = resize(picture.pixels(whole if reduce else None), whole)
  top, left = (whole[0] - size[0]) // 2, (whole[1] - size[1]) // 2
  return image[top : top + size[0], left : left + size[1]]
