"""What timm's config.json says of a model's images (`pretrained_cfg`) and classes."""

import math
import pathlib
import re
from collections.abc import Collection, Mapping
from typing import Any, get_args

import numpy as np

from vit_jax.data.preprocess import Method, Preprocess, TimmCrop
from vit_jax.models.parts.activations import Activation
from vit_jax.pretrained.base import Pretrained, UnknownModelError
from vit_jax.pretrained.huggingface import MULTI_LABEL
from vit_jax.pretrained.json_values import JsonObject, given, is_text

_INTERPOLATIONS: dict[str, Method] = {method: method for method in get_args(Method)}
_CROPS: dict[str, TimmCrop] = {crop: crop for crop in get_args(TimmCrop)}
# What timm takes where a config.json says nothing of it.
_CROP_PCT, _MEAN, _STD = 0.875, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# model_args of all models that are read, that the tensors tell, or that no output depends on.
_TOLD = frozenset(
  {
    *('num_classes', 'in_chans', 'img_size', 'global_pool', 'patch_size', 'embed_dim', 'num_blocks'),
    *('mlp_ratio', 'layers', 'width_factor', 'drop_rate', 'drop_path_rate', 'proj_drop_rate', 'bn_momentum'),
  }
)
# What is taken where there is no config.json: AugReg's, the first and largest family of timm's ViTs.
ALONE = {'crop_pct': 0.9, 'mean': 0.5, 'std': 0.5}


def names(values: JsonObject | None, pattern: str | re.Pattern[str]) -> bool:
  """Whether a config.json (None: there is none) is timm's, of an architecture that a regex begins to match."""
  if values is None or 'model_type' in values:
    return False
  return re.match(pattern, values.text('architecture')) is not None


def config(
  name: str,
  pretrained: Pretrained,
  published: Mapping[str, Any],
  *,
  features: int,
  arguments: Mapping[str, Any],
  pool: str = 'avg',
) -> dict[str, Any]:
  """A config.json of timm's: its name of the architecture, what `written` gives, `model_args`, and classes.

  timm passes over `problem_type`, which transformers' TimmWrapper reads.
  """
  values = {
    'architecture': name,
    'global_pool': pool,
    'model_args': dict(arguments),
    'num_classes': pretrained.architecture.num_classes,
    'num_features': features,
    'pretrained_cfg': dict(published),
  }
  if pretrained.class_names is not None:
    values['label_names'] = list(pretrained.class_names)
  if pretrained.link == 'sigmoid':
    values['problem_type'] = MULTI_LABEL
  return values


def check(values: JsonObject, *known: str) -> None:
  """Raises UnknownModelError for another pool than the mean, and for model_args that are not `known` and may matter."""
  pool = global_pool(values, 'avg')
  if pool != 'avg':
    raise UnknownModelError(f"it has global_pool {pool!r}, and vit_jax has such models with 'avg' only")
  check_arguments(values.section('model_args'), known)


def check_arguments(arguments: JsonObject, known: Collection[str]) -> None:
  """Raises UnknownModelError for model_args that are not `known`, and may change what the model computes."""
  for name in arguments.names():
    if name in arguments and name not in _TOLD and name not in known:
      raise UnknownModelError(f'its model_args set {name}, which vit_jax does not know of such models')


def published(values: JsonObject) -> JsonObject:
  """The part of a config.json that is about images, and in some about classes: all of it in old files."""
  return values.section('pretrained_cfg') if 'pretrained_cfg' in values else values


def image_size(published: JsonObject) -> tuple[int, int] | None:
  """Height and width of the images that it names; None: it names none."""
  size = published.raw('input_size')
  if size is None:
    return None
  if not isinstance(size, list) or len(size) != 3:
    raise published.error('input_size', size, 'channels, height and width')
  return JsonObject(published.path, {'input_size': size[1:]}).sides('input_size')


