"""Random augmentation of a training image behind its crop: uint8 in, uint8 out, on the host.

What `config.data.augment` names is made here of `image_ops.py`; all randomness comes from a generator
that the caller gives. Mixing images with each other is left to `on_device.py`.
"""

import functools
import math
from collections.abc import Callable

import numpy as np

from vit_jax.data import augment_policy
from vit_jax.data import image_ops as ops

Augmentation = Callable[[np.ndarray, np.random.Generator], np.ndarray]

_REFERENCE = 224  # the image size that the original's numbers of pixels are for
_JITTERED = (ops.brightness, ops.contrast, ops.saturation)
_ATTEMPTS = 10


@functools.lru_cache
def augmentation(text: str) -> Augmentation:
  """The function of an image and a random generator that `config.data.augment` names.

  It takes and gives uint8 (H, W, C), and does not write into what it is given.
  """
  makers = {
    'randaugment': lambda layers, magnitude: functools.partial(
      randaugment, layers=int(layers), magnitude=magnitude
    ),
    '3augment': lambda: three_augment,
    'jitter': lambda strength: functools.partial(jitter, strength=strength),
    'erase': lambda probability: functools.partial(erase, probability=probability),
  }
  steps = [makers[step.name](*step.arguments) for step in augment_policy.parse(text)]

  def apply(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    for step in steps:
      image = step(image, rng)
    return image

  return apply


def randaugment(image: np.ndarray, rng: np.random.Generator, *, layers: int, magnitude: float) -> np.ndarray:
  """So many operations one after the other, each drawn from 16 ('RandAugment', arXiv 1909.13719).

  As the original project and AugReg have it: 10 is an operation's full range, and more goes beyond it.

  Args:
    image: uint8 (H, W, C).
    rng: the randomness.
    layers: operations.
    magnitude: of all of them.
  """
  for _ in range(layers):
    image = _OPERATIONS[int(rng.integers(len(_OPERATIONS)))](image, magnitude / 10, rng)
  return image


def three_augment(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """One of gray, solarized and blurred, then a colour jitter of 0.3 (DeiT III, arXiv 2204.07118)."""
  choice = int(rng.integers(3))
  if choice == 0:
    image = ops.grayscale(image)
  elif choice == 1:
    image = ops.solarize(image, 128)
  else:
    image = ops.blur(image, rng.uniform(0.1, 2.0))
  return jitter(image, rng, strength=0.3)


def jitter(image: np.ndarray, rng: np.random.Generator, *, strength: float) -> np.ndarray:
  """Brightness, contrast and saturation, each times 1 ± up to `strength`, in random order."""
  for index in rng.permutation(len(_JITTERED)):
    image = _JITTERED[index](image, rng.uniform(1 - strength, 1 + strength))
  return image


def erase(image: np.ndarray, rng: np.random.Generator, *, probability: float) -> np.ndarray:
  """A random box becomes noise ('Random Erasing', arXiv 1708.04896, its RE-R).

  The box has 2 to 33 % of the image and an aspect ratio of 0.3 to 3.3 (uniform in the logarithm).
  """
  if rng.random() >= probability:
    return image
  height, width, channels = image.shape
  for _ in range(_ATTEMPTS):
    area = rng.uniform(0.02, 1 / 3) * height * width
    aspect = math.exp(rng.uniform(math.log(0.3), -math.log(0.3)))
    tall, wide = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
    if 0 < tall < height and 0 < wide < width:
      top, left = (int(rng.integers(side - box + 1)) for side, box in ((height, tall), (width, wide)))
      noise = rng.integers(0, 256, (tall, wide, channels), np.uint8)
      return ops.fill_box(image, top, left, tall, wide, noise)
  return image


def _signed(rng: np.random.Generator, value: float) -> float:
  return value if rng.random() < 0.5 else -value


def _enhancing(op: Callable[[np.ndarray, float], np.ndarray]) -> Callable:
  return lambda image, level, rng: op(image, 0.1 + 1.8 * level)


def _translating(op: Callable[[np.ndarray, float], np.ndarray], axis: int) -> Callable:
  # 100 of 224 pixels at full range: at other sizes the same share of the image.
  return lambda image, level, rng: op(image, _signed(rng, 100 * level * image.shape[axis] / _REFERENCE))


def _cutout(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
  """A gray box of 80 pixels (of 224) at full range, whose centre is anywhere in the image."""
  height, width = image.shape[:2]
  halves = [int(int(40 * level) * side / _REFERENCE) for side in (height, width)]
  y, x = int(rng.integers(height)), int(rng.integers(width))
  return ops.fill_box(image, y - halves[0], x - halves[1], 2 * halves[0], 2 * halves[1])


def _solarize(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
  # In the original the threshold is a uint8, so that 256 is 0: at magnitudes 0, 10 and 20 all is inverted.
  return ops.solarize(image, int(256 * level) % 256)


def _posterize(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
  # The stronger, the more bits are kept; a shift by all 8 is one by 7 in the original.
  return ops.posterize(image, min(max(int(4 * level), 1), 8))


# (image, magnitude / 10, generator) -> image, under the original's names.
RANDAUGMENT: dict[str, Callable[[np.ndarray, float, np.random.Generator], np.ndarray]] = {
  'AutoContrast': lambda image, level, rng: ops.autocontrast(image),
  'Equalize': lambda image, level, rng: ops.equalize(image),
  'Invert': lambda image, level, rng: ops.invert(image),
  'Rotate': lambda image, level, rng: ops.rotate(image, _signed(rng, 30 * level)),
  'Posterize': _posterize,
  'Solarize': _solarize,
  'Color': _enhancing(ops.saturation),
  'Contrast': _enhancing(ops.contrast),
  'Brightness': _enhancing(ops.brightness),
  'Sharpness': _enhancing(ops.sharpness),
  'ShearX': lambda image, level, rng: ops.shear_x(image, _signed(rng, 0.3 * level)),
  'ShearY': lambda image, level, rng: ops.shear_y(image, _signed(rng, 0.3 * level)),
  'TranslateX': _translating(ops.translate_x, axis=1),
  'TranslateY': _translating(ops.translate_y, axis=0),
  'Cutout': _cutout,
  'SolarizeAdd': lambda image, level, rng: ops.solarize_add(image, int(110 * level)),
}
_OPERATIONS = tuple(RANDAUGMENT.values())
