import dataclasses
import itertools
import logging
import os
import pathlib
import threading

import hypothesis
import numpy as np
import pytest
from fake_data import FakeSource
from hypothesis import strategies as st
from processes import run

from vit_jax.data import prefetch
from vit_jax.data.config import DataConfig
from vit_jax.data.pipeline import EvalPipeline, TrainPipeline
from vit_jax.data.sources.mixture import Mixture
from vit_jax.foundation.errors import UserError

DATA = DataConfig(image_size=(4, 5), crop='random', padding=2, resize=None)
OWN_THREADS = ('decode', 'assemble')


def train(source, sharding, *, data=DATA, batch_size=8, seed=0):
  return TrainPipeline(source, data, batch_size=batch_size, seed=seed, sharding=sharding)


def evaluate(source, sharding, *, data=DATA, batch_size=8):
  return EvalPipeline(source, data, crop='resize', resize=None, batch_size=batch_size, sharding=sharding)


def own_threads():
  return [thread.name for thread in threading.enumerate() if thread.name.startswith(OWN_THREADS)]


def assert_same(a, b):
  assert a.keys() == b.keys()
  for name in a:
    np.testing.assert_array_equal(a[name], b[name], err_msg=name)


class OneProcess:
  """The sharding of a batch's rows over a number of processes, as one of them sees it."""

  def __init__(self, process: int, processes: int):
    self._process, self.num_devices = process, processes

  def shard_shape(self, shape):
    return (shape[0] // self.num_devices,)

  def addressable_devices_indices_map(self, shape):
    size = self.shard_shape(shape)[0]
    return {'device': (slice(self._process * size, (self._process + 1) * size),)}


@hypothesis.given(
  size=st.integers(1, 60), rows=st.integers(1, 9), processes=st.integers(1, 5), repeats=st.integers(1, 3)
)
@hypothesis.settings(max_examples=40, deadline=None)
def test_processes_together_read_each_record_once_per_pass(size, rows, processes, repeats):
  data = dataclasses.replace(DATA, repeats=repeats)
  batch_size = rows * processes * repeats
  sources = [FakeSource(size) for _ in range(processes)]
  pipelines = [
    train(source, OneProcess(number, processes), data=data, batch_size=batch_size)
    for number, source in enumerate(sources)
  ]
  steps = -(-2 * size * repeats // batch_size)
  for step, pipeline in itertools.product(range(steps), pipelines):
    for part in pipeline._work(step)[0]:
      part()
  assert [len(source.reads) for source in sources] == [steps * rows * repeats] * processes
  records = np.concatenate([pipelines[0].indices(step) for step in range(steps)])
  assert sorted(records) == sorted(itertools.chain(*(source.reads for source in sources)))
  # Each batch has each of its records `repeats` times.
  batches = records.reshape(steps, repeats, -1)
  assert (batches == batches[:, :1]).all()
  order = batches[:, 0].ravel()
  for first in (0, size):
    assert sorted(order[first : first + size]) == list(range(size))


def test_repeats_are_augmented_differently(split_over):
  data = dataclasses.replace(DATA, repeats=4)
  batch = train(FakeSource(100), split_over(2), data=data, batch_size=8).batch(3)
  images, labels = np.asarray(batch['image']).reshape(4, 2, -1), np.asarray(batch['label']).reshape(4, 2)
  assert (labels == labels[:1]).all() and labels[0, 0] != labels[0, 1]
  assert len({image.tobytes() for image in images[:, 0]}) > 1


def test_mixture_is_drawn_from_by_weight(split_over):
  ten, four = FakeSource(10), FakeSource(4)
  four.class_names = ('3', 'new', '0', '7')
  mixture = Mixture([ten, four], [3.0, 1.0])
  assert mixture.class_names == (*map(str, range(10)), 'new')
  pipeline = train(mixture, split_over(2), batch_size=8)
  steps = 25
  records = np.array([pipeline.indices(step) for step in range(steps)])
  assert ((records < 10).sum(axis=1) == 6).all()
  visits = np.cumsum([np.bincount(step, minlength=14) for step in records], axis=0)
  for each in (visits[:, :10], visits[:, 10:]):
    assert (np.ptp(each, axis=1) <= 1).all()  # none a second time before all others
  labels = np.array([pipeline.batch(step)['label'] for step in range(steps)])
  assert (labels == np.array([*range(10), 3, 10, 0, 7])[records]).all()


def test_sources_of_a_mixture_are_in_random_order_within_a_batch(split_over):
  mixture = Mixture([FakeSource(64), FakeSource(64)], [1.0, 1.0])
  pipeline = train(mixture, split_over(2), batch_size=16)
  second = np.array([pipeline.indices(step) >= 64 for step in range(100)])
  assert (second.sum(axis=1) == 8).all()
  # The rows that accumulation in two parts computes together, and the images that are mixed.
  assert len(np.unique(second[:, ::2].sum(axis=1))) > 3
  np.testing.assert_allclose((second == np.roll(second, 1, axis=1)).mean(), 7 / 15, atol=0.05)


def test_order_differs_between_passes_and_seeds(split_over):
  def one_pass(seed, step):
    return train(FakeSource(64), split_over(1), batch_size=64, seed=seed).indices(step).tolist()

  orders = [one_pass(seed, step) for seed in (0, 1) for step in (0, 1)]
  assert len({tuple(order) for order in orders}) == 4
  assert sorted(orders[0]) != orders[0]


def test_images_are_those_of_indices(split_over):
  source = FakeSource(20, shape=(4, 5, 3))
  batch = train(source, split_over(2), data=DataConfig(image_size=(4, 5), crop='resize')).batch(3)
  assert batch['image'].shape == (8, 4, 5, 3) and batch['image'].dtype == np.uint8
  assert batch['label'].dtype == np.int32
  for image, index in zip(batch['image'], batch['label'], strict=True):
    np.testing.assert_array_equal(image, source[int(index)].image)


def test_batches_that_devices_share_with_the_pipeline_stay_as_they_were(split_over):
  pipeline = train(
    FakeSource(20, shape=(64, 64, 3)), split_over(2), data=DataConfig(image_size=(64, 64), crop='resize')
  )
  batches = [pipeline.batch(step) for step in (0, 1, 2)]
  before = [np.array(batch['image'], copy=True) for batch in batches]
  del batches[1]  # its memory is free for the next
  for step in (3, 4):
    pipeline.batch(step)
  np.testing.assert_array_equal(batches[0]['image'], before[0])
  np.testing.assert_array_equal(batches[1]['image'], before[2])


def test_progressive_resizing_changes_only_the_size(split_over):
  """A batch has its step's image size, and the images that a run of that size has at that step."""
  source, largest = FakeSource(30, shape=(8, 16, 3)), DataConfig(image_size=(8, 16), crop='inception')
  sizes = [(4, 8)] * 2 + [(8, 16)] * 2
  options = {'batch_size': 8, 'seed': 0, 'sharding': split_over(2)}

  def data_at(step):
    return dataclasses.replace(largest, image_size=sizes[step])

  def pipeline():
    return TrainPipeline(source, largest, data_at=data_at, **options)

  with pipeline().stream(0, 4) as stream:
    batches = list(stream)
  for step, batch in enumerate(batches):
    assert batch['image'].shape == (8, *sizes[step], 3)
    assert_same(batch, pipeline().batch(step))
    assert_same(batch, TrainPipeline(source, data_at(step), **options).batch(step))


class ListSource(FakeSource):
  """Record i has the classes 0 .. i - 1."""

  def __getitem__(self, index):
    return super().__getitem__(index)._replace(label=np.arange(index))


def test_lists_of_classes_are_padded(split_over):
  data = dataclasses.replace(DATA, max_labels=4)
  pipeline = train(ListSource(5), split_over(2), data=data)
  label = pipeline.batch(1)['label']
  assert label.shape == (8, 4) and label.dtype == np.int32
  for row, index in zip(label, pipeline.indices(1), strict=True):
    assert row.tolist() == [*range(index), *[-1] * (4 - index)]
  (batch,) = evaluate(ListSource(5), split_over(1), data=data, batch_size=6)
  np.testing.assert_array_equal(batch['label'][4:], [[0, 1, 2, 3], [-1, -1, -1, -1]])
  single = train(FakeSource(5), split_over(1), data=data)
  np.testing.assert_array_equal(single.batch(0)['label'][:, 0], single.indices(0))


@pytest.mark.parametrize('most', [None, 3])
def test_list_that_is_too_long_is_named(split_over, most):
  data = dataclasses.replace(DATA, max_labels=most)
  index = 4 if most else 0  # record i has i classes
  message = rf'fake {index} has a list of {index} classes and config.data.max_labels is {most}; set it'
  with pytest.raises(UserError, match=message):
    for _ in evaluate(ListSource(5), split_over(1), data=data, batch_size=4):
      assert most


@pytest.mark.parametrize('parts,copies', [(1, 1), (2, 1), (8, 1), (2, 4), (4, 2)])
@pytest.mark.parametrize('threads', [1, 3])
def test_batch_is_the_same_for_any_devices_and_threads(split_over, parts, copies, threads):
  augmented = dataclasses.replace(DATA, augment='strong1 | 3augment | erase(0.5)')
  data = dataclasses.replace(augmented, threads=threads, prefetch=3)
  expected = [train(FakeSource(30), split_over(1), data=augmented).batch(step) for step in range(2, 8)]
  sharding = split_over(parts, copies)
  source = FakeSource(30)
  pipeline = train(source, sharding, data=data)
  with pipeline.stream(2, 8) as batches:
    got = list(batches)
  assert len(got) == 6
  # Each row is made once, however many devices hold it.
  assert sorted(source.reads) == sorted(np.concatenate([pipeline.indices(step) for step in range(2, 8)]))
  for a, b in zip(got, expected, strict=True):
    assert_same(a, b)
    assert all(array.sharding.is_equivalent_to(sharding, array.ndim) for array in a.values())
  assert_same(pipeline.batch(5), expected[3])


def test_augmentation_differs_between_rows_passes_and_seeds(split_over):
  def crops(seed, step):
    images = train(FakeSource(1), split_over(1), batch_size=32, seed=seed).batch(step)['image']
    return [image.tobytes() for image in np.asarray(images)]

  # The only record, resized to 4 x 5 with a border of 2 pixels, has 25 crops.
  first = crops(0, 0)
  assert len(set(first)) > 10
  assert crops(0, 0) == first
  assert crops(0, 1) != first and crops(1, 0) != first


def test_batch_size_that_does_not_divide_is_named(split_over):
  with pytest.raises(UserError, match=r'config\.batch_size .*\b12\b.* 8 parts'):
    train(FakeSource(30), split_over(8), batch_size=12)


@pytest.mark.parametrize('size', [1, 7, 24])
@pytest.mark.parametrize('batch_size', [1, 3, 8, 10, 100])
@pytest.mark.parametrize('parts', [1, 2, 8])
def test_evaluation_visits_each_example_once(split_over, size, batch_size, parts):
  source = FakeSource(size)
  pipeline = evaluate(source, split_over(parts), batch_size=batch_size)
  batches = list(pipeline)
  assert len(batches) == len(pipeline)
  assert len({batch['image'].shape for batch in batches}) == 1
  assert batches[0]['label'].shape[0] in range(batch_size, batch_size + parts)
  label, mask = (np.concatenate([batch[name] for batch in batches]) for name in ('label', 'mask'))
  assert mask.dtype == bool
  np.testing.assert_array_equal(label[mask], np.arange(size))
  assert sorted(source.reads) == list(range(size))
  # It can be iterated over again.
  assert sum(int(batch['mask'].sum()) for batch in pipeline) == size


def test_threads_end_with_the_stream(split_over):
  pipeline = train(FakeSource(30), split_over(1))
  with pipeline.stream(0, 100) as batches:
    next(batches)
    assert own_threads()
  assert not own_threads()
  with pytest.raises(KeyError), pipeline.stream(0, 100) as batches:
    next(batches)
    raise KeyError
  assert not own_threads()
  for _ in evaluate(FakeSource(30), split_over(1), batch_size=2):
    break
  assert not own_threads()


def test_no_more_batches_are_made_ahead_than_prefetch(split_over):
  source = FakeSource(1000)
  data = DataConfig(image_size=(4, 5), crop='resize', prefetch=3)
  with train(source, split_over(1), data=data).stream(0, 100) as batches:
    next(batches)
    next(batches)
  assert 2 * 8 <= len(source.reads) <= (2 + 3) * 8


class FailingSource(FakeSource):
  def __getitem__(self, index):
    if index == self.bad:
      raise self.error
    return super().__getitem__(index)


@pytest.mark.parametrize('error', [UserError('record 3 is bad.'), ZeroDivisionError()])
def test_errors_surface_at_their_batch(split_over, error):
  source = FailingSource(40)
  source.error = error
  pipeline = train(source, split_over(1))
  source.bad = int(pipeline.indices(2)[5])
  with pytest.raises(type(error)) as caught, pipeline.stream(0, 5) as batches:
    for step in range(2):
      np.testing.assert_array_equal(next(batches)['label'], pipeline.indices(step))
    next(batches)
  assert caught.value is error
  assert not own_threads()
  with pytest.raises(type(error)):
    pipeline.batch(2)


PROCESS = """
import sys
import jax, numpy as np
from fake_data import FakeSource
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from vit_jax.data.config import DataConfig
from vit_jax.data.pipeline import TrainPipeline
from vit_jax.parallel import distributed

distributed.initialize()
devices = np.array(jax.devices()).reshape(2, 2)  # a row of it for each process
for name, grid in (('split', devices), ('shared', devices.T)):  # 'shared': both processes need every row
  sharding = NamedSharding(Mesh(grid, ('data', 'tensor')), PartitionSpec('data'))
  source, data = FakeSource(30), DataConfig(image_size=(4, 5), crop='random', padding=2)
  pipeline = TrainPipeline(source, data, batch_size=8, seed=0, sharding=sharding)
  image = pipeline.batch(3)['image']
  shards = {str(i): s.data for i, s in enumerate(image.addressable_shards)}
  starts = [s.index[0].indices(8)[0] for s in image.addressable_shards]
  np.savez(f'{sys.argv[1]}/{name}{jax.process_index()}.npz', starts=starts, reads=source.reads, **shards)
"""


@pytest.mark.slow
def test_two_processes_make_the_same_batch_and_only_their_rows(split_over, tmp_path, monkeypatch):
  here = pathlib.Path(__file__).parent
  monkeypatch.setenv('PYTHONPATH', os.pathsep.join(map(str, (here, here.parent))))  # fake_data, image_bytes
  run(PROCESS, 2, arguments=(tmp_path,))
  pipeline = train(FakeSource(30), split_over(1))
  expected, indices = np.asarray(pipeline.batch(3)['image']), pipeline.indices(3)
  for process in range(2):
    for name, rows in (('split', indices[4 * process : 4 * process + 4]), ('shared', indices)):
      part = np.load(tmp_path / f'{name}{process}.npz')
      assert sorted(part['reads']) == sorted(rows)
      assert len(part['starts']) == 2
      for number, start in enumerate(part['starts']):
        np.testing.assert_array_equal(part[str(number)], expected[start : start + 4])


def test_batch_that_is_waited_for_is_spoken_of_until_it_comes(monkeypatch):
  monkeypatch.setattr(prefetch, '_SECONDS_OF_SILENCE', 0.01)
  heard = threading.Event()

  class Listener(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
      if '1 of its 2 parts are.' in record.getMessage():
        heard.set()

  def wait() -> None:
    assert heard.wait(120)

  def work(step: int) -> prefetch.Work:
    return [wait, lambda: None], lambda: {'step': np.int64(step)}

  listener, logger = Listener(), logging.getLogger(prefetch.__name__)
  logger.addHandler(listener)
  try:
    with prefetch.Prefetcher(work, range(2), threads=2, prefetch=1) as batches:
      assert [batch['step'] for batch in batches] == [0, 1]
  finally:
    logger.removeHandler(listener)
