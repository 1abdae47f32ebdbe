"""Images with lists of classes, from a prepared data set to a trained and evaluated model."""

import json

import numpy as np
import pytest
from fake_data import Lists
from vit_jax.training.evaluators import evaluate_run

from vit_jax import config as c
from vit_jax.data.decode import Picture
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError
from vit_jax.training import loop


def test_source(shades_dir, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(shades_dir))
  data = c.DataConfig(max_labels=4)
  source = open_source('tfds:lists', 'train', data=data)
  assert source.class_names == Lists.CLASSES
  seen = set()
  for record in (source[i] for i in range(16)):
    pixels = Picture(record.image, 3, record.name).pixels()[:, :, 0].ravel()
    assert record.label.tolist() == np.flatnonzero(pixels).tolist()
    seen.add(tuple(record.label))
  assert len(seen) == 16
  names = Lists.CLASSES[::-1]
  mapped = open_source('tfds:lists', 'train', data=data, class_names=names)
  assert all((3 - source[i].label == mapped[i].label).all() for i in range(16))
  assert open_source('tfds:shades', 'train', data=data)[0].label in (0, 1, 2)  # a class each is fine too
  with pytest.raises(UserError, match=r'lists/1.0.0 has lists of classes \(labels\); set config.data.max_l'):
    open_source('tfds:lists', 'train', data=c.DataConfig())


def test_a_run_on_lists_of_classes(tmp_path, shades_dir):
  """16 images, each list of four classes once: it learns to rank them all, and evaluates as it did."""
  data = c.DataConfig(
    source=f'tfds:{shades_dir}/lists/1.0.0', image_size=(2, 2), crop='resize', flip=False, max_labels=4
  )
  config = c.Config(
    total='30 steps',
    batch_size=16,
    model=c.ViTConfig(variant='custom', patch=2, width=32, mlp_dim=32, depth=1, heads=2, pool='gap'),
    data=data,
    evaluators={'test': c.ClassificationEvaluatorConfig(split='train', batch_size=8, every='20 steps')},
    objective=c.ClassificationObjective(loss='sigmoid'),
    schedule=c.ScheduleConfig(learning_rate=2e-2, warmup='5 steps'),
    checkpoint=c.CheckpointConfig(best='test/mean_average_precision'),
  )
  loop.train(config, tmp_path)
  final = json.loads((tmp_path / 'metrics.jsonl').read_text().splitlines()[-1])
  assert final['test/mean_average_precision'] == 1.0
  # The empty list is a miss, in training and in evaluation.
  assert final['test/accuracy'] == final['train/accuracy'] == 15 / 16
  assert evaluate_run(config, tmp_path)['test/mean_average_precision'] == 1.0
