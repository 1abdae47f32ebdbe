"""`preprocessor_config.json` of transformers, and our `Preprocess`."""

import json
import math
import pathlib
from typing import Any

from vit_jax.errors import UserError
from vit_jax.pretrained.base import Preprocess
from vit_jax.pretrained.safetensors_files import read_json

FILE = 'preprocessor_config.json'
_RESAMPLE = {0: 'nearest', 1: 'lanczos', 2: 'bilinear', 3: 'bicubic'}  # Pillow's numbers
_SIZE = (224, 224)


def read(
  folder: pathlib.Path, *, image_size: tuple[int, int] | None, channels: int, default: dict[str, Any]
) -> tuple[Preprocess, tuple[str, ...]]:
  """How a folder's images are prepared.

  Args:
    folder: where the file is, or is not.
    image_size: height, width of the model's input; None: any, so that the file decides, or 224 pixels.
    channels: of it.
    default: arguments of `Preprocess` for a folder without that file.

  Returns:
    The preparation, for `image_size` where it is given, and sentences about it.

  Raises:
    UserError: a file that is damaged, or asks for what we cannot do.
  """
  path, any_size = folder / FILE, image_size is None
  image_size = image_size or _SIZE
  if not path.exists():
    return Preprocess(image_size, channels, **default), (
      f'{folder} has no {FILE}: images are prepared as is usual for its kind of model, '
      f'mean {default["mean"]} and standard deviation {default["std"]}.',
    )
  values = read_json(path)
  method = _RESAMPLE.get(values.get('resample', 2))
  if method is None:
    raise UserError(f'{path} asks for resample {values["resample"]}; choose one of {sorted(_RESAMPLE)}.')
  kind = str(values.get('image_processor_type') or values.get('feature_extractor_type') or '')
  # A plain number is both sides, but for the processors that are CLIP's or follow it.
  shorter, whole = _size(path, values.get('size', image_size), square=not kind.startswith(('Bit', 'CLIP')))
  if not values.get('do_resize', True):
    raise UserError(f'{path} says do_resize false, and photographs have many sizes; set it to true.')
  size = whole or (shorter, shorter)
  if values.get('do_center_crop', False):
    _, size = _size(path, values.get('crop_size', image_size), square=True)
  elif shorter is not None:
    raise UserError(f'{path} resizes the shorter side to {shorter} without do_center_crop; set it to true.')
  mean, std = _normalisation(path, values, channels)
  options = {'mean': mean, 'std': std, 'method': method, 'antialias': True}
  result = Preprocess(size, channels, shorter=shorter, whole=None if whole == size else whole, **options)
  if any_size or size == tuple(image_size):
    return result, ()
  return result.at(image_size), (
    f'{path.name} makes images of {size[0]} x {size[1]} and the model is for {image_size[0]} x '
    f'{image_size[1]}: images are prepared for the latter; image_size={size} resizes the model.',
  )


def write(preprocess: Preprocess) -> tuple[str, tuple[str, ...]]:
  """The text of the file, and sentences about what it cannot say."""
  notes = ()
  if not preprocess.antialias:
    notes = (
      f"transformers' resize antialiases, and the {preprocess.method} resize of this checkpoint does not: "
      'of images that are shrunk, the pixels differ a little.',
    )
  if preprocess.shorter is not None:
    kind, size = 'BitImageProcessor', {'shortest_edge': preprocess.shorter}
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
  return json.dumps(values, indent=2, sort_keys=True) + '\n', notes


def _size(path: pathlib.Path, size: Any, square: bool) -> tuple[int | None, tuple[int, int] | None]:
  """(shorter side, None) or (None, (height, width))."""
  match size:
    case int():
      return (None, (size, size)) if square else (size, None)
    case {'shortest_edge': int(shorter)}:
      return shorter, None
    case {'height': int(height), 'width': int(width)} | [int(height), int(width)] | (height, width):
      return None, (height, width)
  raise UserError(f'{path} has the size {size!r}; give height and width, or shortest_edge.')


def _normalisation(
  path: pathlib.Path, values: dict[str, Any], channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """Mean and standard deviation of pixels in 0 … 1."""
  factor = values.get('rescale_factor', 1 / 255) if values.get('do_rescale', True) else 1.0
  mean, std = [0.0], [1.0]
  if values.get('do_normalize', True):
    mean, std = values.get('image_mean', [0.5]), values.get('image_std', [0.5])
  mean, std = ([v] if isinstance(v, (int, float)) else v for v in (mean, std))
  for numbers in (mean, std):
    if not isinstance(numbers, list) or len(numbers) not in (1, channels):
      raise UserError(f'{path} has a mean or deviation {numbers!r}; it must be {channels} numbers.')
  scale = 255 * factor  # (pixel * factor - mean) / std, in terms of pixel / 255
  if math.isclose(scale, 1.0, rel_tol=1e-6):
    scale = 1.0
  return tuple(m / scale for m in mean), tuple(s / scale for s in std)


def _sides(size: tuple[int, int]) -> dict[str, int]:
  return {'height': size[0], 'width': size[1]}


def _each(values: tuple[float, ...], channels: int) -> list[float]:
  return list(values * channels if len(values) == 1 else values)
