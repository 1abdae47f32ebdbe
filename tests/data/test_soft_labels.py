"""Classes with weights (soft labels), from a prepared data set to a trained and evaluated model."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from fake_data import FakeSource

from vit_jax import config as c
from vit_jax.data.on_device import prepare_training
from vit_jax.data.pipeline import EvalPipeline, TrainPipeline
from vit_jax.data.sources import open_source
from vit_jax.data.sources.mixture import Mixture
from vit_jax.foundation.errors import UserError
from vit_jax.training import loop
from vit_jax.training.evaluate_checkpoint import evaluate_newest

DATA = c.DataConfig(image_size=(4, 5), crop='random', padding=2, max_labels=4, label_weights=True)


class WeightedSource(FakeSource):
  """Record i has the classes 0 .. i - 1 with the weights 1, 1/2, 1/3, …"""

  def __getitem__(self, index):
    labels = np.arange(index)
    return super().__getitem__(index)._replace(label=labels, weights=np.float32(1 / (1 + labels)))


def weights_of(labels):
  return np.where(labels >= 0, np.float32(1 / (1 + np.maximum(labels, 0))), 0)


def train(source, sharding, **options):
  data = dataclasses.replace(DATA, **options)
  return TrainPipeline(source, data, batch_size=8, seed=0, sharding=sharding)


def test_weights_follow_their_labels(split_over):
  batch = train(WeightedSource(5), split_over(2)).batch(1)
  assert batch['weight'].dtype == np.float32 and batch['weight'].shape == batch['label'].shape == (8, 4)
  np.testing.assert_array_equal(batch['weight'], weights_of(np.asarray(batch['label'])))
  options = {'crop': 'resize', 'resize': None, 'batch_size': 8, 'sharding': split_over(1)}
  (batch,) = EvalPipeline(WeightedSource(5), DATA, **options)
  np.testing.assert_array_equal(batch['weight'], weights_of(np.asarray(batch['label'])))


def test_classes_without_weights_weigh_one_and_can_be_mixed_in(split_over):
  mixture = Mixture([WeightedSource(4), FakeSource(4)], [1, 1])
  pipeline = train(mixture, split_over(1))
  batch = pipeline.batch(0)
  label, weight = np.asarray(batch['label']), np.asarray(batch['weight'])
  single = pipeline.indices(0) >= 4
  np.testing.assert_array_equal(weight[single], np.float32([[1, 0, 0, 0]] * single.sum()))
  np.testing.assert_array_equal(weight[~single], weights_of(label[~single]))


def test_batches_have_no_weights_without_the_option(split_over):
  assert set(train(WeightedSource(5), split_over(1), label_weights=False).batch(0)) == {'image', 'label'}


def test_weighted_stream_goes_on_in_the_same_bytes(split_over):
  with train(WeightedSource(5), split_over(1)).stream(0, 8) as batches:
    undisturbed = list(batches)
  with train(WeightedSource(5), split_over(2), threads=3).stream(5, 8) as batches:
    for got, expected in zip(batches, undisturbed[5:], strict=True):
      assert got.keys() == expected.keys() == {'image', 'label', 'weight'}
      assert all(np.asarray(got[n]).tobytes() == np.asarray(expected[n]).tobytes() for n in got)


@pytest.mark.slow
@pytest.mark.parametrize('mixing', [{'mixup': 0.5}, {'cutmix': 1.0}])
def test_mixed_images_keep_the_weights_of_both(split_over, mixing):
  data = dataclasses.replace(DATA, mix_per='example', flip=False, **mixing)
  batch = train(WeightedSource(5), split_over(1)).batch(0)
  mixed = prepare_training(batch, data, jax.random.key(0))
  for suffix in ('', '_b'):
    np.testing.assert_array_equal(mixed[f'weight{suffix}'], weights_of(np.asarray(mixed[f'label{suffix}'])))
  both = np.concatenate([mixed['label'], mixed['label_b']])
  sides = np.concatenate([batch['label'], np.roll(batch['label'], 1, axis=0)])
  assert sorted(both.tolist()) == sorted(sides.tolist())


def test_weights_are_read_where_the_option_allows_them(shades_dir):
  source = f'tfds:{shades_dir}/soft_lists/1.0.0'
  records = open_source(source, 'train', data=c.DataConfig(max_labels=4, label_weights=True))
  for number in range(16):
    record = records[number]
    assert record.weights is not None and record.weights.dtype == np.float32
    np.testing.assert_array_equal(record.weights, np.float32([0.25, 0.5, 0.75, 1.0])[record.label])
  with pytest.raises(UserError, match=r'soft_lists.* have weights; set config.data.label_weights=True'):
    open_source(source, 'train', data=c.DataConfig(max_labels=4))
  with pytest.raises(UserError, match=r'has lists of classes .*if they have weights, config.data.label'):
    open_source(source, 'train', data=c.DataConfig())


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize('name', ['lists', 'soft_lists'])
def test_run_on_lists_of_classes_learns_them_and_evaluates_as_it_did(tmp_path, shades_dir, name):
  """16 images, one for each list of four classes, with weights or without."""
  weights = name == 'soft_lists'
  config = c.Config(
    total='30 steps',
    batch_size=16,
    model=c.ViTConfig(variant='custom', patch=2, width=32, mlp_dim=32, depth=1, heads=2, pool='gap'),
    data=c.DataConfig(
      source=f'tfds:{shades_dir}/{name}/1.0.0',
      image_size=(2, 2),
      crop='resize',
      flip=False,
      max_labels=4,
      label_weights=weights,
    ),
    evaluators={'test': c.ClassificationEvaluatorConfig(split='train', batch_size=8, every='20 steps')},
    objective=c.ClassificationObjective(loss='softmax' if weights else 'sigmoid'),
    schedule=c.ScheduleConfig(learning_rate=2e-2, warmup='5 steps'),
    checkpoint=c.CheckpointConfig(best=None if weights else 'test/mean_average_precision'),
    tensorboard=c.TensorBoardConfig(pictures=False),
  )
  loop.train(config, tmp_path)
  final = json.loads((tmp_path / 'metrics.jsonl').read_text().splitlines()[-1])
  assert final['test/accuracy'] == final['train/accuracy'] == 15 / 16  # the empty list is a miss
  if not weights:
    assert final['test/mean_average_precision'] == 1.0
    assert evaluate_newest(config, tmp_path)['test/mean_average_precision'] == 1.0
