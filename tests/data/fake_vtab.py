"""VTAB's data sets with constructed records, prepared with TFDS's own features and without TensorFlow."""

import pathlib
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from image_bytes import png

# Records of train, validation and test: as few as the published splits bear.
_SIZES = {
  **dict.fromkeys(
    ('dtd', 'oxford_flowers102', 'sun397/tfds', 'patch_camelyon', 'dmlab', 'kitti:3.1.0'), (800, 200, 4)
  ),
  'diabetic_retinopathy_detection/btgraham-300': (800, 200, 4),
  **dict.fromkeys(('caltech101', 'cifar100', 'svhn_cropped', 'oxford_iiit_pet'), (2000, 0, 4)),
  'clevr': (2000, 4, 0),
  **dict.fromkeys(('eurosat/rgb', 'resisc45'), (1340, 0, 0)),
  'dsprites': (2000, 0, 0),
  'smallnorb': (800, 0, 400),  # the first half of test is for validation
}


def prepare(dataset: str, folder: pathlib.Path) -> None:
  """Writes a data set below a data directory, where TFDS's own builder finds it.

  Args:
    dataset: as TFDS writes it, with its config.
    folder: the data directory.
  """
  builder = tfds.builder(dataset, data_dir=folder)
  info = tfds.core.DatasetInfo(builder=builder, features=builder.info.features)
  sizes = dict(zip(('train', 'validation', 'test'), _SIZES[dataset], strict=True))
  pathlib.Path(info.data_dir).mkdir(parents=True)
  writer = tfds.core.SequentialWriter(info, max_examples_per_shard=5000, file_format='array_record')
  used = [split for split, size in sizes.items() if size]
  writer.initialize_splits(used)
  for split in used:
    rng = np.random.default_rng(len(split))
    records = [record(dict(builder.info.features), number, rng) for number in range(sizes[split])]
    writer.add_examples({split: records})
  writer.close_all()


def record(features: dict[str, Any], number: int, rng: np.random.Generator) -> dict[str, Any]:
  """A record of the features: classes in turn, 3 to 10 objects."""
  return {key: _value(feature, number, rng) for key, feature in features.items()}


def _value(feature: Any, number: int, rng: np.random.Generator) -> Any:
  if isinstance(feature, tfds.features.Image):
    height, width, channels = (side or 12 for side in feature.shape)
    # Of one shade, 0 or 1 as dSprites has them, since they are made by the thousand.
    return png(np.full((min(height, 96), min(width, 96), channels), number % 2).squeeze())
  if isinstance(feature, tfds.features.Sequence):
    count = 3 + number % 8
    parts = [record(dict(feature.feature), number + i, rng) for i in range(count)]
    return {key: [part[key] for part in parts] for key in parts[0]}
  if isinstance(feature, tfds.features.ClassLabel):
    return number % feature.num_classes
  if isinstance(feature, tfds.features.Text):
    return f'image_{number}.png'
  if isinstance(feature, tfds.features.BBoxFeature):
    return tfds.features.BBox(0.0, 0.0, 1.0, 1.0)
  return rng.uniform(0, 12, feature.shape).astype(np.float32)
