"""The options of a run's training data."""

import dataclasses
import math
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from vit_jax.data import augment_policy, folds
from vit_jax.foundation.durations import Duration
from vit_jax.foundation.errors import UserError
from vit_jax.foundation.registry import KindOf
from vit_jax.options import (
  RESUMABLE,
  TINY,
  Amount,
  AtLeast,
  Between,
  Count,
  ImageSize,
  Pixels,
  Positive,
  Size,
)

Crop = Literal['inception', 'random', 'central', 'resize']
EvalCrop = Literal['resize', 'central', 'timm_center', 'timm_squash', 'timm_border']
Resize = Pixels | tuple[Pixels, Pixels]  # see `EvaluatorConfig.resize`
Interpolation = Literal['bilinear', 'pillow_nearest', 'pillow_bilinear', 'pillow_bicubic', 'pillow_lanczos']
_HALF = (0.5,)
_LARGEST_RATIO = 256  # of an image's side to the side of the middle that is cut out


class ExtraCrops(NamedTuple):
  """Crops of each training image beside the one that `DataConfig.crop` makes; a batch has them by their name."""

  name: str  # of uint8 (B, number, *size, C)
  number: int
  size: tuple[int, int]  # height, width
  area: tuple[float, float]  # smallest and largest share of the image; see DataConfig.area
  augment: str  # see DataConfig.augment


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """What the model is trained on, and how an image becomes its input."""

  # Training data: 'digits' (comes with scikit-learn), 'tfds:NAME', 'tfds:/a/prepared/directory', 'folder:/path' or
  # 'vtab:TASK'. A split written behind it ('tfds:cifar10:train[:98%]') wins over `split`.
  source: Annotated[str, KindOf('vit_jax.data.sources.base:SOURCES')] = 'digits'
  # Split of the source, such as 'train' or 'train[:98%]'.
  split: str = 'train'
  # Height and width of the model's input in pixels; one number stands for both.
  image_size: ImageSize = (224, 224)
  # Smaller images at first, ((until, height), …), such as (('40%', 128), ('70%', 160)); width, `resize` and `padding`
  # change in proportion. The model is built for `image_size` and evaluated at it; its positions are interpolated.
  progressive_resizing: tuple[tuple[Duration, Pixels], ...] = ()
  # Patches of an image that keeps its aspect ratio (NaFlex, SigLIP 2): it is resized to the largest size of at most so
  # many patches, and padded to them. Of several numbers each step takes one, in turn, and evaluators the largest.
  # `image_size` is then that of the model's positions only. () for images of one size.
  max_patches: tuple[Count, ...] = ()
  # Pixels along a side of a patch of max_patches, as the model's.
  patch: Size = 16
  # Channels of an image: 3 for colour, 1 for grayscale.
  channels: Literal[1, 3] = 3
  # Several sources in place of `source`, ((source, weight), …), drawn from in proportion to their weights; their
  # classes are united by name. Each source is shuffled on its own and gives every record once a pass; an epoch has as
  # many images as all sources together.
  mixture: tuple[tuple[str, float], ...] = ()
  # Classes, by name, to which training and evaluators are limited; () for all. Labels keep their numbers.
  classes: tuple[str, ...] = ()
  # Largest number of training images of each class (in each source of a mixture), chosen by `seed`. None for all.
  max_per_class: Count | None = None
  # Number of times an image is in a batch, each time augmented anew (arXiv 1901.09335; DeiT takes 3). An epoch keeps
  # its number of images, so that a pass through the data takes this many epochs. 1 for objectives that tell the images
  # of a batch apart.
  repeats: Count = 1
  # Number of outputs of the head. None for the data's number of classes.
  num_classes: Count | None = None
  # Length of the longest list of classes, where images have lists; needs objective.loss 'sigmoid' or label_weights.
  # An image then counts as right if its most probable class is on its list (precision@1); one with an empty list
  # counts as wrong. None if each image has one class.
  max_labels: Count | None = None
  # Weights from 0 to 1 for an image's classes (soft labels), where the data has them; otherwise each weight is 1.
  # 'softmax' divides them by their sum. An image then counts as right if its most probable class has the largest
  # weight. Needs max_labels.
  label_weights: bool = False
  # Cut of a training image: 'inception' (a random box, distorted), 'random' (resize, pad, random position), 'central'
  # (resize the shorter side, cut the middle) or 'resize' (squash).
  crop: Crop = 'inception'
  # Smallest and largest share of the image that the box of 'inception' has.
  area: tuple[float, float] = (0.05, 1.0)
  # Size in pixels before the cut: both sides for 'random', the shorter one for 'central'.
  resize: Pixels | None = None
  # Zero pixels that 'random' adds on every side.
  padding: Amount = 0
  # Mirroring of half of the training images, left to right.
  flip: bool = True
  # Augmentation of the cut image, in this order: 'randaugment(LAYERS,MAGNITUDE)', '3augment' (DeiT III),
  # 'jitter(STRENGTH)' of brightness, contrast and saturation, 'dino(BLUR,SOLARIZE)', DINO's colours and those two by
  # their probabilities, 'erase(PROBABILITY)' of a random box; or a level of AugReg, which brings mixup along: 'none',
  # 'light1', 'light2', 'medium1', 'medium2', 'strong1' or 'strong2'. Several are joined: 'medium1 | erase(0.25)'.
  augment: Annotated[str, augment_policy.parse] = 'none'
  # Parameter α of mixup, which blends each image, and its target, with another one of the batch; the shares are drawn
  # from Beta(α, α), and train/accuracy counts the image with the larger share. 0 to switch it off. None for what
  # `augment` brings along.
  mixup: Annotated[float, Between(0, 100)] | None = None
  # Parameter α of CutMix, which puts a box of the other image in. With mixup too, a coin decides for each draw.
  cutmix: Annotated[float, Between(0, 100)] = 0.0
  # Scope of a draw of mixup and CutMix: the whole 'batch', or each 'example'.
  mix_per: Literal['batch', 'example'] = 'batch'
  # Mean of the pixels' normalisation, (pixel / 255 - mean) / std; one number for all channels or one for each. None
  # for what init.checkpoint was trained with, and without one for 0.5 and 0.5, which gives -1 to 1.
  mean: tuple[float, ...] | None = None
  # Deviation of the pixels' normalisation; see mean.
  std: tuple[Positive, ...] | None = None
  # Interpolation by which images are resized: 'bilinear' without antialiasing, as in the paper's code, or Pillow's
  # 'pillow_bicubic', 'pillow_bilinear', 'pillow_lanczos' or 'pillow_nearest'. None for what init.checkpoint was
  # trained with, and without one for 'bilinear'.
  interpolation: Interpolation | None = None
  # Share of the images held out as 'val', in a folder without train/ and val/.
  val_fraction: Annotated[float, Between(TINY, 1 - TINY)] = 0.1
  # Fold of cross-validation, such as '2/5': 'val' is the second of five parts with the same classes, and 'train' the
  # other four, of the images of a folder without train/ and val/, or of another source's 'train'; 'train[:90%]' is a
  # part of these four. None to hold out val_fraction.
  fold: Annotated[str, folds.parse] | None = None
  # Action at a training image that cannot be decoded: 'stop', or 'replace' it by the image in its row of the next step.
  # Replaced images are counted as data/bad_images and listed in report/bad_images.jsonl.
  bad_images: Annotated[Literal['stop', 'replace'], RESUMABLE] = 'stop'
  # Cache in memory of the images that training and evaluators have read: decoded pixels, or the file of a JPEG. For
  # small data that is read many times; CIFAR-10 takes 210 MB in each process.
  cache: Annotated[bool, RESUMABLE] = False
  # Threads that read and decode images, in each process. None for one a processor that the process may use, at most
  # 16; for 64 where images come from a bucket, for which threads mostly wait.
  threads: Annotated[Annotated[int, AtLeast(1, at_most=1024)] | None, RESUMABLE] = None
  # Batches prepared in advance, in each process.
  prefetch: Annotated[int, AtLeast(1, at_most=1024), RESUMABLE] = 2

  @property
  def title(self) -> str:
    """What messages call the training data."""
    return ' + '.join(source for source, _ in self.mixture) or self.source

  @property
  def mixup_alpha(self) -> float:
    """The parameter α of mixup: `mixup`, or that of the level in `augment`; 0 for none."""
    return augment_policy.mixup(self.augment) if self.mixup is None else self.mixup

  @property
  def value_range(self) -> tuple[Any, Any]:
    """What 0 and 255 become: two floats, or two float64 arrays (C,) where channels differ."""
    mean, std = self.mean or _HALF, self.std or _HALF
    if len(set(mean)) == len(set(std)) == 1:
      return -mean[0] / std[0], (1 - mean[0]) / std[0]
    return -np.array(mean) / std, (1 - np.array(mean)) / std

  @property
  def input_size(self) -> tuple[int, int]:
    """Height and width of the arrays of a batch: `image_size`, or a column of the most of `max_patches`."""
    return (max(self.max_patches) * self.patch, self.patch) if self.max_patches else self.image_size

  @property
  def smallest_resize(self) -> int:
    """The fewest pixels of `resize` out of which an image can be cut, with its padding."""
    return max(self.image_size) - (2 * self.padding if self.crop == 'random' else 0)

  def check(self, path: str) -> None:
    """Raises UserError where options contradict each other."""
    if self.max_patches:
      self._check_any_shape(path)
    low, high = self.area
    if not 0 < low <= high <= 1:
      raise UserError(f'{path}.area is {self.area}; it must be two shares with 0 < low <= high <= 1.')
    for name, values in (('mean', self.mean), ('std', self.std)):
      if values is not None and len(values) not in (1, self.channels):
        raise UserError(
          f'{path}.{name} is {values}; give one number, or one for each of the {self.channels} channels.'
        )
    if self.label_weights and self.max_labels is None:
      raise UserError(
        f'{path}.label_weights is on and {path}.max_labels is None; set it to the length of the longest list.'
      )
    if self.crop in ('random', 'central') and self.resize is not None and self.resize < self.smallest_resize:
      raise _too_small(f'{path}.resize', self.resize, self.image_size, self.smallest_resize)
    if self.crop == 'central':
      check_resize(f'{path}.resize', self.resize, self.image_size, crop='central')
    if self.crop == 'random' and self.padding >= min(self.image_size):
      raise UserError(
        f'{path}.padding is {self.padding} pixels, as much as image_size {self.image_size} or more: a crop could '
        f'lie beside its image; make it smaller.'
      )
    for source, weight in self.mixture:
      if not 0 < weight < math.inf:
        raise UserError(f'{path}.mixture: {source!r} has the weight {weight}; it must be more than 0.')

  def _check_any_shape(self, path: str) -> None:
    """Raises UserError for what needs images of one size."""
    for name, wrong in (
      ('crop', self.crop not in ('inception', 'resize')),
      ('progressive_resizing', self.progressive_resizing),
      ('mixup', self.cutmix or self.mixup_alpha),
    ):
      if wrong:
        raise UserError(
          f'{path}.max_patches is for images of any shape, and {path}.{name} for images of one size; '
          + ("choose crop 'inception' or 'resize'." if name == 'crop' else 'switch one of them off.')
        )


