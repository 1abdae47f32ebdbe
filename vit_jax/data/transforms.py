"""From a record's image to the model's input size: crops and resizing, on the host, in uint8.

Randomness comes from a generator that the caller passes. Mirroring and scaling to the value range happen on
the device (`on_device.py`).
"""

import math
from typing import Any

import cv2
import numpy as np

from vit_jax.data import geometry
from vit_jax.data.augment import augmentation
from vit_jax.data.config import DataConfig, EvalCrop, ExtraCrops, Interpolation, Resize
from vit_jax.data.decode import Box, Picture
from vit_jax.data.preprocess import METHODS, Preprocess, patches_of, pillow_resize

_ASPECTS = (3 / 4, 4 / 3)  # width over height of the inception crop's box
_ATTEMPTS = 100


def train_image(
  image: bytes | np.ndarray,
  name: str,
  data: DataConfig,
  rng: np.random.Generator,
  out: np.ndarray | None = None,
) -> Any:
  """A training image, cropped as `data.crop` says and augmented.

  Args:
    image: an encoded file, or uint8 pixels (H, W) or (H, W, C).
    name: what errors call the image.
    data: crop, area, resize, padding, image_size, channels, interpolation, augment.
    rng: the source of randomness.
    out: memory of the result's shape that it may be written to, which saves a copy; None: there is none.

  Returns:
    uint8 (*data.image_size, data.channels); with data.max_patches its `Patches`.

  Raises:
    UserError: an image that cannot be decoded.
  """
  picture = Picture(image, data.channels, name)
  if not data.max_patches:
    return augmentation(data.augment)(_train_crop(picture, data, rng, out), rng)
  augmented = augmentation(data.augment)(_any_shape(picture, data, rng), rng)
  mirrored = data.flip and rng.random() < 0.5  # here, since a column of patches cannot be mirrored as a whole
  return patches_of(augmented[:, ::-1] if mirrored else augmented, data.patch, max(data.max_patches))


def _any_shape(picture: Picture, data: DataConfig, rng: np.random.Generator) -> np.ndarray:
  """A random box of the picture (crop 'inception'), or all of it, in its own shape: uint8 (h P, w P, channels)."""
  box = (0, 0, *picture.size) if data.crop == 'resize' else sample_box(picture.size, data.area, rng)
  size = geometry.within_patches(box[2:], data.patch, max(data.max_patches))
  pixels, part = picture.part(box, at_least=size)
  return resize(pixels, size, part, interpolation=data.interpolation or 'bilinear')


def extra_crops(
  picture: Picture, data: DataConfig, wanted: ExtraCrops, rng: np.random.Generator
) -> np.ndarray:
  """Random boxes of a picture, resized and augmented: uint8 (wanted.number, *wanted.size, data.channels)."""
  how, augmented = data.interpolation or 'bilinear', augmentation(wanted.augment)
  crops = (_inception(picture, wanted.size, wanted.area, rng, how) for _ in range(wanted.number))
  return np.stack([augmented(crop, rng) for crop in crops])


def _train_crop(
  picture: Picture, data: DataConfig, rng: np.random.Generator, out: np.ndarray | None
) -> np.ndarray:
  how = data.interpolation or 'bilinear'
  if data.crop == 'inception':
    return _inception(picture, data.image_size, data.area, rng, how, out)
  if data.crop == 'random':
    size = (data.resize, data.resize) if data.resize else data.image_size
    image = resize(picture.pixels(size), size, interpolation=how)
    return random_window(image, data.image_size, data.padding, rng)
  if how != 'bilinear':  # exactly as in evaluation
    shorter = data.resize if data.crop == 'central' else None
    return Preprocess.of_run(data, data.crop, shorter).as_bytes(picture.pixels())
  if data.crop == 'central':
    return central(picture, data.image_size, data.resize)
  return resize(picture.pixels(data.image_size), data.image_size)


def eval_image(
  image: bytes | np.ndarray, name: str, data: DataConfig, crop: EvalCrop | None, before: Resize | None
) -> Any:
  """An image for evaluation, decoded at full size and interpolated exactly; otherwise as `train_image`.

  `crop` and `before` are the crop and resize of `Preprocess.of_run`.
  """
  return Preprocess.of_run(data, crop, before).as_bytes(Picture(image, data.channels, name).pixels())


