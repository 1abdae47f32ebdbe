"""Few-shot probes: the arithmetic against scikit-learn, what a probe may see, and the evaluator in a run."""

import dataclasses
import logging
import re
import unittest.mock

import jax
import numpy as np
import pytest
from PIL import Image
from sklearn import linear_model, neighbors

from vit_jax import config as c
from vit_jax.evaluation import features, fewshot
from vit_jax.evaluation.features import Features
from vit_jax.evaluation.probes import GRIDS, PROBES, Standard
from vit_jax.foundation.errors import UserError
from vit_jax.prepare import run as prepare_run
from vit_jax.prepare.images import Shrinking
from vit_jax.training.run import Dataset, Run, evaluate


def clusters(count: int, seed: int, classes: int = 4, spread: float = 2.0) -> Features:
  """Examples about a centre for each class; the centres are always the same."""
  centres = np.random.default_rng(99).normal(size=(classes, 20))
  rng = np.random.default_rng(seed)
  labels = np.arange(count, dtype=np.int32) % classes
  return Features((centres[labels] + spread * rng.normal(size=(count, 20))).astype(np.float32), labels)


@pytest.mark.parametrize('examples', [40, 12])  # more than features, and fewer
def test_the_ridge_probe_is_scikit_learns_on_standardised_features(examples):
  train, test = clusters(examples, 0), clusters(200, 1)
  scale, predict = Standard([train.values]), PROBES['ridge'](*train, 4)
  x, new = (np.pad(scale(part.values), ((0, 0), (0, 1)), constant_values=100.0) for part in (train, test))
  np.testing.assert_allclose(x[:, :-1].std(axis=0), 1, atol=1e-4)
  targets = 2.0 * np.eye(4)[train.labels] - 1
  for l2 in GRIDS['ridge']:
    expected = linear_model.Ridge(alpha=l2, fit_intercept=False).fit(x, targets).predict(new).argmax(axis=1)
    np.testing.assert_array_equal(predict(test.values, l2), expected)


def test_weighted_neighbours_are_scikit_learns():
  train, test = clusters(300, 0), clusters(1500, 1)
  peer = neighbors.KNeighborsClassifier(
    20, metric='cosine', algorithm='brute', weights=lambda distances: np.exp((1 - distances) / 0.07)
  )
  expected = peer.fit(np.float64(train.values), train.labels).predict(np.float64(test.values))
  np.testing.assert_array_equal(PROBES['weighted_knn'](*train, 4)(test.values, 20), expected)
  assert (
    fewshot.score('weighted_knn', [20], train, clusters(0, 2), test, 4).accuracy
    == (expected == test.labels).mean()
  )


@pytest.mark.slow
@pytest.mark.parametrize('probe', PROBES)
def test_probes_learn_and_choose_without_the_test_labels(probe):
  train, validation, test = clusters(60, 0), clusters(60, 1), clusters(400, 2)
  fair = fewshot.score(probe, GRIDS[probe], train, validation, test, 4)
  assert 0.6 < fair.accuracy <= 1
  # With wrong test labels, one of them of a class that was never seen, the same setting is chosen.
  poisoned = test._replace(labels=(test.labels + 1) % 5)
  unfair = fewshot.score(probe, GRIDS[probe], train, validation, poisoned, 4)
  assert unfair.setting == fair.setting
  predicted = PROBES[probe](*train, 4)(test.values, fair.setting)
  assert unfair.accuracy == (predicted == poisoned.labels).mean()
  # The validation labels decide: where those are wrong, it chooses a bad setting.
  best = max(fewshot.score(probe, [setting], train, validation, test, 4) for setting in GRIDS[probe])
  swapped = validation._replace(labels=(validation.labels + 1) % 4)
  worst = fewshot.score(probe, GRIDS[probe], train, swapped, test, 4)
  assert worst.accuracy < best.accuracy


def test_draws_are_of_each_class_and_have_no_image_in_common():
  labels = np.repeat([0, 1, 2], [30, 12, 3])
  small, large = (fewshot.draw(labels, shots, 8, seed=1) for shots in (2, 5))
  assert np.bincount(labels[small.shots]).tolist() == [2, 2, 2]
  assert np.bincount(labels[large.shots]).tolist() == [5, 5, 3]
  assert np.bincount(labels[small.validation], minlength=3).tolist() == [8, 8, 1]
  assert np.bincount(labels[large.validation], minlength=3).tolist() == [8, 7, 0]
  assert not np.intersect1d(*large).size and set(small.shots) < set(large.shots)
  assert set(fewshot.draw(labels, 5, 8, seed=2).shots) != set(large.shots)
  everything = fewshot.draw(labels, 0, 8, seed=1)
  assert np.bincount(labels[everything.validation]).tolist() == [8, 6, 1]
  assert sorted(np.concatenate(everything)) == list(range(45))


RUN = c.Config(
  batch_size=16,
  model=c.ViTConfig(variant='custom', patch=4, width=16, mlp_dim=16, depth=2, heads=2),
  data=c.DataConfig(
    source='digits', split='train[:100]', image_size=(8, 8), channels=1, classes=('0', '1', '2')
  ),
)
PROBE = c.FewShotEvaluatorConfig(source='digits', shots=(1, 5), seeds=2, validation=4)