def check_resize(name: str, resize: Resize | None, image_size: tuple[int, int], *, crop: EvalCrop) -> None:
  """Raises UserError where images resized to `resize` have no middle of `image_size`, or one of next to nothing.

  Cutting next to nothing out of enlarged images would take hours, and the model would see a few pixels of each.

  Args:
    name: of the option.
    resize: as `EvaluatorConfig.resize`.
    image_size: height and width of the middle.
    crop: what `resize` is of. timm's may be smaller than `image_size`: a border is added.
  """
  if resize is None:
    return
  if crop == 'central' and isinstance(resize, tuple):
    raise UserError(f"{name} is {resize}, and crop 'central' takes one number, pixels of the shorter side.")
  sides = resize if isinstance(resize, tuple) else (resize,)
  least = (min(image_size),) if crop == 'central' else image_size
  for side, small in zip(sides, least, strict=False):
    if side < small and not crop.startswith('timm_'):
      raise _too_small(name, side, image_size, small)
    if side > _LARGEST_RATIO * max(image_size):
      raise UserError(
        f'{name} is {side:,} pixels, of which the middle {image_size[0]} × {image_size[1]} (config.data.image_size) '
        f'would be cut out; make it at most {_LARGEST_RATIO * max(image_size):,}.'
      )


def _too_small(name: str, resize: int, image_size: tuple[int, int], least: int) -> UserError:
  height, width = image_size
  return UserError(
    f'{name} is {resize:,} pixels, out of which no {height} × {width} (config.data.image_size) can be cut; make it '
    f'{least:,} or more.'
  )
