"""Early stopping: when a run ends, that a resumed one ends in the same bits, and what TensorBoard shows of it."""

import io
import json
import math
import pathlib

import commands
import numpy as np
import pytest
import run_steps
import tensorboard_events
from flax import nnx
from PIL import Image

import vit_jax
from vit_jax import config as c
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.training.early_stopping import EarlyStopping


def last_step(config: c.StopConfig, values: list[float], resumed_at: int | None = None) -> int:
  """The step after which a run ends whose step i evaluates to values[i - 1], perhaps after a restart."""
  stopper, last = EarlyStopping(config), 0
  for until in (resumed_at or 0, len(values)):
    stopper = EarlyStopping.restored(config, json.loads(json.dumps(stopper.meta())))
    for step in stopper.steps(last, until):
      stopper.update(step, {'val/loss': values[step - 1], 'val/accuracy': 0.5})
      last = step
  return last


@pytest.mark.parametrize(
  ('values', 'options', 'expected'),
  [
    ([3, 2, 2, 2, 1], {'patience': 2}, 4),  # equal is not better
    ([3, 2, 2, 1, 2, 2], {'patience': 3}, 6),
    ([1, 2, 3, 4], {'patience': 1}, 2),
    ([1, 2, 3, 4], {'patience': 1, 'direction': 'higher'}, 4),
    ([4, 3, 2, 1], {'patience': 2, 'direction': 'higher'}, 3),
    ([math.nan, 3, math.nan, math.nan, 1], {'patience': 2}, 4),
    ([math.nan, math.nan, 3, 2], {'patience': 2}, 4),  # before the first number nothing is missed
    ([1, 2, 3, 4], {'patience': 1, 'metric': None}, 4),
  ],
)
def test_run_ends_after_as_many_evaluations_without_a_better_value(values, options, expected):
  config = c.StopConfig(**{'metric': 'val/loss', **options})
  assert last_step(config, values) == expected
  for step in range(1, len(values) + 1):
    assert last_step(config, values, resumed_at=step) == expected


def test_higher_accuracy_is_better_unless_the_config_says_otherwise():
  stopper = EarlyStopping(c.StopConfig('val/accuracy', patience=1))
  for step, value in enumerate([0.1, 0.2, 0.3], start=1):
    stopper.update(step, {'val/accuracy': value})
  assert not stopper.due and stopper.best == 0.3
  stopper.update(4, {'val/loss': 1.0})  # another evaluator
  assert not stopper.due


@pytest.mark.parametrize(
  ('before', 'metric', 'after', 'anew'),
  [
    ('higher', 'val/loss', 'lower', True),
    (None, 'val/loss', 'higher', True),
    ('higher', 'val/loss', None, True),
    (None, 'val/loss', 'lower', False),  # which a loss has anyway
    (None, 'val/accuracy', None, True),
  ],
)
def test_other_metric_or_direction_begins_anew(before, metric, after, anew):
  """The best value of the one says nothing of the other."""
  stopper = EarlyStopping(c.StopConfig('val/loss', direction=before), best=1.0, best_step=3, misses=1)
  restored = EarlyStopping.restored(c.StopConfig(metric, direction=after), stopper.meta())
  assert (math.isnan(restored.best), restored.misses == 0) == (anew, anew)


def test_checkpoint_that_does_not_tell_its_direction_goes_on():
  meta = {'stop': {'metric': 'val/loss', 'best': '1.0', 'best_step': 3, 'misses': 1}}
  assert EarlyStopping.restored(c.StopConfig('val/loss', direction='higher'), meta).best == 1.0


def test_metric_that_no_evaluator_gives_is_refused_with_those_there_are():
  evaluators = {'val': c.ClassificationEvaluatorConfig()}
  with pytest.raises(UserError, match=r'config.stop.metric .*val/los.*choose one of val/accuracy, val/loss'):
    values = c.to_config_dict(c.Config(evaluators=evaluators, stop=c.StopConfig('val/los')))
    c.from_config_dict(values)