def run_of(evaluators: dict[str, c.FewShotEvaluatorConfig], devices: int = 1) -> Run:
  config = dataclasses.replace(RUN, evaluators=evaluators)
  return Run(config, Dataset(100, ('0', '1', '2')), jax.devices()[:devices])


@pytest.mark.slow
def test_the_evaluator_is_the_same_for_any_batch_size_and_mesh():
  """On data with other classes than the run's; features of a layer and pooling of its own."""
  options = {'web': PROBE, 'deep': dataclasses.replace(PROBE, layer=0, pool='token_gap', probe='knn')}
  results = []
  for devices, batch_size in ((1, 100), (8, 16)):
    sized = {name: dataclasses.replace(each, batch_size=batch_size) for name, each in options.items()}
    run = run_of(sized, devices)
    results.append(evaluate(run.program.init(np.uint32(0)), run.open_evaluators()))
  metrics = ('accuracy', 'deviation')
  names = [f'{name}_{n}shot/{metric}' for name in options for n in (1, 5) for metric in metrics]
  assert list(results[0]) == names
  np.testing.assert_allclose(list(results[0].values()), list(results[1].values()), atol=0.5 / 360)
  assert results[0]['web_5shot/accuracy'] > 0.4  # random features do that; chance is 0.1


@pytest.mark.slow
def test_evaluators_of_a_run_share_features_of_equal_data_but_not_between_models(monkeypatch):
  extract = unittest.mock.Mock(wraps=features.extract)
  monkeypatch.setattr(features, 'extract', extract)
  other = dataclasses.replace(PROBE, split='test[:50%]')
  run = run_of({'ridge': PROBE, 'knn': dataclasses.replace(PROBE, probe='knn'), 'other': other})
  state = run.program.init(np.uint32(0))
  scores = evaluate(state._replace(ema=state.params), run.open_evaluators())
  assert extract.call_count == 6  # three splits, for the parameters and for their EMA
  assert scores['ridge_ema_5shot/accuracy'] == scores['ridge_5shot/accuracy']


@pytest.mark.parametrize('grid', [(1, 2.7), (5, 0.999)])
def test_neighbours_are_whole_numbers_from_one(grid):
  with pytest.raises(UserError, match=r'^config\.evaluators\.x\.grid is .* the k of knn counts neighbours'):
    c.FewShotEvaluatorConfig(probe='knn', grid=grid).check('config.evaluators.x')
  c.FewShotEvaluatorConfig(probe='ridge', grid=grid).check('config.evaluators.x')
  c.FewShotEvaluatorConfig(probe='knn', grid=(1, 5.0)).check('config.evaluators.x')


def test_classes_with_too_few_images_are_warned_of(caplog):
  options = dataclasses.replace(PROBE, train_split='train[:60]', shots=(4,), validation=2)
  with caplog.at_level(logging.WARNING):
    opened = run_of({'web': options}).open_evaluators()['web']
  assert opened.too_few and all(count < 6 for count in opened.too_few.values())
  assert 'have fewer than the 6 images' in caplog.text and f'{next(iter(opened.too_few))} (' in caplog.text
  none_left = dataclasses.replace(options, shots=(50,))
  with pytest.raises(UserError, match=r'no images left to choose by after 50 .*\.web\.'):
    run_of({'web': none_left}).open_evaluators()


@pytest.mark.slow
def test_source_with_lists_of_classes_is_refused_by_the_evaluators_name(tmp_path):
  Image.new('RGB', (8, 8)).save(tmp_path / 'a.png')
  (tmp_path / 'list.csv').write_text('file,label\na.png,cat;dog\n')
  options = prepare_run.Options(Shrinking(), workers=1)
  prepare_run.prepare(f'{tmp_path}/list.csv', f'{tmp_path}/set/1.0.0', options)
  lists = dataclasses.replace(
    PROBE, source=f'tfds:{tmp_path}/set/1.0.0', train_split='train[50%:]', split='train[:50%]'
  )
  said = r'evaluators\.web is few-shot, which needs images of one class each, and'
  with pytest.raises(UserError, match=said):
    run_of({'web': lists}).open_evaluators()


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    ({'layer': 2}, r'config\.evaluators\.web\.layer is 2; choose a block from 0 to 1'),
    ({'source': 'digits:train[:50%]'}, r'web\.source names the split .*; leave it out there'),
    *(
      (
        {'train_split': train, 'split': test},
        f"learns from images of the split '{re.escape(train)}' and is tested",
      )
      for train, test in (
        ('test', 'test'),
        ('train', 'train[80%:]'),
        ('train[:9%]', 'train[:9%]'),
        ('train+test', 'test'),
      )
    ),
    ({'pool': 'map'}, r"web\.pool is 'map', which this model does not have; choose gap or token or tok"),
  ],
)
def test_layers_poolings_and_splits_that_are_no_good_are_refused_at_the_start(change, said):
  with pytest.raises(UserError, match=said):
    run_of({'web': dataclasses.replace(PROBE, **change)}).open_evaluators()
