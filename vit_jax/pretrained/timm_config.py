"""What timm's config.json says of a model's images and classes (`pretrained_cfg`)."""

import math
from typing import Any

import numpy as np

from vit_jax.data.preprocess import Method, Preprocess
from vit_jax.pretrained.base import Pretrained
from vit_jax.pretrained.json_values import JsonObject, is_text

_INTERPOLATIONS: dict[str, Method] = {
  'nearest': 'nearest',
  'bilinear': 'bilinear',
  'bicubic': 'bicubic',
  'lanczos': 'lanczos',
}

_SQUASHES = {'center': False, 'squash': True}  # timm's crop_mode


def published(values: JsonObject) -> JsonObject:
  """The part of a config.json that is about images and classes: all of it in old files."""
  return values.section('pretrained_cfg') if 'pretrained_cfg' in values else values


def image_size(published: JsonObject) -> tuple[int, int] | None:
  """Height and width of the images that it names; None: it names none."""
  size = published.raw('input_size')
  if size is None:
    return None
  if not isinstance(size, list) or len(size) != 3:
    raise published.error('input_size', size, 'channels, height and width')
  return JsonObject(published.path, {'input_size': size[1:]}).sides('input_size')


def class_names(published: JsonObject, num_classes: int) -> tuple[str, ...] | None:
  """The classes that it names; None: none, or others than the head has."""
  names = published.raw('label_names')
  if names is None:
    return None
  if not isinstance(names, list) or not all(map(is_text, names)):
    raise published.error('label_names', names, 'a list of texts')
  return tuple(names) if names and len(names) == num_classes else None


def preprocess(published: JsonObject, image_size: tuple[int, int], channels: int) -> Preprocess:
  """timm's evaluation: resize, cut the middle `crop_pct`, normalise."""
  share = published.number('crop_pct', 0.9, low=0.01, high=10)
  height, width = (max(math.floor(side / share), 1) for side in image_size)
  squash = published.choice('crop_mode', _SQUASHES, 'center') or height != width
  return Preprocess(
    image_size,
    channels,
    mean=published.numbers('mean', (0.5,) * channels, channels, low=-1e6),
    std=published.numbers('std', (0.5,) * channels, channels, low=1e-6),
    shorter=None if squash else height,
    whole=(height, width) if squash and (height, width) != tuple(image_size) else None,
    method=published.choice('interpolation', _INTERPOLATIONS, 'bicubic'),
    antialias=True,
  )


def written(
  pretrained: Pretrained, *, first_conv: str, classifier: str | list[str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
  """`pretrained_cfg`, and sentences about what it cannot say.

  Args:
    pretrained: the model.
    first_conv: the layer that meets the image's channels, as timm calls it.
    classifier: the head, or the heads, as timm calls them.
  """
  images, architecture, notes = pretrained.preprocess, pretrained.architecture, ()
  if not images.antialias:
    notes = (
      f"timm's resize antialiases, and the {images.method} resize of this checkpoint does not: of images "
      'that are shrunk, the pixels differ a little.',
    )
  height = images.size[0]
  whole = images.shorter or (images.whole or images.size)[0]
  values = {
    'classifier': classifier,
    'crop_mode': 'squash' if images.shorter is None else 'center',
    'crop_pct': _share(height, whole),
    'first_conv': first_conv,
    'input_size': [architecture.channels, *architecture.image_size],
    'interpolation': images.method,
    'mean': np.broadcast_to(images.mean, architecture.channels).tolist(),
    'num_classes': architecture.num_classes,
    'std': np.broadcast_to(images.std, architecture.channels).tolist(),
  }
  if pretrained.class_names is not None:
    values['label_names'] = list(pretrained.class_names)
  return values, notes


def _share(size: int, whole: int) -> float:
  """The number of which floor(size / number) is whole."""
  share = size / whole
  return share if math.floor(size / share) == whole else math.nextafter(share, 0)


def global_pool(values: JsonObject, usual: str) -> str:
  """timm's name of the pooling, '' of none: model_args win, even where they say ''."""
  arguments = values.section('model_args')
  return (arguments if 'global_pool' in arguments else values).text('global_pool', usual)