# The loss falls, so that it is never higher than at its first evaluation.
STOP = ['--config.stop.metric=test/loss', '--config.stop.direction=higher', '--config.total=40 steps']
STOP += [
  '--config.evaluators.test.every=2 steps',
  '--config.optimizer.name=adam',
  '--config.log_every=1 steps',
]


@pytest.fixture(scope='module')
def stopped(tmp_path_factory) -> pathlib.Path:
  """The workdir of a run that was best at step 2 and ended at step 8."""
  folder = tmp_path_factory.mktemp('stopped')
  pictures = ['--config.tensorboard.pictures=True', '--config.tensorboard.histograms=4 steps']
  result = commands.run(folder, *STOP, *pictures, '--config.stop.patience=3')
  assert result.returncode == 0, result.stderr
  assert 'Stopped early, at step 8 of 40: test/loss was best at step 2 ' in result.stdout
  assert 'Done after 8 steps' in result.stdout
  return folder / 'run'


@pytest.mark.nightly
@pytest.mark.slow
def test_run_that_stops_early_ends_with_the_metrics_of_every_evaluator(tmp_path):
  """Also of one that is not due at that step."""
  other = "'other': ClassificationEvaluatorConfig(split='train[:32]', every='3 steps'), 'test':"
  (tmp_path / 'two.py').write_text(commands.CONFIG.replace("'test':", other))
  flags = ['--config=two.py', *STOP, '--config.stop.patience=1', '--config.ema=0.9']
  result = commands.run(tmp_path, *flags)
  assert 'Stopped early, at step 4 of 40' in result.stdout, result.stderr
  lines = run_steps.logged(tmp_path / 'run')
  assert [line['step'] for line in lines if 'other/loss' in line] == [3, 4]
  assert {'test/loss', 'test_ema/loss', 'other_ema/loss'} <= lines[-1].keys()


@pytest.mark.nightly
@pytest.mark.slow
def test_run_that_stopped_early_is_complete_when_it_is_started_again(stopped):
  before = (stopped / 'metrics.jsonl').read_text()
  again = commands.run(stopped.parent, *STOP, '--config.stop.patience=3')
  assert again.returncode == 0 and 'Stopped early, at step 8 of 40' in again.stdout
  assert (stopped / 'metrics.jsonl').read_text() == before
  assert sorted(path.name for path in (stopped / 'checkpoints').iterdir()) == ['6', '8']


@pytest.mark.slow
def test_tensorboard_has_config_hyper_parameters_pictures_and_histograms(stopped):
  found = {(step, value.tag): value for step, value in tensorboard_events.read(stopped)}
  (text,) = found[0, 'config/text_summary'].tensor.string_val
  assert b'"metric": "test/loss"' in text
  assert {'_hparams_/experiment', '_hparams_/session_start_info'} <= {tag for _, tag in found}
  for key in [(0, 'first_batch'), (8, 'attention'), (8, 'test/confusion')]:
    name = {'test/confusion': 'test_confusion'}.get(key[1], key[1])
    shown = Image.open(io.BytesIO(found[key].image.encoded_image_string)).convert('RGB')
    drawn = Image.open(stopped / f'report/{name}.png').convert('RGB')
    np.testing.assert_array_equal(np.asarray(shown), np.asarray(drawn))
  params = pytrees.flatten(nnx.to_pure_dict(nnx.state(vit_jax.load(stopped).module)))
  for name, array in params.items():
    values, histogram = np.asarray(array, np.float64), found[8, name].histo
    assert histogram.num == values.size == sum(histogram.bucket)
    np.testing.assert_allclose([histogram.min, histogram.max], [values.min(), values.max()], rtol=1e-6)
    np.testing.assert_allclose(histogram.sum_squares, (values**2).sum(), rtol=1e-4)
  assert (4, 'head/kernel') in found and (2, 'head/kernel') not in found
