"""`preprocessor_config.json` of transformers, and our `Preprocess`."""

import json
import math
import pathlib
import reprlib
from typing import Any

from vit_jax.data.preprocess import Method, Preprocess
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained.json_values import JsonObject

FILE = 'preprocessor_config.json'
_WITH_TOKENIZER = 'processor_config.json'  # of which a section may stand before it, as in transformers
_RESAMPLE: dict[int, Method] = {0: 'nearest', 1: 'lanczos', 2: 'bilinear', 3: 'bicubic'}  # Pillow's numbers
_SIZE = (224, 224)
_LARGEST_SIDE = 2**14  # pixels
_HALF = (0.5,)
_CROPPED = {'do_center_crop': True, 'crop_size': 224, 'resample': 3}
_CLIP = _CROPPED | {
  'size': {'shortest_edge': 224},
  'image_mean': (0.48145466, 0.4578275, 0.40821073),
  'image_std': (0.26862954, 0.26130258, 0.27577711),
}
# The name of a processor begins so -> what it takes where the file says nothing; those of others are ViT's.
_DEFAULTS: dict[str, dict[str, Any]] = {
  'Bit': _CLIP,
  'CLIP': _CLIP,
  'DeiT': _CROPPED | {'size': 256},
  'Beit': {'resample': 3, 'crop_size': 224},
  'Siglip2': {},
  'Siglip': {'resample': 3},
  'DINOv3': {'image_mean': (0.485, 0.456, 0.406), 'image_std': (0.229, 0.224, 0.225)},
  'EfficientNet': {'size': 346, 'crop_size': 289, 'resample': 3, 'include_top': True},
}
# Options of other processors that change pixels.
_OTHER_STEPS = ('crop_pct', 'do_pad', 'do_flip_channel_order', 'keep_aspect_ratio', 'size_divisor')


def read(
  folder: pathlib.Path,
  *,
  image_size: tuple[int, int] | None,
  channels: int,
  default: dict[str, Any],
  processor: str = 'ViT',
) -> tuple[Preprocess, tuple[str, ...]]:
  """How a folder's images are prepared.

  Args:
    folder: where the file is, or is not.
    image_size: height, width of the model's input; None: any, so that the file decides, or 224 pixels.
    channels: of it.
    default: arguments of `Preprocess` for a folder without that file.
    processor: how its class begins, where the file does not name it: 'CLIP'.

  Returns:
    The preparation, for `image_size` where it is given, and sentences about it.

  Raises:
    UserError: a file that is damaged, or asks for what we cannot do.
  """
  path, any_size = folder / FILE, image_size is None
  image_size = image_size or _SIZE
  values = _beside_tokenizer(folder)
  if values is None and path.exists():
    values = JsonObject.read(path)
  if values is None:
    if channels != len(default['mean']):  # the numbers are of colours
      default = default | {'mean': _HALF, 'std': _HALF}
    return Preprocess(image_size, channels, **default), (
      f'{folder} has no {FILE}: images are prepared as is usual for its kind of model, '
      f'mean {default["mean"]} and standard deviation {default["std"]}.',
    )
  if not _kind(values):
    values = values.with_defaults({'image_processor_type': processor})
  result = _described(values, image_size, channels)
  size = result.size
  if any_size or size == tuple(image_size):
    return result, ()
  return result.at(image_size), (
    f'{values.path.name} makes images of {size[0]} x {size[1]} and the model is for {image_size[0]} x '
    f'{image_size[1]}: images are prepared for the latter; image_size={size} resizes the model.',
  )


def _beside_tokenizer(folder: pathlib.Path) -> JsonObject | None:
  """What the file of a model of images and texts says of images; None: there is none."""
  path = folder / _WITH_TOKENIZER
  values = JsonObject.read(path) if path.exists() else None
  return values.section('image_processor') if values is not None and 'image_processor' in values else None


def write(preprocess: Preprocess) -> tuple[str, tuple[str, ...]]:
  """The text of the file, and sentences about what it cannot say."""
  if preprocess.shorter is not None:
    kind, size = 'BitImageProcessor', {'shortest_edge': preprocess.shorter or max(preprocess.size)}
  elif preprocess.whole is not None:
    kind, size = 'DeiTImageProcessor', _sides(preprocess.whole)
  else:
    kind, size = 'ViTImageProcessor', _sides(preprocess.size)
  numbers = {name: number for number, name in _RESAMPLE.items()}
  values = {
    'do_normalize': True,
    'do_rescale': True,
    'do_resize': True,
    'image_mean': _each(preprocess.mean, preprocess.channels),
    'image_processor_type': kind,
    'image_std': _each(preprocess.std, preprocess.channels),
    'resample': numbers[preprocess.method],
    'rescale_factor': 1 / 255,
    'size': size,
  }
  if kind != 'ViTImageProcessor':
    values |= {'do_center_crop': True, 'crop_size': _sides(preprocess.size)}
  if kind == 'BitImageProcessor':
    values['do_convert_rgb'] = preprocess.channels == 3
  read = _described(JsonObject(pathlib.Path(), values), preprocess.size, preprocess.channels)
  return json.dumps(values, indent=2, sort_keys=True) + '\n', preprocess.differences(read, 'transformers')


