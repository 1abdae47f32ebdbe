"""Where config.data.threads says nothing: a thread for each processor, many for what comes over a network."""

import dataclasses
import os
import pathlib
import threading

import bucket_data
import numpy as np
import pytest
from bucket_emulators import places
from fake_data import FakeSource
from processes import HUNG

from vit_jax.data import sources
from vit_jax.data.config import DataConfig
from vit_jax.data.pipeline import EvalPipeline, TrainPipeline
from vit_jax.data.sources.cached import Cached
from vit_jax.data.sources.mixture import Mixture
from vit_jax.data.sources.subset import Subset

DATA = DataConfig(source='none', image_size=(4, 5), crop='resize')


class Meeting(FakeSource):
  """Records of which no thread gets its first one until `expected` threads ask for theirs.

  Attributes:
    threads: those that have asked.
  """

  is_remote = False

  def __init__(self, expected: int, is_remote: bool = False):
    super().__init__(512)
    self.is_remote = is_remote
    self.threads: set[int] = set()
    self.expected = expected
    self._arrived = threading.Barrier(expected, timeout=HUNG)

  def __getitem__(self, index):
    if threading.get_ident() not in self.threads:
      self.threads.add(threading.get_ident())
      self._arrived.wait()
    return super().__getitem__(index)


def check_threads(source: Meeting, data: DataConfig, sharding) -> None:
  """Fails where other than the expected number of threads read a batch; with BrokenBarrierError, where too few do."""
  pipeline = TrainPipeline(source, data, batch_size=128, seed=0, sharding=sharding)
  with pipeline.stream(0, 1) as batches:
    next(batches)
  assert len(source.threads) == source.expected


@pytest.mark.parametrize('processors,expected', [(1, 1), (3, 3), (96, 16)])
def test_there_is_a_thread_for_each_processor_up_to_16(split_over, monkeypatch, processors, expected):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda process: set(range(processors)))
  check_threads(Meeting(expected), DATA, split_over(1))
  options = {'crop': 'resize', 'resize': None, 'batch_size': 128, 'sharding': split_over(1)}
  evaluation = EvalPipeline(Meeting(expected), DATA, **options)
  assert sum(int(batch['mask'].sum()) for batch in evaluation) == 512


def test_what_comes_over_a_network_is_read_by_64_threads(split_over, monkeypatch):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda process: {0})
  check_threads(Meeting(64, is_remote=True), DATA, split_over(1))


def test_the_option_decides_for_both(split_over):
  data = dataclasses.replace(DATA, threads=5)
  for is_remote in (False, True):
    check_threads(Meeting(5, is_remote), data, split_over(1))


def test_without_affinities_all_processors_count(split_over, monkeypatch):
  """As on macOS."""
  monkeypatch.delattr(os, 'sched_getaffinity')
  monkeypatch.setattr(os, 'cpu_count', lambda: 3)
  check_threads(Meeting(3), DATA, split_over(1))


@pytest.mark.parametrize('remote', [False, True])
def test_what_wraps_a_source_is_as_remote_as_it(remote):
  source = Meeting(1, remote)
  assert Cached(source, 3).is_remote is remote
  assert Subset(source, np.ones(512, bool)).is_remote is remote
  assert Mixture([Meeting(1), source], [1, 1]).is_remote is remote


@pytest.mark.slow
def test_data_in_a_bucket_are_remote_and_those_on_a_disk_are_not(tmp_path: pathlib.Path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  images = bucket_data.write_images(tmp_path / 'images')
  assert not sources.open_source(f'folder:{images}', 'train', data=DATA).is_remote
  assert not sources.open_source('digits', 'train', data=DATA).is_remote
  bucket_data.prepare(images, str(tmp_path / 'data/1.0.0'))
  assert not sources.open_source(f'tfds:{tmp_path}/data/1.0.0', 'train', data=DATA).is_remote
  with places('gs', own=True):
    spec = bucket_data.prepare(images, 'gs://bucket/data/1.0.0')
    assert sources.open_training(dataclasses.replace(DATA, source=spec, classes=('dark',)), 0).is_remote
