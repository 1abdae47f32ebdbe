"""What of a TFDS record is the image, and what its class or classes."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from vit_jax.data.decode import Picture
from vit_jax.data.sources import vtab
from vit_jax.errors import UserError

_FILE_NAMES = (
  'file_name',
  'filename',
  'image/file_name',
)  # features that have an image's, as TFDS calls them

Value = Mapping[str, Any]  # a record as TFDS reads it: feature -> value


@dataclasses.dataclass(frozen=True)
class Reading:
  """How the records of a data set are read.

  Attributes:
    key: differs where the labels do.
    names: the classes' names, in the data set's order.
    label: record -> class, or the list of its classes.
    lists: whether it is a list.
    image_feature: which feature is the image.
    scale: what its pixels are multiplied by.
    file_feature: which feature is the name of the image's file; None: none.
  """

  key: str
  names: tuple[str, ...]
  label: Callable[[Value], Any]
  lists: bool
  image_feature: str
  scale: int
  file_feature: str | None

  def image(self, record: Value) -> bytes | np.ndarray:
    """The encoded image, or uint8 (H, W, 1) where it has to be scaled."""
    image = record[self.image_feature]
    if self.scale == 1:
      return image
    return Picture(image, 1, self.key).pixels() * np.uint8(self.scale)

  def file_name(self, record: Value) -> str:
    return str(record[self.file_feature]) if self.file_feature else ''

  def is_empty(self, record: Value) -> bool:
    """Whether the record has no image or no label, as one of a damaged file may."""
    return record[self.image_feature] is None or self.label(record) is None


def of_features(info: tfds.core.DatasetInfo, *, lists: bool) -> Reading:
  """The image and the class that the features name.

  Args:
    info: of the data set.
    lists: whether images may have lists of classes; a single class, where the data has that, still does.

  Raises:
    UserError: no image or class among the features.
  """
  features, name = info.features, info.full_name
  label = _label_feature(features, lists, name)
  single = isinstance(features[label], tfds.features.ClassLabel)
  return Reading(
    key=label,
    names=tuple((features[label] if single else features[label].feature).names),
    label=lambda record: record[label],
    lists=not single,
    image_feature=_image_feature(features, name),
    scale=1,
    file_feature=_file_feature(features),
  )


def of_task(info: tfds.core.DatasetInfo, task: vtab.Task) -> Reading:
  """The image and the class that a task of VTAB defines.

  Raises:
    UserError: the data set's features are not those of the published definition.
  """
  features = info.features
  try:
    names = task.names(features)
  except (KeyError, AttributeError):
    names = ()
  if len(names) != task.num_classes:
    raise UserError(
      f'{info.full_name} has not the {task.num_classes} classes that {task.source} is defined by; prepare it '
      f'again: {task.prepare}'
    )
  return Reading(
    key=task.source,
    names=names,
    label=task.label,
    lists=False,
    image_feature=_image_feature(features, info.full_name),
    scale=task.scale,
    file_feature=_file_feature(features),
  )


def _file_feature(features: tfds.features.FeaturesDict) -> str | None:
  return next((key for key in _FILE_NAMES if key in features), None)


def _image_feature(features: tfds.features.FeaturesDict, name: str) -> str:
  images = [key for key, feature in features.items() if isinstance(feature, tfds.features.Image)]
  return _choose(images, 'image', 'an image', name, features)


def _label_feature(features: tfds.features.FeaturesDict, lists: bool, name: str) -> str:
  """The name of the feature with an image's class, or with its list of classes if `lists` and there is one.

  Raises:
    UserError: none such, or several and none named 'label' or 'labels'.
  """
  class_label, sequence = tfds.features.ClassLabel, tfds.features.Sequence
  single = [key for key, feature in features.items() if isinstance(feature, class_label)]
  several = [
    key
    for key, feature in features.items()
    if isinstance(feature, sequence) and isinstance(feature.feature, class_label)
  ]
  if several and lists:
    return _choose(several, 'labels', 'a list of classes', name, features)
  if several and not single:
    raise UserError(
      f'{name} has lists of classes ({", ".join(several)}); set config.data.max_labels to the length of the '
      f"longest and config.loss.name to 'sigmoid'."
    )
  return _choose(single, 'label', 'a class', name, features)


def _choose(found: list[str], usual: str, kind: str, name: str, features: tfds.features.FeaturesDict) -> str:
  """The usual one if it is among those found, or the only one.

  Raises:
    UserError: none, or several and none named as usual.
  """
  if usual in found:
    return usual
  if len(found) == 1:
    return found[0]
  raise UserError(
    f'{name} has {len(found)} features that are {kind}, and one is needed; its features are '
    f'{", ".join(features)}; choose another data set.'
  )
