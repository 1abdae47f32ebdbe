"""Runs of a transfer that have ended, and the choice of a rate."""

import math

import pytest

from vit_jax import config as c
from vit_jax.foundation.errors import UserError
from vit_jax.training import preprocessing, results
from vit_jax.training.resume import claim
from vit_jax.transfer import lines

CONFIG = preprocessing.resolved(
  c.Config(total='3 steps', evaluators={'test': c.ClassificationEvaluatorConfig()})
)


def test_run_that_has_ended_is_not_done_again(tmp_path):
  """Its metrics come back as they were, one that is not a number too."""
  metrics = {'test/accuracy': 0.5, 'test/loss': math.nan}
  with claim(CONFIG, tmp_path, begun=False, takeover=False):
    pass
  results.write(results.Result(metrics, 1e9, 2.0, 8, 'TPU v3', ['a note']), tmp_path)
  known = results.train(CONFIG, tmp_path, keep=True)
  assert known._replace(metrics={}) == results.Result({}, 1e9, 2.0, 8, 'TPU v3', ['a note'])
  assert known.metrics['test/accuracy'] == 0.5 and math.isnan(known.metrics['test/loss'])


def test_run_of_another_config_is_refused(tmp_path):
  with claim(CONFIG, tmp_path, begun=False, takeover=False):
    pass
  results.write(results.Result({}, 0.0, 0.0, 1, 'cpu', []), tmp_path)
  other = c.Config(total='4 steps', evaluators=CONFIG.evaluators)
  with pytest.raises(UserError, match=r"total \('3 steps' there, '4 steps' here\)"):
    results.train(other, tmp_path, keep=True)


def test_rate_is_chosen_by_accuracy_then_by_loss_and_a_loss_that_is_no_number_loses():
  metrics = {
    0.001: {'test/accuracy': 0.5, 'test/loss': 2.0},
    0.003: {'test/accuracy': 0.6, 'test/loss': math.nan},
    0.01: {'test/accuracy': 0.6, 'test/loss': 1.5},
    0.03: {'test/accuracy': 0.6, 'test/loss': 1.0},
  }
  ranked = sorted(metrics, key=lambda rate: lines._score(metrics[rate]), reverse=True)
  assert ranked == [0.03, 0.01, 0.003, 0.001]