def class_names(values: JsonObject, num_classes: int) -> tuple[str, ...] | None:
  """The classes that a config.json names, at its root or else in `pretrained_cfg`; None: none, or not the head's.

  They may be an object of names by number, timm's way where numbers have gaps.
  """
  names = (values if 'label_names' in values else published(values)).raw('label_names')
  if names is None and 'pretrained_cfg' not in values:
    names = values.raw('labels')  # as old files call them
  if isinstance(names, dict):
    numbers = list(map(str, range(num_classes)))
    names = [names[number] for number in numbers] if names.keys() == set(numbers) else None
  if names is None:
    return None
  if not isinstance(names, list) or not all(map(is_text, names)):
    raise values.error('label_names', names, 'a list or an object of texts')
  return given(tuple(names)) if names and len(names) == num_classes else None


def preprocess(published: JsonObject, image_size: tuple[int, int], channels: int) -> Preprocess:
  """timm's evaluation (`transforms_imagenet_eval`): resize, cut the middle `crop_pct`, normalise."""
  share = published.number('crop_pct', _CROP_PCT, low=0.01, high=10)
  crop = published.choice('crop_mode', _CROPS, 'center')
  height, width = (max(math.floor(side / share), 1) for side in image_size)
  by_shorter = crop == 'center' and height == width
  whole = (
    None if by_shorter or (crop == 'squash' and (height, width) == tuple(image_size)) else (height, width)
  )
  colour = channels == len(_MEAN)
  return Preprocess(
    image_size,
    channels,
    mean=published.numbers('mean', _MEAN if colour else (0.5,), channels, low=-1e6),
    std=published.numbers('std', _STD if colour else (0.5,), channels, low=1e-6),
    shorter=height if by_shorter else None,
    whole=whole,
    timm=crop if by_shorter or whole else None,
    method=published.choice('interpolation', _INTERPOLATIONS, 'bicubic'),
    antialias=True,
  )


def written(
  pretrained: Pretrained, *, first_conv: str, classifier: str | list[str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
  """`pretrained_cfg`, and sentences about what it cannot say.

  `first_conv` is timm's name of the layer that meets the image, and `classifier` that of the head or the heads.
  """
  images, architecture = pretrained.preprocess, pretrained.architecture
  sides, resized = images.size, images.whole or images.size
  if images.shorter:
    sides, resized = (max(images.size),), (images.shorter,)
  values = {
    'classifier': classifier,
    'crop_mode': images.timm or ('squash' if images.shorter is None else 'center'),
    'crop_pct': _share(sides, resized),
    'first_conv': first_conv,
    'input_size': [architecture.channels, *architecture.image_size],
    'interpolation': images.method,
    'mean': np.broadcast_to(images.mean, architecture.channels).tolist(),
    'num_classes': architecture.num_classes,
    'std': np.broadcast_to(images.std, architecture.channels).tolist(),
  }
  read = preprocess(JsonObject(pathlib.Path(), values), images.size, images.channels)
  return values, images.differences(read, 'timm')


def _share(sides: tuple[int, ...], resized: tuple[int, ...]) -> float:
  """The number of which floor(side / number) is the resized side for all sides, if there is one."""
  pairs = list(zip(sides, resized, strict=True))
  share = min(side / large for side, large in pairs)
  reached = all(math.floor(side / share) >= large for side, large in pairs)
  return share if reached else math.nextafter(share, 0)


def activation(arguments: JsonObject, usual: Activation) -> Activation:
  """Ours of timm's `act_layer`, or the usual one where model_args name none."""
  return arguments.choice('act_layer', {name: name for name in get_args(Activation)}, usual)


def ratio(hidden: int, width: int) -> float:
  """The number of which int(width * number) is `hidden`."""
  number = hidden / width
  return number if int(width * number) == hidden else math.nextafter(number, math.inf)


def about(pretrained: Pretrained, *, epsilon: float = 1e-6) -> tuple[str, ...]:
  """Sentences about what config.json has no place for; `epsilon`: that of timm's norms."""
  own, notes = pretrained.architecture.model.norm_epsilon, ()
  usual = f'{epsilon:.0e}'.replace('e-0', 'e-')
  if own != epsilon:
    notes += (
      f"timm's norms have an epsilon of {usual}, which its config.json cannot change, and this model {own}: "
      'logits differ a little.',
    )
  return notes


def global_pool(values: JsonObject, usual: str) -> str:
  """timm's name of the pooling, '' of none: model_args win, even where they say ''."""
  arguments = values.section('model_args')
  return (arguments if 'global_pool' in arguments else values).text('global_pool', usual)
