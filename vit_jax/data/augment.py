"""Random augmentation of a training image after its crop: uint8 in, uint8 out, on the host.

Builds what `config.data.augment` names from the operations of `image_ops.py`. All randomness comes from a
generator that the caller passes. Mixing images with each other happens on the device (`on_device.py`).
"""

import functools
import math
from collections.abc import Callable

import numpy as np

from vit_jax.data import augment_policy
from vit_jax.data import image_ops as ops
from vit_jax.data.augment_policy import Step

Augmentation = Callable[[np.ndarray, np.random.Generator], np.ndarray]
# (image, magnitude / 10, generator) -> image
Operation = Callable[[np.ndarray, float, np.random.Generator], np.ndarray]

_REFERENCE = 224  # the image size for which the original gives distances in pixels
_JITTERED = (ops.brightness, ops.contrast, ops.saturation)
_ATTEMPTS = 10


@functools.lru_cache
def augmentation(text: str) -> Augmentation:
  """The augmentation that `config.data.augment` names: a function of an image, uint8 (H, W, C), and a generator.

  It returns an image of the same shape and does not write into its argument.
  """
  steps = [_function(step) for step in augment_policy.parse(text)]

  def apply(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    for step in steps:
      image = step(image, rng)
    return image

  return apply


def _function(step: Step) -> Augmentation:
  match step:
    case Step('randaugment', (layers, magnitude)):
      return functools.partial(randaugment, layers=int(layers), magnitude=magnitude)
    case Step('3augment'):
      return three_augment
    case Step('jitter', (strength,)):
      return functools.partial(jitter, strength=strength)
    case Step('erase', (probability,)):
      return functools.partial(erase, probability=probability)
    case Step('dino', (blurred, solarized)):
      return functools.partial(dino, blurred=blurred, solarized=solarized)
  raise ValueError(f'{step} is not an augmentation')


def randaugment(image: np.ndarray, rng: np.random.Generator, *, layers: int, magnitude: float) -> np.ndarray:
  """RandAugment (arXiv 1909.13719): applies `layers` operations in a row, each drawn from the same 16.

  As in the original project and in AugReg, magnitude 10 is the full range of every operation, and larger values
  go beyond it.
  """
  for _ in range(layers):
    image = _OPERATIONS[int(rng.integers(len(_OPERATIONS)))](image, magnitude / 10, rng)
  return image


def three_augment(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """3-Augment (DeiT III, arXiv 2204.07118): grayscale, solarize or blur, then a colour jitter of 0.3."""
  choice = int(rng.integers(3))
  if choice == 0:
    image = ops.grayscale(image)
  elif choice == 1:
    image = ops.solarize(image, 128)
  else:
    image = ops.blur(image, rng.uniform(0.1, 2.0))
  return jitter(image, rng, strength=0.3)


def jitter(image: np.ndarray, rng: np.random.Generator, *, strength: float) -> np.ndarray:
  """Scales brightness, contrast and saturation in random order, each by 1 - strength to 1 + strength."""
  for index in rng.permutation(len(_JITTERED)):
    image = _JITTERED[index](image, rng.uniform(1 - strength, 1 + strength))
  return image


def dino(image: np.ndarray, rng: np.random.Generator, *, blurred: float, solarized: float) -> np.ndarray:
  """The colours of DINO's crops (arXiv 2104.14294, by BYOL; DINOv2's `DataAugmentationDINO`).

  In 80 % a jitter of brightness and contrast by 0.4, of saturation by 0.2 and of hue by 0.1, in random order; in 20 %
  gray; then blurred and solarized with these probabilities.
  """
  if rng.random() < 0.8:
    strengths = ((ops.brightness, 0.4), (ops.contrast, 0.4), (ops.saturation, 0.2))
    steps = [functools.partial(step, factor=rng.uniform(1 - most, 1 + most)) for step, most in strengths]
    steps.append(functools.partial(ops.hue, turn=rng.uniform(-0.1, 0.1)))
    for index in rng.permutation(len(steps)):
      image = steps[index](image)
  if rng.random() < 0.2:
    image = ops.grayscale(image)
  if rng.random() < blurred:
    image = ops.blur(image, rng.uniform(0.1, 2.0))
  return ops.solarize(image, 128) if rng.random() < solarized else image


def erase(image: np.ndarray, rng: np.random.Generator, *, probability: float) -> np.ndarray:
  """Random Erasing (arXiv 1708.04896, variant RE-R): fills a random box with noise.

  The box covers 2 to 33 % of the image; its aspect ratio is 0.3 to 3.3, uniform in the logarithm.
  """
  if rng.random() >= probability:
    return image
  height, width, channels = image.shape
  for _ in range(_ATTEMPTS):
    area = rng.uniform(0.02, 1 / 3) * height * width
    aspect = math.exp(rng.uniform(math.log(0.3), -math.log(0.3)))
    box_height, box_width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
    if 0 < box_height < height and 0 < box_width < width:
      top = int(rng.integers(height - box_height + 1))
      left = int(rng.integers(width - box_width + 1))
      noise = rng.integers(0, 256, (box_height, box_width, channels), np.uint8)
      return ops.fill_box(image, top, left, box_height, box_width, noise)
  return image


def _random_sign(rng: np.random.Generator, value: float) -> float:
  return value if rng.random() < 0.5 else -value


def _moved(image: np.ndarray, axis: int, level: float, rng: np.random.Generator) -> float:
  """A way of 100 of 224 pixels at full range; at other sizes, of the same share of the image."""
  return _random_sign(rng, 100 * level * image.shape[axis] / _REFERENCE)


def _enhanced(level: float) -> float:
  """The factor of one of Pillow's enhancements; 1 leaves the image as it is."""
  return 0.1 + 1.8 * level


def _cutout(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
  """Covers a gray box of 80 of 224 pixels at full range, centred anywhere in the image."""
  height, width = image.shape[:2]
  half_height, half_width = [int(int(40 * level) * side / _REFERENCE) for side in (height, width)]
  y, x = int(rng.integers(height)), int(rng.integers(width))
  return ops.fill_box(image, y - half_height, x - half_width, 2 * half_height, 2 * half_width)


# By the original's names.
RANDAUGMENT: dict[str, Operation] = {
  'AutoContrast': lambda image, level, rng: ops.autocontrast(image),
  'Equalize': lambda image, level, rng: ops.equalize(image),
  'Invert': lambda image, level, rng: ops.invert(image),
  'Rotate': lambda image, level, rng: ops.rotate(image, _random_sign(rng, 30 * level)),
  # A higher magnitude keeps more bits; in the original a shift by all 8 bits becomes one by 7.
  'Posterize': lambda image, level, rng: ops.posterize(image, min(max(int(4 * level), 1), 8)),
  # The original's threshold is a uint8, in which 256 becomes 0: magnitudes 0, 10 and 20 invert everything.
  'Solarize': lambda image, level, rng: ops.solarize(image, int(256 * level) % 256),
  'Color': lambda image, level, rng: ops.saturation(image, _enhanced(level)),
  'Contrast': lambda image, level, rng: ops.contrast(image, _enhanced(level)),
  'Brightness': lambda image, level, rng: ops.brightness(image, _enhanced(level)),
  'Sharpness': lambda image, level, rng: ops.sharpness(image, _enhanced(level)),
  'ShearX': lambda image, level, rng: ops.shear_x(image, _random_sign(rng, 0.3 * level)),
  'ShearY': lambda image, level, rng: ops.shear_y(image, _random_sign(rng, 0.3 * level)),
  'TranslateX': lambda image, level, rng: ops.translate_x(image, _moved(image, 1, level, rng)),
  'TranslateY': lambda image, level, rng: ops.translate_y(image, _moved(image, 0, level, rng)),
  'Cutout': _cutout,
  'SolarizeAdd': lambda image, level, rng: ops.solarize_add(image, int(110 * level)),
}
_OPERATIONS = tuple(RANDAUGMENT.values())
