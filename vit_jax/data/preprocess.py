"""How images of any size become the input of a model: one description, in training, evaluation and elsewhere.

A checkpoint has it, a run takes it over into its config (`training/preprocessing.py`), and its evaluators, its
checkpoints and `vit_jax.load` have it from there.
"""

import dataclasses
import os
from collections.abc import Iterable
from typing import Any, Literal, get_args

import jax
import numpy as np
import numpy.typing as npt
from PIL import Image

from vit_jax.data import decode, geometry
from vit_jax.data.config import DataConfig, EvalCrop, Interpolation, Resize
from vit_jax.data.decode import Box
from vit_jax.data.opencv import opencv
from vit_jax.foundation.errors import UserError, first_line
from vit_jax.foundation.naflex import Patches

Method = Literal['nearest', 'bilinear', 'bicubic', 'lanczos']
TimmCrop = Literal['center', 'squash', 'border']

_PILLOW = {method: Image.Resampling[method.upper()] for method in get_args(Method)}
# Interpolation of a run -> method.
METHODS: dict[Interpolation, Method] = {
  'bilinear': 'bilinear',
  'pillow_nearest': 'nearest',
  'pillow_bilinear': 'bilinear',
  'pillow_bicubic': 'bicubic',
  'pillow_lanczos': 'lanczos',
}
# crop of an evaluator -> timm's crop_mode.
_TIMM: dict[EvalCrop, TimmCrop] = {'timm_center': 'center', 'timm_squash': 'squash', 'timm_border': 'border'}
_OPENCV = {'nearest': 'INTER_NEAREST', 'bilinear': 'INTER_LINEAR', 'bicubic': 'INTER_CUBIC'}


