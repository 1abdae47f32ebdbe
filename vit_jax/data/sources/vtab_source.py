"""The tasks of VTAB-1k as sources: `vtab:TASK`."""

from collections.abc import Collection, Sequence
from typing import Self

import tensorflow_datasets as tfds

from vit_jax.data.config import DataConfig
from vit_jax.data.sources import tfds_bucket, vtab
from vit_jax.data.sources.tfds import TfdsSource, builder_of
from vit_jax.data.sources.tfds_features import RecordReader, features_of, file_feature, image_feature
from vit_jax.foundation.errors import UserError


class VtabSource(TfdsSource):
  """One split of a task, as the task defines it, with the classes computed from TFDS's records."""

  forms = ('vtab:TASK',)

  @classmethod
  def open(cls, place: str, split: str, *, data: DataConfig, class_names: Sequence[str] | None) -> Self:
    task = vtab.task_of(place)
    builder = builder_of(task.dataset)
    sizes = {name: info.num_examples for name, info in builder.info.splits.items()}
    reader, address = _record_reader(builder.info, task), tfds_bucket.address_of(task.dataset)
    return cls(builder, task.split(split, sizes), class_names, reader, address)

  @classmethod
  def splits(cls, place: str) -> Collection[str]:
    vtab.task_of(place)
    return vtab.SPLITS


def _record_reader(info: tfds.core.DatasetInfo, task: vtab.Task) -> RecordReader:
  """The reader of a task's image and class; UserError where the features are not those of the published definition."""
  features = features_of(info)
  try:
    names = task.names(dict(features.items()))
  except (KeyError, AttributeError):
    names = ()
  if len(names) != task.num_classes:
    raise UserError(
      f'{info.full_name} has not the {task.num_classes} classes that {task.source} is defined by; prepare it '
      f'again: {task.prepare}'
    )
  return RecordReader(
    key=task.source,
    names=names,
    label=task.label,
    lists=False,
    image_feature=image_feature(features, info.full_name),
    scale=task.scale,
    file_feature=file_feature(features),
  )
