"""Images with lists of classes, from a prepared data set to a trained and evaluated model."""

import json

from vit_jax import config as c
from vit_jax.training import loop
from vit_jax.training.evaluate_checkpoint import evaluate_newest


def test_run_on_lists_of_classes_learns_them_and_evaluates_as_it_did(tmp_path, shades_dir):
  """16 images, one for each list of four classes."""
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
  assert evaluate_newest(config, tmp_path)['test/mean_average_precision'] == 1.0
