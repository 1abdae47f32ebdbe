"""Shards: the records in them."""

import numpy as np
import tensorflow_datasets as tfds
from image_bytes import jpeg

from vit_jax.prepare import shards

NOISE = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)


def test_records_are_what_tfds_makes_of_them():
  """Against a builder of TFDS's own, for one label, several, and none."""
  for labels, multi_label in (([2], False), ([0, 2], True), ([], True)):
    features = shards.features(['a', 'b', 'c'], multi_label)
    record = shards.serializer(features)(jpeg(NOISE), labels, 'a/ü.jpg')
    read = features.deserialize_example_np(record, decoders={'image': tfds.decode.SkipDecoding()})
    assert read['image'] == jpeg(NOISE) and read['file_name'].decode() == 'a/ü.jpg'
    if multi_label:
      assert list(read['labels']) == labels
    else:
      assert read['label'] == 2
