"""Records kept in memory (config.data.cache) against the same records read anew."""

import collections
import io

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.config import DataConfig
from vit_jax.data.pipeline import EvalPipeline, TrainPipeline
from vit_jax.data.sources import open_training
from vit_jax.data.sources.base import Part, Record, Source
from vit_jax.data.sources.cached import Cached
from vit_jax.foundation.errors import UserError

SIDE = 40


class Files(Source):
  """PNGs, JPEGs, a palette and pixels; the last one may be damaged.

  Attributes:
    reads: index -> how often it was read.
  """

  class_names = ('even', 'odd')

  def __init__(self, damaged: bool = False):
    self.reads = collections.Counter[int]()
    random = np.random.default_rng(0)
    pictures = [Image.fromarray(random.integers(0, 256, (SIDE, SIDE, 3), np.uint8)) for _ in range(6)]
    pictures[2] = pictures[2].convert('P')
    self._images: list[bytes | np.ndarray] = []
    for picture, kind in zip(pictures, ('PNG', 'JPEG', 'PNG', 'JPEG', 'GIF'), strict=False):
      file = io.BytesIO()
      picture.save(file, kind)
      self._images.append(file.getvalue())
    self._images.append(self._images[0][:200] if damaged else np.asarray(pictures[5]))

  def __len__(self) -> int:
    return len(self._images)

  def __getitem__(self, index: int) -> Record:
    self.reads[index] += 1
    return Record(self._images[index], index % 2, f'image {index}')

  def labels(self) -> np.ndarray:
    return np.arange(len(self)) % 2

  @property
  def parts(self) -> tuple[Part, ...]:
    return Part(4, 1), Part(2, 3)


def train_batches(source: Source, data: DataConfig, sharding) -> list[dict]:
  pipeline = TrainPipeline(source, data, batch_size=4, seed=0, sharding=sharding)
  return [pipeline.batch(step) for step in range(8)]


@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize('crop', ['inception', 'random', 'resize'])
def test_batches_of_cached_records_are_the_same_to_the_bit(channels, crop, split_over):
  # An eighth of the side: JPEGs are decoded at a reduced size.
  data = DataConfig(image_size=(SIDE // 8, SIDE // 8), channels=channels, crop=crop, padding=1)
  read = train_batches(Files(), data, split_over(1))
  cached = train_batches(Cached(Files(), channels), data, split_over(1))
  for one, other in zip(read, cached, strict=True):
    np.testing.assert_array_equal(one['image'], other['image'])
    np.testing.assert_array_equal(one['label'], other['label'])


def test_evaluation_of_cached_records_is_the_same_to_the_bit(split_over):
  def images(source: Source) -> np.ndarray:
    data = DataConfig(image_size=(24, 24))
    pipeline = EvalPipeline(source, data, crop='central', resize=28, batch_size=6, sharding=split_over(1))
    return np.concatenate([batch['image'] for batch in pipeline])

  cached = Cached(Files(), 3)
  expected = images(Files())
  for _ in range(2):
    np.testing.assert_array_equal(images(cached), expected)


def test_each_record_is_read_once(split_over):
  files = Files()
  train_batches(Cached(files, 3), DataConfig(image_size=(8, 8)), split_over(1))
  assert files.reads == dict.fromkeys(range(6), 1)


def test_cached_source_describes_the_source_that_it_reads():
  files, cached = Files(), Cached(Files(), 3)
  assert (len(cached), cached.class_names, cached.parts) == (len(files), files.class_names, files.parts)
  np.testing.assert_array_equal(cached.labels(), files.labels())


def test_damaged_image_is_named_every_time_it_is_needed(split_over):
  cached = Cached(Files(damaged=True), 3)
  for _ in range(2):
    with pytest.raises(UserError, match='image 5'):
      train_batches(cached, DataConfig(image_size=(8, 8)), split_over(1))


def test_config_turns_the_cache_on_for_the_sources_that_it_opens(shades_dir, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(shades_dir))
  data = DataConfig(source='tfds:shades')
  read, cached = open_training(data, 0), open_training(DataConfig(source='tfds:shades', cache=True), 0)
  assert not isinstance(read, Cached) and isinstance(cached, Cached)
  assert cached[3] is cached[3]
  assert (cached[3].label, cached[3].name) == (read[3].label, read[3].name)
