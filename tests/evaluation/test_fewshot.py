"""Few-shot probes: the arithmetic against scikit-learn, who sees which labels, and the evaluator in a run."""

import dataclasses
import logging
import types

import jax
import numpy as np
import pytest
from sklearn import linear_model

from vit_jax import config as c
from vit_jax.errors import UserError
from vit_jax.evaluation import fewshot
from vit_jax.evaluation.features import Features
from vit_jax.evaluation.probes import GRIDS, PROBES, Standard
from vit_jax.evaluation.ridge import Ridge
from vit_jax.parallel.mesh import make_mesh
from vit_jax.training import evaluators
from vit_jax.training.step import make_train_step


@pytest.mark.parametrize(('examples', 'features'), [(200, 30), (30, 200), (40, 40)])
def test_ridge_is_scikit_learns(examples, features):
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(examples, features)), rng.normal(size=(examples, 7))
  solution = Ridge(x, y)
  for l2 in (0.01, 1.0, 300.0):
    expected = linear_model.Ridge(alpha=l2, fit_intercept=False).fit(x, y).coef_.T
    np.testing.assert_allclose(solution.weights(l2), expected, atol=1e-5, rtol=1e-5)


def clusters(count: int, seed: int, classes: int = 4, spread: float = 2.0) -> Features:
  """Examples about a centre for each class; the centres are always the same."""
  centres = np.random.default_rng(99).normal(size=(classes, 20))
  rng = np.random.default_rng(seed)
  labels = np.arange(count, dtype=np.int32) % classes
  return Features((centres[labels] + spread * rng.normal(size=(count, 20))).astype(np.float32), labels)


def test_the_ridge_probe_is_scikit_learns_on_standardised_features():
  train, test = clusters(40, 0), clusters(200, 1)
  scale = Standard(train.values)
  x = np.hstack([scale(train.values), np.full((40, 1), 100.0)])
  np.testing.assert_allclose(x[:, :-1].std(axis=0), 1, atol=1e-4)
  targets = 2.0 * np.eye(4)[train.labels] - 1
  expected = linear_model.Ridge(alpha=3.0, fit_intercept=False).fit(x, targets)
  predicted = expected.predict(np.hstack([scale(test.values), np.full((200, 1), 100.0)])).argmax(axis=1)
  np.testing.assert_array_equal(PROBES['ridge'](*train, 4)(test.values, 3.0), predicted)


@pytest.mark.parametrize('probe', PROBES)
def test_probes_learn_and_what_they_choose_never_sees_the_test_labels(probe):
  train, validation, test = clusters(60, 0), clusters(60, 1), clusters(400, 2)
  fair = fewshot.score(probe, GRIDS[probe], train, validation, test, 4)
  assert 0.6 < fair.accuracy <= 1
  # As poisoned: the labels of the test set are wrong, those of its last class have never been seen.
  poisoned = test._replace(labels=(test.labels + 1) % 5)
  unfair = fewshot.score(probe, GRIDS[probe], train, validation, poisoned, 4)
  assert unfair.setting == fair.setting
  predicted = PROBES[probe](*train, 4)(test.values, fair.setting)
  assert unfair.accuracy == (predicted == poisoned.labels).mean()
  # And it does look at the validation labels: where those are wrong it chooses the worst.
  best = max(fewshot.score(probe, [setting], train, validation, test, 4) for setting in GRIDS[probe])
  swapped = validation._replace(labels=(validation.labels + 1) % 4)
  worst = fewshot.score(probe, GRIDS[probe], train, swapped, test, 4)
  assert worst.accuracy < best.accuracy


def test_draws_are_of_each_class_and_apart():
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
PROBE = c.FewShotEvaluatorConfig(source='digits', fewshot=c.FewShot(shots=(1, 5), seeds=2, validation=4))


def program(devices: int):
  mesh = make_mesh(c.MeshConfig(), jax.devices()[:devices])
  return mesh, make_train_step(RUN, mesh, num_classes=3, examples=100)


def test_the_evaluator_is_the_same_for_any_batch_size_and_mesh(monkeypatch):
  """On data with other classes than the run's; features of a layer and pooling of its own."""
  own = dataclasses.replace(PROBE.fewshot, layer=0, pool='token_gap', probe='knn')
  options = {'web': PROBE, 'deep': dataclasses.replace(PROBE, fewshot=own)}
  results = []
  for devices, batch_size in ((1, 100), (8, 16)):
    mesh, steps = program(devices)
    config = dataclasses.replace(
      RUN, evaluators={n: dataclasses.replace(o, batch_size=batch_size) for n, o in options.items()}
    )
    opened = evaluators.open_evaluators(config, ('0', '1', '2'), mesh)
    results.append(evaluators.evaluate(steps, steps.init(np.uint32(0)), opened))
  metrics = ('accuracy', 'deviation')
  names = [f'{name}_{n}shot/{metric}' for name in options for n in (1, 5) for metric in metrics]
  assert list(results[0]) == names
  np.testing.assert_allclose(list(results[0].values()), list(results[1].values()), atol=0.5 / 360)
  assert results[0]['web_5shot/accuracy'] > 0.4  # random features do that; chance is 0.1


def test_features_are_computed_once_for_equal_specs_only():
  mesh, steps = program(1)
  narrow = dataclasses.replace(PROBE, fewshot=dataclasses.replace(PROBE.fewshot, shots=(1,)))
  ridge, knn, other = (
    fewshot.FewShotEvaluator('web', options, 'digits', RUN, mesh)
    for options in (
      narrow,
      dataclasses.replace(narrow, fewshot=dataclasses.replace(narrow.fewshot, probe='knn')),
      dataclasses.replace(narrow, split='test[:50%]'),
    )
  )
  params, cache, calls = steps.init(np.uint32(0)).params, {}, []

  def counting(*arguments):
    calls.append(arguments)
    return steps.features(*arguments)

  ridge.scores(counting, params, cache)
  first = len(calls)
  knn.scores(counting, params, cache)
  assert len(calls) == first and len(cache) == 2
  other.scores(counting, params, cache)
  assert len(cache) == 3 and len(calls) > first


def test_classes_with_too_few_images_are_said(caplog):
  mesh = make_mesh(c.MeshConfig(), jax.devices()[:1])
  options = dataclasses.replace(PROBE, fewshot=c.FewShot(train_split='train[:60]', shots=(4,), validation=2))
  with caplog.at_level(logging.WARNING):
    opened = fewshot.FewShotEvaluator('web', options, 'digits', RUN, mesh)
  assert opened.too_few and all(count < 6 for count in opened.too_few.values())
  assert 'have fewer than the 6 images' in caplog.text and f'{next(iter(opened.too_few))} (' in caplog.text
  none_left = dataclasses.replace(options, fewshot=c.FewShot(train_split='train[:60]', shots=(50,)))
  with pytest.raises(UserError, match=r'no images left to choose by after 50 .*\.web\.'):
    fewshot.FewShotEvaluator('web', none_left, 'digits', RUN, mesh)


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    ({'layer': 2}, r'config\.evaluators\.web\.fewshot\.layer is 2; choose a block from 0 to 1'),
    ({'pool': 'map'}, r"fewshot\.pool is 'map', which this model cannot; choose gap or token or token_gap"),
  ],
)
def test_what_the_model_has_not_is_said_at_the_start(change, said):
  options = dataclasses.replace(PROBE, fewshot=dataclasses.replace(PROBE.fewshot, **change))
  with pytest.raises(UserError, match=said):
    fewshot.FewShotEvaluator('web', options, 'digits', RUN, types.SimpleNamespace())
