"""Data sets for the tests of the data path."""

import numpy as np
import tensorflow_datasets as tfds
from image_bytes import png

from vit_jax.data.sources.base import Record, Source


class Shades(tfds.core.GeneratorBasedBuilder):
  """14 images of one colour each, made as TFDS makes its own, without TensorFlow."""

  name = 'shades'
  VERSION = tfds.core.Version('1.2.0')

  def _info(self):
    image = tfds.features.Image(shape=(6, 6, 3), encoding_format='png')
    features = {
      'id': tfds.features.Text(),
      'photo': image,
      'colour': tfds.features.ClassLabel(names=['dark', 'middle', 'light']),
    }
    return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

  def _split_generators(self, dl_manager):
    return {'train': self._images(range(10)), 'test': self._images(range(10, 14))}

  def _generate_examples(self):
    raise NotImplementedError

  def _images(self, numbers):
    for number in numbers:
      yield number, {'id': str(number), 'photo': png(np.full((6, 6, 3), number)), 'colour': number % 3}


class Lists(tfds.core.GeneratorBasedBuilder):
  """16 images of 2 x 2 pixels; class k is on the list of those whose pixel k is white."""

  name = 'lists'
  VERSION = tfds.core.Version('1.0.0')
  CLASSES = ('one', 'two', 'four', 'eight')

  def _info(self):
    features = {
      'image': tfds.features.Image(shape=(None, None, 3), encoding_format='png'),
      'labels': tfds.features.Sequence(tfds.features.ClassLabel(names=self.CLASSES)),
    }
    return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

  def _split_generators(self, dl_manager):
    return {'train': self._generate_examples()}

  def _generate_examples(self):
    for number in range(16):
      bits = np.array([number >> k & 1 for k in range(4)])
      image = png(np.repeat(255 * bits.reshape(2, 2, 1), 3, axis=2))
      yield number, {'image': image, 'labels': np.flatnonzero(bits)}


class SoftLists(Lists):
  """The same with a weight for each class: 0.25, 0.5, 0.75 and 1."""

  name = 'soft_lists'

  def _info(self):
    features = dict(super()._info().features.items()) | {'weights': tfds.features.Sequence(np.float32)}
    return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

  def _generate_examples(self):
    for number, example in super()._generate_examples():
      yield number, example | {'weights': np.float32(0.25 * (1 + example['labels']))}


class FakeSource(Source):
  """Records whose label is their number and whose image is random but fixed.

  Attributes:
    reads: the numbers of the records read so far.
  """

  def __init__(self, size: int, shape=(6, 7, 3)):
    self.class_names = tuple(map(str, range(size)))
    self._images = np.random.default_rng(0).integers(0, 256, (size, *shape), np.uint8)
    self.reads: list[int] = []

  def labels(self):
    return np.arange(len(self), dtype=np.int32)

  def __len__(self):
    return len(self._images)

  def __getitem__(self, index):
    self.reads.append(index)
    return Record(self._images[index], index, f'fake {index}')
