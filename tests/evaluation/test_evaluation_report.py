"""The files of an evaluation: their numbers, and pictures for any number of classes."""

import json
import re

import numpy as np
import pytest
import tiny
from PIL import Image
from scipy import stats

from vit_jax import config as c
from vit_jax.evaluation import classification_metrics, report
from vit_jax.evaluation.classification_metrics import Examples
from vit_jax.training import loop


def examples(classes: int, count: int = 200) -> Examples:
  """Two thirds are classified right; the last class has no example."""
  rng = np.random.default_rng(classes)
  label = rng.integers(0, classes - 1, count)
  prediction, confidence = np.where(rng.random(count) < 2 / 3, label, 0), rng.random(count, np.float32)
  return Examples(
    classes, label, prediction, confidence, np.zeros(count, np.int32), np.ones(count, np.float32)
  )


def test_the_json_has_the_metrics_the_confusions_and_the_calibration(tmp_path):
  found = examples(3)
  report.save(tmp_path / 'report', 'test', found, ('cat', 'dog'))
  contents = json.loads((tmp_path / 'report/test.json').read_text())
  assert contents['metrics'] == classification_metrics.summarise(found)
  names = [entry['name'] for entry in contents['classes']]
  assert names == ['cat', 'dog', '2'] and contents['classes'][2]['accuracy'] is None
  matrix = np.zeros((3, 3), int)
  for entry in contents['confusion']:
    matrix[names.index(entry['class']), names.index(entry['taken_for'])] = entry['examples']
  np.testing.assert_array_equal(matrix, classification_metrics.confusion(found))
  assert sum(entry['examples'] for entry in contents['calibration']) == 200
  right = [(entry['right'], entry['examples'], entry['interval']) for entry in contents['classes'][:2]]
  whole = contents['accuracy_interval']
  for hits, count, interval in (*right, (matrix.trace(), 200, [whole['low'], whole['high']])):
    expected = stats.binomtest(int(hits), count).proportion_ci(method='wilson')
    np.testing.assert_allclose(interval, [expected.low, expected.high])
  assert contents['classes'][2]['interval'] == [None, None]


def test_interval_of_none_and_of_all_stays_within_0_and_1():
  low, high = classification_metrics.wilson([0, 7], [7, 7])
  for number, hits in enumerate((0, 7)):
    expected = stats.binomtest(hits, 7).proportion_ci(method='wilson')
    np.testing.assert_allclose([low[number], high[number]], [expected.low, expected.high], atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize('classes', [2, 300])
def test_pictures_of_any_number_of_classes_are_whole(tmp_path, classes):
  names = [f'a rather long name of a class, {number}' for number in range(classes)]
  report.save(tmp_path, 'test', examples(classes), names)
  for picture in ('confusion', 'classes'):
    pixels = np.asarray(Image.open(tmp_path / f'test_{picture}.png').convert('L'))
    assert min(pixels.shape) >= 300 and (pixels < 128).any()
    # Nothing is cut off: the margin is white.
    margin = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert (margin == 255).all(), picture


def test_a_run_without_pictures_still_has_its_table_and_tells_the_memory_of_its_ema(tmp_path, capsys):
  loop.train(
    c.Config(
      total='1 steps',
      batch_size=16,
      ema=0.9,
      model=tiny.options(depth=1, width=256, mlp_dim=4096),
      data=c.DataConfig(source='digits', image_size=(8, 8), channels=1),
      evaluators={'test': c.ClassificationEvaluatorConfig(batch_size=90)},
      optimizer=c.OptimizerConfig(name='adam'),
      tensorboard=c.TensorBoardConfig(pictures=False),
    ),
    tmp_path,
  )
  found = sorted(path.name for path in (tmp_path / 'report').iterdir() if path.name.startswith('test'))
  assert found == ['test.json', 'test_ema.json']
  assert json.loads((tmp_path / 'report/test.json').read_text())['images'] == 360
  memory = re.search(
    r'(\d+) MiB parameters, (\d+) MiB optimizer state, (\d+) MiB EMA', capsys.readouterr().out
  )
  params, moments, ema = map(int, memory.groups())
  assert params == ema > 8 and abs(moments - 2 * params) <= 1


def test_examples_with_lists_of_classes_have_metrics_only(tmp_path):
  lists = Examples(5, np.array([[0, -1]]), np.zeros(1, int), np.ones(1), np.full(1, -1), np.ones(1))
  report.save(tmp_path, 'val', lists._replace(mean_average_precision=float('nan')), 'abcde')
  assert [path.name for path in tmp_path.iterdir()] == ['val.json']
  assert json.loads((tmp_path / 'val.json').read_text())['metrics']['mean_average_precision'] is None