@dataclasses.dataclass(frozen=True)
class Preprocess:
  """The size and the value range of the images that a checkpoint was trained with."""

  size: tuple[int, int]  # height, width of the model's input
  channels: int = 3  # of the model's input: 3 (RGB) or 1 (luma)
  # (pixel / 255 - mean) / std, with one number for all channels, or one for each.
  mean: tuple[float, ...] = (0.5,)
  std: tuple[float, ...] = (0.5,)
  # None: squash to `size`. Otherwise resize the shorter side to so many pixels (0: as few as cover `size`), and
  # cut the middle.
  shorter: int | None = None
  # In place of `shorter`: resize to this height and width, and cut the middle (DeiT in transformers).
  whole: tuple[int, int] | None = None
  # timm's crop_mode, for checkpoints of timm's: it rounds the place of the cut in its own way, and keeps the shape
  # of the image where `whole` is given: 'center' covers it, 'border' stays within it, on a ground of the mean's
  # colour. None: as transformers.
  timm: TimmCrop | None = None
  method: Method = 'bilinear'  # 'lanczos' only with antialias
  # Pillow's resize (uint8, its kernel widened when it shrinks), which Hugging Face's checkpoints were
  # trained with; otherwise float32, half-pixel centres and no antialiasing, as the original's.
  antialias: bool = False
  # NaFlex: images keep their aspect ratio, and are cut into at most so many patches (foundation/naflex.py) in place of
  # `size`, which is that of the model's positions. None: all have `size`.
  max_patches: int | None = None
  patch: int = 16  # pixels along a side of a patch of these

  @classmethod
  def from_range(cls, size: tuple[int, int], low: float, high: float, **options: Any) -> 'Preprocess':
    """0 becomes `low` and 255 `high`."""
    return cls(size=size, mean=(-low / (high - low),), std=(1 / (high - low),), **options)

  @classmethod
  def of_run(cls, data: DataConfig, crop: EvalCrop | None, resize: Resize | None) -> 'Preprocess':
    """What the options of a run say.

    Args:
      data: image_size, channels, mean, std, interpolation.
      crop: as `EvaluatorConfig.crop`; None: 'resize'.
      resize: as `EvaluatorConfig.resize`; None: image_size, or as few pixels as cover it.
    """
    (height, width), interpolation = data.image_size, data.interpolation or 'bilinear'
    shorter = whole = None
    if isinstance(resize, tuple):
      whole = resize
    elif crop in ('central', 'timm_center'):
      shorter = resize or (height if height == width else 0)
    elif resize:
      whole = (resize, round(resize * width / height))
    return cls(
      data.image_size,
      data.channels,
      data.mean or (0.5,),
      data.std or (0.5,),
      shorter=shorter,
      whole=whole,
      timm=_TIMM.get(crop or 'resize'),
      method=METHODS[interpolation],
      antialias=interpolation != 'bilinear',
      max_patches=max(data.max_patches, default=None),
      patch=data.patch,
    )

  @property
  def crop(self) -> EvalCrop:
    """As `EvaluatorConfig.crop` calls it."""
    for crop, mode in _TIMM.items():
      if mode == self.timm:
        return crop
    return 'resize' if self.shorter is None else 'central'

  @property
  def resize(self) -> Resize | None:
    """As `EvaluatorConfig.resize` says it."""
    if self.whole is None or self.shorter:
      return self.shorter or None
    height = self.whole[0]
    in_proportion = self.whole[1] == round(height * self.size[1] / self.size[0])
    return height if in_proportion and self.timm != 'center' else self.whole

  @property
  def interpolation(self) -> Interpolation:
    """As `DataConfig.interpolation` calls it."""
    if not self.antialias:
      return 'bilinear'
    return next(name for name, method in METHODS.items() if method == self.method and name != 'bilinear')

  def __call__(self, images: Iterable[Image.Image | np.ndarray]) -> Any:
    """Images of any size as a model's input.

    Args:
      images: Pillow's, or uint8 arrays (H, W) or (H, W, C) of 1 (gray), 2 (gray, alpha), 3 (RGB) or 4 (RGBA)
        channels, of NumPy, JAX or PyTorch. Alpha is dropped; of Pillow's with 16 bits a pixel the upper 8 are taken.

    Returns:
      float32 (B, *size, channels); with `max_patches` such `Patches`.

    Raises:
      UserError: an image that cannot be read, or whose values or channels can be meant in several ways.
    """
    pixels = [self._prepared(pixels_of(image, self.channels)) for image in _listed(images)]
    if not pixels:
      raise UserError('preprocess takes a list of images, and this one is empty; give at least one.')
    # (x / 255 - mean) / std as one product and sum, in float64.
    scale = 1 / (255 * np.asarray(self.std, np.float64))
    offset = -np.asarray(self.mean, np.float64) / np.asarray(self.std, np.float64)
    grids = [patches.grids for patches in pixels if isinstance(patches, Patches)]
    arrays = [image.pixels if isinstance(image, Patches) else image for image in pixels]
    scaled = (np.stack(arrays) * scale + offset).astype(np.float32)
    return Patches(scaled, np.stack(grids)) if grids else scaled

  def as_bytes(self, image: np.ndarray) -> Any:
    """An image, uint8 (H, W, channels), resized and cut: uint8 (*size, channels); with `max_patches` its `Patches`."""
    prepared = self._prepared(image)
    return jax.tree.map(lambda x: np.rint(x).astype(np.uint8) if x.dtype == np.float32 else x, prepared)

  def at(self, size: tuple[int, int]) -> 'Preprocess':
    """The same for a model of another input size: what is cut off keeps its share of the image."""
    ratios = (size[0] / self.size[0], size[1] / self.size[1])
    shorter = None if self.shorter is None else round(self.shorter * max(ratios))
    whole = None
    if self.whole is not None:
      whole = (round(self.whole[0] * ratios[0]), round(self.whole[1] * ratios[1]))
    return dataclasses.replace(self, size=(size[0], size[1]), shorter=shorter, whole=whole)

  def differences(self, written: 'Preprocess', project: str) -> tuple[str, ...]:
    """Sentences about how another project prepares images otherwise, whose file can say no more than `written`."""
    notes = ()
    if not self.antialias:
      notes = (
        f"{project}'s resize antialiases, and the {self.method} resize of this checkpoint does not: of images "
        'that are shrunk, pixels differ, and of a few the class too.',
      )
    if self.max_patches is not None:
      notes += (
        f'{project} squashes images to one size, and this checkpoint keeps their aspect ratio (NaFlex).',
      )
    if self.resize_rule != written.resize_rule:
      notes += (
        f'{project} has no resize of this kind ({self.crop}, {self.resize} pixels): it prepares images of most '
        'sizes otherwise.',
      )
    elif (self.timm is None) != (written.timm is None) and not self._cut_is_even:
      notes += (
        f'{project} rounds the place of the cut otherwise: for some sizes of images it is a pixel away.',
      )
    return notes

  def resized_size(self, size: tuple[int, int]) -> tuple[int, int]:
    """Height and width to which an image of height and width `size` is resized, before its middle is cut."""
    rule, target = self.resize_rule
    if rule == 'shorter':
      return geometry.shorter_side(size, target[0], nearest=not self.antialias)
    return target if rule == 'squash' else geometry.keep_ratio(size, target, within=rule == 'border')

  @property
  def resize_rule(self) -> tuple[Literal['shorter', 'squash', 'cover', 'border'], tuple[int, int]]:
    """How the resized size follows from an image's, and what it aims at."""
    if self.shorter:
      return 'shorter', (self.shorter, self.shorter)
    covers = self.shorter is not None or self.timm == 'center'
    return 'cover' if covers else 'border' if self.timm == 'border' else 'squash', self.whole or self.size

  @property
  def _cut_is_even(self) -> bool:
    """Whether the middle of every image is cut at the same place however half a pixel is rounded."""
    rests = (large - small for large, small in zip(self.whole or self.size, self.size, strict=True))
    odd = any(rest % 2 if rest < 0 else rest % 4 == 3 for rest in rests)
    return self.resize_rule[0] == 'squash' and not odd

  def _prepared(self, image: np.ndarray) -> Any:
    """An image (H, W, C), resized and cut, (*size, C); with `max_patches` `Patches`. uint8, or float32 in 0 … 255."""
    if self.max_patches is None:
      return self._resized(image)
    size = geometry.within_patches((image.shape[0], image.shape[1]), self.patch, self.max_patches)
    return patches_of(self._resize(image, size), self.patch, self.max_patches)

  def _resized(self, image: np.ndarray) -> np.ndarray:
    """(H, W, C) -> (*size, C), uint8 or float32 in 0 … 255."""
    whole = self.resized_size((image.shape[0], image.shape[1]))
    image, whole = geometry.middle(image, whole, self.size)
    ground = np.clip(np.rint(255 * np.asarray(self.mean)), 0, 255) if self.timm == 'border' else 0
    return geometry.cut(self._resize(image, whole), self.size, half_even=self.timm is not None, fill=ground)

  def _resize(self, image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if image.shape[:2] == tuple(size):
      return image
    height, width = size
    if self.antialias:
      return pillow_resize(image, size, self.method)
    cv2 = opencv()
    interpolation = getattr(cv2, _OPENCV[self.method])
    resized = cv2.resize(image.astype(np.float32), (width, height), interpolation=interpolation)
    return resized.reshape(height, width, image.shape[2])


def patches_of(image: np.ndarray, patch: int, most: int) -> Patches:
  """An image of whole patches, (h P, w P, C), as a column of them, padded to `most`."""
  grid = np.array([image.shape[0] // patch, image.shape[1] // patch], np.int32)
  return Patches(geometry.column(image, patch, most), grid)


def pillow_resize(
  image: np.ndarray, size: tuple[int, int], method: Method, box: Box | None = None
) -> np.ndarray:
  """Pillow's resize, which antialiases: uint8 (H, W, C) -> uint8 (*size, C); of a box or the whole image."""
  pillow = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
  if box is not None:
    top, left, height, width = box
    edges = (left, top, left + width, top + height)
    box = (max(edges[0], 0), max(edges[1], 0), min(edges[2], pillow.width), min(edges[3], pillow.height))
  resized = np.asarray(pillow.resize((size[1], size[0]), _PILLOW[method], box=box))
  return resized.reshape(*size, image.shape[2])


def _listed(images: Iterable[Image.Image | np.ndarray]) -> Iterable[Image.Image | np.ndarray]:
  """The images of a list, an iterator or an array (B, H, W, C) of any library.

  UserError for a single image, whose rows would be taken for images, and for what is nothing of the kind.
  """
  holds_images = getattr(images, 'dtype', None) == np.dtype(object)  # a column of pandas, say
  single = isinstance(images, Image.Image | str | bytes | os.PathLike) or not isinstance(images, Iterable)
  if single or (getattr(images, 'ndim', 4) < 4 and not holds_images):
    raise UserError(
      f'preprocess takes a list of images, and this is a single {type(images).__name__}; write preprocess([image]), '
      'or preprocess([Image.open(path)]) of a file.'
    )
  return images


def pixels_of(image: Image.Image | np.ndarray, channels: int) -> np.ndarray:
  """An image that `Preprocess` takes, upright, as uint8 (H, W, channels); raises UserError as that."""
  picture = _upright(image) if isinstance(image, Image.Image) else _picture(image)
  if not picture.width or not picture.height:
    raise UserError(f'An image has {picture.width} x {picture.height} pixels; leave it out.')
  try:
    return decode.with_channels(decode.eight_bits(picture, channels), channels)
  except ValueError as error:  # Pillow has no conversion from 'LAB' to 'L', and none from 'La'
    raise UserError(
      f'An image of the mode {picture.mode!r} cannot be read ({error}); convert it first.'
    ) from error


def _upright(image: Image.Image) -> Image.Image:
  """An image of Pillow's, decoded and turned as its metadata says; UserError where its file is damaged or closed."""
  name = getattr(image, 'filename', '') or 'An image'
  try:
    return decode.upright(image)
  except MemoryError:
    raise
  except Exception as error:  # Pillow's decoders raise a dozen types on damaged data
    raise UserError(
      f'{os.fspath(name)} cannot be decoded ({first_line(error)}); keep its file open until then, or restore or '
      'remove it.'
    ) from error


def _picture(image: npt.ArrayLike) -> Image.Image:
  """An array, uint8 (H, W) or (H, W, 1 to 4), as Pillow's image; UserError for another: a guess could be wrong."""
  try:
    pixels = np.asarray(image)
  except ValueError as error:  # rows of several lengths
    raise UserError(f'An image is no array ({error}).') from error
  if pixels.ndim == 3 and pixels.shape[2] == 1:
    pixels = pixels[:, :, 0]
  has_shape = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (2, 3, 4))
  if pixels.dtype != np.uint8 or not has_shape or not pixels.size:
    raise UserError(
      f'An image is a {type(image).__name__} of {pixels.dtype} and shape {pixels.shape}; give one of Pillow, such as '
      'Image.open(path), or an array of uint8 (height, width) or (height, width, 1 to 4 channels): '
      '(255 * image).round().astype(np.uint8) of values from 0 to 1, (image >> 8).astype(np.uint8) of 16 bits, '
      'image.transpose(1, 2, 0) where the channels come first.'
    )
  return Image.fromarray(pixels)
