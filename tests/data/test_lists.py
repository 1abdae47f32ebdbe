"""Images with lists of classes, from a prepared data set to a trained and evaluated model."""

import json

from vit_jax import config as c
from vit_jax.data.config import DataConfig
from vit_jax.training import loop
from vit_jax.training.evaluators import evaluate_run


def test_a_run_on_lists_of_classes(tmp_path, shades_dir):
  """16 images, each list of four classes once: it learns to rank them all, and evaluates as it did."""
  data = DataConfig(
    source=f'tfds:{shades_dir}/lists/1.0.0', image_size=(2, 2), crop='resize', flip=False, max_labels=4
  )
  config = c.Config(
    total='30 steps',
    batch_size=16,
    model=c.Model(variant='custom', patch=2, width=32, mlp_dim=32, depth=1, heads=2, pool='gap'),
    data=data,
    evaluators={'test': c.Evaluator(split='train', batch_size=8, every='20 steps')},
    loss=c.Loss(name='sigmoid'),
    schedule=c.ScheduleConfig(learning_rate=2e-2, warmup='5 steps'),
    checkpoint=c.CheckpointConfig(best='test/mean_average_precision'),
  )
  loop.train(config, tmp_path)
  final = json.loads((tmp_path / 'metrics.jsonl').read_text().splitlines()[-1])
  assert final['test/mean_average_precision'] == 1.0
  # The empty list is a miss, in training and in evaluation.
  assert final['test/accuracy'] == final['train/accuracy'] == 15 / 16
  assert evaluate_run(config, tmp_path)['test/mean_average_precision'] == 1.0
