"""Which features of a TFDS record are its image, its class or classes, and its captions."""

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from vit_jax.data.decode import Picture
from vit_jax.data.sources.base import ListsOfClassesError
from vit_jax.data.sources.tfds_files import CAPTIONS, WEIGHTS
from vit_jax.foundation.errors import UserError

# What TFDS's data sets call the feature that has the name of an image's file.
_FILE_NAMES = ('file_name', 'filename', 'image/file_name')

TfdsRecord = Mapping[str, Any]  # a record as TFDS reads it: feature -> value


@dataclasses.dataclass(frozen=True)
class RecordReader:
  """How to read the records of a data set."""

  key: str  # tells apart readers of the same records that give other labels
  names: tuple[str, ...]  # the names of the classes, in the data set's order
  label: Callable[[TfdsRecord], Any]  # maps a record to its class, or to the list of its classes
  lists: bool  # whether it is a list
  image_feature: str  # the feature that is the image
  scale: int  # factor of the pixels
  file_feature: str | None  # the feature that is the name of the image's file, if there is one
  # The feature that has a weight for each class of a list; None: they have none.
  weight_feature: str | None = None
  captioned: bool = False  # whether records have captions, as `vit_jax.prepare` writes them

  def image(self, record: TfdsRecord) -> bytes | np.ndarray:
    """The encoded image, or, if it has to be scaled, uint8 (H, W, 1)."""
    image = record[self.image_feature]
    if self.scale == 1:
      return image
    return Picture(image, 1, self.key).pixels() * np.uint8(self.scale)

  def file_name(self, record: TfdsRecord) -> str:
    """The name of the image's file, or ''."""
    if self.file_feature is None:
      return ''
    name = record[self.file_feature]
    return name.decode(errors='backslashreplace') if isinstance(name, bytes) else str(name)

  def weights(self, record: TfdsRecord) -> np.ndarray | None:
    """float32 (classes,): the weights of a record's list of classes; None: they have none."""
    return None if self.weight_feature is None else np.asarray(record[self.weight_feature], np.float32)

  def captions(self, record: TfdsRecord) -> Callable[[], tuple[str, ...]] | None:
    """Gives the captions of a record, at least one; None: it has none."""
    texts = record[CAPTIONS] if self.captioned else ()
    return (lambda: tuple(text.decode(errors='replace') for text in texts)) if len(texts) else None

  def is_empty(self, record: TfdsRecord) -> bool:
    """Whether the record lacks its image or label, as those of a truncated file do."""
    return record[self.image_feature] is None or self.label(record) is None


def of_features(info: tfds.core.DatasetInfo, *, lists: bool, weights: bool = False) -> RecordReader:
  """The reader of the image and the class that the features name.

  Args:
    info: of the data set.
    lists: whether images may have lists of classes; if the data has single classes, it reads those.
    weights: whether the classes of a list may have weights; if the data has none, it reads none.

  Raises:
    UserError: no image among the features, or neither a class nor captions, or several of which none has the usual
      name; or weights that are not asked for.
  """
  features, name = features_of(info), info.full_name
  reader = RecordReader(
    key='no class',
    names=(),
    label=lambda record: -1,
    lists=False,
    image_feature=image_feature(features, name),
    scale=1,
    file_feature=file_feature(features),
    captioned=_has_captions(features),
  )
  if reader.captioned and not {'label', 'labels'} & set(features):
    return reader
  key = _label_feature(features, lists, name)
  feature = features[key]
  is_list = isinstance(feature, tfds.features.Sequence)
  has_weights = is_list and WEIGHTS in features
  if has_weights and not weights:
    raise UserError(f'The classes of {name} have weights; set config.data.label_weights=True.')
  class_label = feature.feature if isinstance(feature, tfds.features.Sequence) else feature
  assert isinstance(class_label, tfds.features.ClassLabel)
  return dataclasses.replace(
    reader,
    key=key,
    names=tuple(class_label.names),
    label=operator.itemgetter(key),
    lists=is_list,
    weight_feature=WEIGHTS if has_weights else None,
  )


def features_of(info: tfds.core.DatasetInfo) -> tfds.features.FeaturesDict:
  """The features of a data set; UserError where its records are not dictionaries of features."""
  if isinstance(info.features, tfds.features.FeaturesDict):
    return info.features
  raise UserError(f'The records of {info.full_name} have no named features; choose another data set.')


def file_feature(features: tfds.features.FeaturesDict) -> str | None:
  """The feature that is the name of the image's file, if there is one."""
  return next((key for key in _FILE_NAMES if key in features), None)


def _has_captions(features: tfds.features.FeaturesDict) -> bool:
  captions = dict(features.items()).get(CAPTIONS)
  return isinstance(captions, tfds.features.Sequence) and isinstance(captions.feature, tfds.features.Text)


def image_feature(features: tfds.features.FeaturesDict, name: str) -> str:
  """The feature that is the image; UserError for none, or several of which none is called 'image'."""
  images = [key for key, feature in features.items() if isinstance(feature, tfds.features.Image)]
  chosen = _choose(images, 'image', 'an image', name, features)
  dtype: Any = features[chosen].np_dtype
  if np.dtype(dtype) == np.float32:  # whose bytes TFDS keeps as four channels
    raise UserError(
      f'The images of {name} are of float32, and 8 or 16 bits are read; choose another data set.'
    )
  return chosen


def _label_feature(features: tfds.features.FeaturesDict, lists: bool, name: str) -> str:
  """The feature that is an image's class or, if `lists` and there is one, its list of classes; raises as `_choose`."""
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
    raise ListsOfClassesError(
      f'{name} has lists of classes ({", ".join(several)}); set config.data.max_labels to the length of the '
      f"longest, and config.objective.loss to 'sigmoid' or, if they have weights, config.data.label_weights "
      f'to True.'
    )
  return _choose(single, 'label', 'a class', name, features)


def _choose(found: list[str], usual: str, kind: str, name: str, features: tfds.features.FeaturesDict) -> str:
  """The feature with the usual name if it is among those found, or the only one found."""
  if usual in found:
    return usual
  if len(found) == 1:
    return found[0]
  raise UserError(
    f'{name} has {len(found)} features that are {kind}, and one is needed; its features are '
    f'{", ".join(features)}; choose another data set.'
  )