def _described(values: JsonObject, image_size: tuple[int, int], channels: int) -> Preprocess:
  """What the file says, completed as its processor's class does."""
  path, kind = values.path, _kind(values)
  values = values.with_defaults(next((own for name, own in _DEFAULTS.items() if kind.startswith(name)), {}))
  for name in _OTHER_STEPS:
    if values.raw(name):
      raise UserError(
        f'{path} has {name} {reprlib.repr(values.raw(name))}, a step that vit_jax does not have; take it out to '
        'prepare images without it.'
      )
  resample = values.raw('resample', 2)
  if type(resample) is not int or resample not in _RESAMPLE:
    raise UserError(f'{path} asks for resample {reprlib.repr(resample)}; choose one of {sorted(_RESAMPLE)}.')
  if not values.flag('do_resize', True):
    raise UserError(f'{path} says do_resize false, and photographs have many sizes; set it to true.')
  mean, std = _normalisation(values, channels)
  method = _RESAMPLE[resample]
  if kind.startswith('Siglip2'):
    most, patch = values.integer('max_num_patches', 256), values.integer('patch_size', 16)
    return Preprocess(
      image_size, channels, mean, std, method=method, antialias=True, max_patches=most, patch=patch
    )
  size, shorter, whole = _sizes(values, image_size)
  return Preprocess(size, channels, mean, std, shorter=shorter, whole=whole, method=method, antialias=True)


def _sizes(
  values: JsonObject, image_size: tuple[int, int]
) -> tuple[tuple[int, int], int | None, tuple[int, int] | None]:
  """`size`, `shorter` and `whole` of a `Preprocess`."""
  kind = _kind(values)
  # A plain number is both sides, but for the processors that are CLIP's or follow it.
  resized = _size(values, 'size', image_size, square=not kind.startswith(('Bit', 'CLIP', 'Siglip')))
  if values.flag('do_center_crop', False):
    cut = _size(values, 'crop_size', image_size, square=True)
    if isinstance(cut, int):
      raise UserError(f'{values.path} has a crop_size of one edge; give height and width.')
    if isinstance(resized, int):
      return cut, resized, None
    return cut, None, resized if resized != cut else None
  if isinstance(resized, int):
    raise UserError(
      f'{values.path} resizes the shorter side to {resized} without do_center_crop; set it to true.'
    )
  return resized, None, None


def _size(values: JsonObject, name: str, default: tuple[int, int], *, square: bool) -> int | tuple[int, int]:
  """The shorter side, or height and width."""
  value = values.raw(name, default)
  match value:
    case {'shortest_edge': edge, **rest} if not any(rest.values()):
      sides = (edge,)
    case {'height': height, 'width': width, **rest} if not any(rest.values()):
      sides = (height, width)
    case [height, width]:
      sides = (height, width)
    case _:
      sides = (value, value) if square else (value,)
  if not all(type(side) is int and 0 < side <= _LARGEST_SIDE for side in sides):
    raise UserError(
      f'{values.path} has the {name} {reprlib.repr(value)}; give height and width, or shortest_edge, of 1 to '
      f'{_LARGEST_SIDE} pixels.'
    )
  return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def _normalisation(values: JsonObject, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """Mean and standard deviation of pixels in 0 … 1."""
  rescaled = values.flag('do_rescale', True)
  factor = values.number('rescale_factor', 1 / 255, low=1e-9, high=1e6) if rescaled else 1.0
  mean, std = (0.0,), (1.0,)
  if values.flag('do_normalize', True):
    mean = values.numbers('image_mean', _HALF, channels, low=-1e6)
    std = values.numbers('image_std', _HALF, channels, low=1e-6)
  is_efficientnet = _kind(values).startswith('EfficientNet')  # others ignore what follows
  if is_efficientnet and values.flag('include_top', False):  # divides once more
    again = values.numbers('image_std', _HALF, channels, low=1e-6)
    std = tuple(s * a for s, a in zip(_each(std, channels), _each(again, channels), strict=True))
  if is_efficientnet and rescaled and values.flag('rescale_offset', False):  # takes 1 off before
    mean = tuple(m + 1 for m in mean)
  scale = 255 * factor  # (pixel * factor - mean) / std, in terms of pixel / 255
  if math.isclose(scale, 1.0, rel_tol=1e-6):
    scale = 1.0
  return tuple(m / scale for m in mean), tuple(s / scale for s in std)


def _kind(values: JsonObject) -> str:
  """The name of the processor's class."""
  return values.text('image_processor_type') or values.text('feature_extractor_type')


def _sides(size: tuple[int, int]) -> dict[str, int]:
  return {'height': size[0], 'width': size[1]}


def _each(values: tuple[float, ...], channels: int) -> list[float]:
  return list(values * channels if len(values) == 1 else values)