def resize(
  image: np.ndarray,
  size: tuple[int, int],
  box: Box | None = None,
  interpolation: Interpolation = 'bilinear',
  out: np.ndarray | None = None,
) -> np.ndarray:
  """Resizes a training image: by default without antialiasing, half-pixel centres, like the original's tf.image.resize.

  'bilinear' is computed in fixed point, which takes half the time of `Preprocess`, that rounds float32, and is off by
  one for some pixels (the mean is 0.13 of 255 too low).

  Args:
    image: uint8 (H, W, C).
    size: height, width.
    box: top, left, height, width of the part to resize, possibly in fractions of a pixel; None: all of it.
    interpolation: as `DataConfig.interpolation`.
    out: memory for the result, as of `train_image`.

  Returns:
    uint8 (*size, C).
  """
  if interpolation != 'bilinear':
    return pillow_resize(image, size, METHODS[interpolation], box)
  if box and not all(float(number).is_integer() for number in box):
    return _resize_between_pixels(image, size, box)
  if box:
    top, left, height, width = map(int, box)
    image = image[top : top + height, left : left + width]
  if image.shape[:2] == tuple(size):
    return image
  height, width = size
  resized = cv2.resize(image, (width, height), dst=out, interpolation=cv2.INTER_LINEAR)
  return resized.reshape(height, width, image.shape[2])


def _resize_between_pixels(image: np.ndarray, size: tuple[int, int], box: Box) -> np.ndarray:
  """`resize` of a box whose borders lie between pixels, in fixed point."""
  top, left, height, width = box
  down, right = height / size[0], width / size[1]
  # Maps pixel (x, y) of the result to its centre's place in the image, in pixels counted from pixel centres.
  matrix = np.array([[right, 0, left + right / 2 - 0.5], [0, down, top + down / 2 - 0.5]])
  flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
  resized = cv2.warpAffine(image, matrix, size[::-1], flags=flags, borderMode=cv2.BORDER_REPLICATE)
  return resized.reshape(*size, image.shape[2])


def sample_box(
  size: tuple[int, int], area: tuple[float, float], rng: np.random.Generator
) -> tuple[int, int, int, int]:
  """Draws a box, a share in `area` of an image of `size`, as tf.image.sample_distorted_bounding_box does.

  First the aspect ratio, uniform in 3/4 … 4/3, then the height, uniform in what the area and the image allow,
  then the position.

  Returns:
    top, left, height, width; the whole image if no box fits.
  """
  image_height, image_width = size
  low, high = (share * image_height * image_width for share in area)
  for _ in range(_ATTEMPTS):
    aspect = _ASPECTS[0] + (_ASPECTS[1] - _ASPECTS[0]) * rng.random()
    tallest = min(round(math.sqrt(high / aspect)), math.ceil((image_width + 0.5) / aspect) - 1, image_height)
    shortest = min(round(math.sqrt(low / aspect)), tallest)
    height = shortest + int(rng.random() * (tallest - shortest + 1))
    width = round(height * aspect)
    # Rounding to pixels can miss the range by a little.
    if height * width < low:
      height += 1
    elif height * width > high:
      height -= 1
    width = round(height * aspect)
    fits = 0 < height <= image_height and 0 < width <= image_width
    if fits and low <= height * width <= high:
      top = int(rng.random() * (image_height - height + 1))
      left = int(rng.random() * (image_width - width + 1))
      return top, left, height, width
  return 0, 0, image_height, image_width


def _inception(
  picture: Picture,
  size: tuple[int, int],
  area: tuple[float, float],
  rng: np.random.Generator,
  interpolation: Interpolation,
  out: np.ndarray | None = None,
) -> np.ndarray:
  """A random box of the picture, squashed to `size` ('Going deeper with convolutions', section 6)."""
  pixels, box = picture.part(sample_box(picture.size, area, rng), at_least=size)
  return resize(pixels, size, box, interpolation, out)


def random_window(
  image: np.ndarray, size: tuple[int, int], padding: int, rng: np.random.Generator
) -> np.ndarray:
  """A window at a uniformly random place of an image, uint8 (H, W, C), with a border of `padding` black pixels."""
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


def central(picture: Picture, size: tuple[int, int], shorter: int | None) -> np.ndarray:
  """Resizes the picture in fixed point, keeping its aspect ratio, and cuts the middle: uint8 (*size, channels).

  `shorter`: pixels of the shorter side after resizing; None: as few as cover `size`.
  """
  whole = Preprocess(size, shorter=shorter or 0).resized_size(picture.size)
  pixels, whole = geometry.middle(picture.pixels(whole), whole, size)
  return geometry.cut(resize(pixels, whole), size)
