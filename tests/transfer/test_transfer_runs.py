"""Runs of a transfer that have ended, and the choice of a rate."""

import math

from vit_jax import config as c
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


def test_rate_is_chosen_by_accuracy_then_by_loss_and_a_loss_that_is_no_number_loses():
  ranked = [(0.6, 1.0), (0.6, 1.5), (0.6, math.nan), (0.5, 2.0)]
  metrics = [{'test/accuracy': accuracy, 'test/loss': loss} for accuracy, loss in ranked]
  assert sorted([metrics[k] for k in (2, 0, 3, 1)], key=lines._score, reverse=True) == metrics
