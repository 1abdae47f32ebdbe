"""Data sets and shardings that the tests of the data path share."""

import io
import socket

import jax
import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from vit_jax.data.records import Record


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
    return {'train': self._some(range(10)), 'test': self._some(range(10, 14))}

  def _generate_examples(self):
    raise NotImplementedError

  def _some(self, numbers):
    for number in numbers:
      yield number, {'id': str(number), 'photo': png(np.full((6, 6, 3), number)), 'colour': number % 3}


def png(pixels: np.ndarray) -> bytes:
  file = io.BytesIO()
  Image.fromarray(pixels.astype(np.uint8)).save(file, 'png')
  return file.getvalue()


@pytest.fixture(scope='session')
def shades_dir(tmp_path_factory):
  """A data directory with the prepared data set `shades`."""
  folder = tmp_path_factory.mktemp('tfds')
  Shades(data_dir=str(folder), file_format='array_record').download_and_prepare()
  return folder


class FakeSource:
  """Records whose label is their number and whose image is random but fixed."""

  def __init__(self, size: int, shape=(6, 7, 3)):
    self.class_names = tuple(map(str, range(size)))
    self._images = np.random.default_rng(0).integers(0, 256, (size, *shape), np.uint8)
    self.reads: list[int] = []

  def __len__(self):
    return len(self._images)

  def __getitem__(self, index):
    self.reads.append(index)
    return Record(self._images[index], index, f'fake {index}')


@pytest.fixture
def split_over():
  """split_over(n): the first axis over n of the eight devices; split_over(n, copies): each part copied."""

  def sharding(parts: int, copies: int = 1) -> jax.sharding.NamedSharding:
    devices = np.array(jax.devices()[: parts * copies]).reshape(copies, parts)
    mesh = jax.sharding.Mesh(devices, ('replica', 'data'))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))

  return sharding


@pytest.fixture
def free_port() -> int:
  with socket.socket() as probe:
    probe.bind(('localhost', 0))
    return probe.getsockname()[1]
