"""Targets, losses and hits of classes, lists of classes and classes with weights against NumPy and float64."""

import dataclasses
import importlib.util

import chex
import jax
import numpy as np
import pytest
import tiny
from sklearn.metrics import average_precision_score

from vit_jax import config as c
from vit_jax.data.sources import open_source
from vit_jax.evaluation import classification_metrics, ranking
from vit_jax.foundation.errors import UserError
from vit_jax.objectives import classification
from vit_jax.objectives.classification import ClassificationObjective
from vit_jax.training.run import open_training

LISTS = [[3, 0], [6], [], [1, 1, 5], [0, 1, 2, 3]]  # an empty one, one with a class twice, a full one
PADDED = np.array([labels + [-1] * (4 - len(labels)) for labels in LISTS], np.int32)
ROWS, LONGEST = 16, 6


def lists(rng, classes):
  """Labels and weights of 16 examples, padded; the first list is empty, the second full."""
  labels, weights = np.full((ROWS, LONGEST), -1, np.int32), np.zeros((ROWS, LONGEST), np.float32)
  for row, count in enumerate([0, LONGEST, *rng.integers(1, LONGEST + 1, ROWS - 2)]):
    labels[row, :count] = rng.permutation(classes)[:count]
    weights[row, :count] = rng.uniform(size=count)
  return labels, weights


def dense(labels, weights, classes):
  """float64 (B, K), one entry after the other."""
  targets = np.zeros((len(labels), classes))
  for row, column in zip(*np.nonzero(labels >= 0), strict=True):
    targets[row, labels[row, column]] = weights[row, column]
  return targets


def test_targets_are_one_hot_or_multi_hot():
  labels = np.array([3, 0, 6], np.int32)
  one_hot, multi_hot = classification.class_targets(labels, 7), classification.class_targets(PADDED, 7)
  np.testing.assert_array_equal(one_hot, np.eye(7)[labels])
  np.testing.assert_array_equal(multi_hot, [[k in labels for k in range(7)] for labels in LISTS])
  chex.assert_type([one_hot, multi_hot], np.float32)


@pytest.mark.parametrize('classes', [12, 21_841])
@pytest.mark.parametrize(('mixed', 'smoothing'), [(False, 0.0), (True, 0.1)])
@pytest.mark.parametrize(
  ('kind', 'loss'),
  [
    *(('class', 'softmax'), ('class', 'sigmoid'), ('list', 'sigmoid')),
    *(('weights', 'softmax'), ('weights', 'sigmoid')),
  ],
)
def test_losses_equal_numpy_in_float64(kind, loss, mixed, smoothing, classes):
  """Of logits around the bias at which the paper begins, -10, for a sigmoid."""
  rng = np.random.default_rng(classes)
  logits = rng.normal(size=(ROWS, classes)).astype(np.float32) * 3 - (10 if loss == 'sigmoid' else 0)
  labels, weights = lists(rng, classes)
  if kind == 'class':
    labels = rng.integers(0, classes, ROWS).astype(np.int32)
    targets = np.eye(classes)[labels]
  else:
    targets = dense(labels, weights if kind == 'weights' else np.ones_like(weights), classes)
  if loss == 'softmax':
    targets /= np.maximum(targets.sum(1, keepdims=True), 1e-30)
  batch = {'label': labels} | ({'weight': weights} if kind == 'weights' else {})
  if mixed:
    lam = rng.uniform(0.5, 1, ROWS).astype(np.float32)
    batch |= {f'{name}_b': values[::-1] for name, values in batch.items()} | {'lam': lam}
    targets = lam[:, None] * targets + (1 - lam[:, None].astype(np.float64)) * targets[::-1]
  wide = logits.astype(np.float64)
  objective = ClassificationObjective(loss=loss, label_smoothing=smoothing)
  for smooth, share in ((True, smoothing), (False, 0.0)):
    smoothed = targets * (1 - share) + share / classes
    if loss == 'sigmoid':
      expected = (np.logaddexp(0, wide) - smoothed * wide).sum(1)
    else:
      expected = -(smoothed * (wide - np.log(np.exp(wide).sum(1, keepdims=True)))).sum(1)
    got = objective.cross_entropy(logits, objective.mixed_targets(batch, classes), smooth=smooth)
    np.testing.assert_allclose(np.asarray(got, np.float64).mean(), expected.mean(), rtol=1e-6)
    np.testing.assert_allclose(got, expected, rtol=3e-6, atol=1e-6)


def test_weights_of_one_are_lists_without_weights():
  """To the bit."""
  labels, _ = lists(np.random.default_rng(0), 12)
  ones = (labels >= 0).astype(np.float32)
  objective = ClassificationObjective(loss='sigmoid')
  np.testing.assert_array_equal(objective.targets(labels, 12), objective.targets(labels, 12, ones))
  logits = np.random.default_rng(1).normal(size=(ROWS, 12)).astype(np.float32)
  same = classification.hits(logits, labels), classification.hits(logits, labels, ones)
  np.testing.assert_array_equal(*same)


def test_gradient_of_an_empty_list_is_finite_for_softmax():
  objective = ClassificationObjective()
  empty = {'label': np.full((1, 3), -1, np.int32), 'weight': np.zeros((1, 3), np.float32)}
  gradient = jax.grad(lambda x: objective.cross_entropy(x, objective.mixed_targets(empty, 5)).sum())
  np.testing.assert_array_equal(gradient(np.ones((1, 5), np.float32)), np.zeros((1, 5)))


LABELS = np.array([[3, 1, 0], [2, 0, -1], [4, 5, -1], [-1, -1, -1], [1, -1, -1]], np.int32)
WEIGHTS = np.array([[0.2, 0.7, 0.1], [0.4, 0.4, 0], [0.5, 0.6, 0], [0, 0, 0], [0, 0, 0]], np.float32)


@pytest.mark.parametrize(
  ('labels', 'weights', 'top', 'expected'),
  [
    (PADDED[:, 0], None, [0, 5, 2, 1, 4], [False, False, False, True, False]),
    (PADDED, None, [0, 5, 2, 1, 4], [True, False, False, True, False]),
    # Any of the classes that share the largest weight; never of an empty list, or of one without any weight.
    (LABELS, WEIGHTS, [3, 0, 5, 0, 1], [False, True, True, False, False]),
  ],
  ids=['own class', 'one on the list', 'largest weight'],
)
def test_hits_are_of_the_own_class_or_of_one_on_the_list_or_of_the_one_with_the_largest_weight(
  labels, weights, top, expected
):
  hits = classification.hits(np.eye(7, dtype=np.float32)[top], labels, weights)
  np.testing.assert_array_equal(hits, expected)
  said = {'confidence': np.ones(5), 'rank': np.full(5, -1), 'loss': np.zeros(5)}
  examples = classification_metrics.Examples(7, labels, np.array(top), **said, weight=weights)
  if labels.ndim == 2:
    np.testing.assert_array_equal(classification_metrics.hits(examples), expected)


def test_average_precision_is_of_weights_of_at_least_a_half():
  scores = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
  mean = ranking.MeanAveragePrecision()
  device_scores = jax.device_put(scores, jax.devices()[0])
  mean.add(device_scores, ranking.positives(LABELS, WEIGHTS), np.ones(5, bool))
  targets = dense(LABELS, WEIGHTS, 6) >= 0.5
  own = [average_precision_score(targets[:, k], scores[:, k]) for k in range(6) if targets[:, k].any()]
  assert len(own) == 3
  assert mean.result() == pytest.approx(np.mean(own), rel=1e-12)


@pytest.mark.parametrize('z_loss', [0.0, 1e-2])
@pytest.mark.parametrize('mixed', [False, True])
def test_smoothing_and_z_loss_give_an_image_without_any_weight_no_loss(mixed, z_loss):
  logits = np.random.default_rng(3).standard_normal((3, 5)).astype(np.float32)
  batch = {
    'label': np.array([[1, 4], [2, -1], [-1, -1]], np.int32),
    'weight': np.array([[0.5, 0.25], [1, 0], [0, 0]], np.float32),
  }
  targets = np.array([[0, 2 / 3, 0, 0, 1 / 3], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]])
  if mixed:  # with an image that has no weight
    batch |= {f'{name}_b': np.roll(values, 1, 0) for name, values in batch.items()}
    batch |= {'lam': np.full(3, 0.7, np.float32)}
    targets = 0.7 * targets + 0.3 * np.roll(targets, 1, 0)
  smoothed = 0.9 * targets + 0.1 * targets.sum(axis=1, keepdims=True) / 5
  log_sums = np.log(np.exp(logits).sum(axis=1))
  expected = (
    -(smoothed * (logits - log_sums[:, None])).sum(axis=1) + z_loss * targets.sum(axis=1) * log_sums**2
  )
  losses = ClassificationObjective(label_smoothing=0.1, z_loss=z_loss).label_losses(logits, batch)
  np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)
  assert losses[2] == 0 or mixed


def test_balanced_weights_of_a_mixture_are_scikit_learns_of_the_images_as_they_are_drawn():
  utils = pytest.importorskip('sklearn.utils')
  parts = ('digits:train[:50]', 'digits:test')
  config = c.Config(
    total='1 steps',
    model=tiny.options(),
    data=c.DataConfig(image_size=(8, 8), crop='resize', mixture=((parts[0], 2.0), (parts[1], 1.0))),
    objective=ClassificationObjective(class_weights='balanced'),
  )
  run, _ = open_training(config)
  first, second = (open_source(part, '', data=config.data).labels() for part in parts)
  # Two of three images are of the first part.
  drawn = np.concatenate([np.repeat(first, 2 * len(second)), np.repeat(second, len(first))])
  expected = utils.class_weight.compute_class_weight('balanced', classes=np.arange(10), y=drawn)
  np.testing.assert_allclose(run.config.objective.class_weights, expected, rtol=1e-12)


@pytest.mark.parametrize('smoothing', [0.0, 0.1])
@pytest.mark.slow
def test_class_weights_are_scikit_learns_and_weigh_losses_as_pytorchs(smoothing):
  torch = pytest.importorskip('torch')
  utils = pytest.importorskip('sklearn.utils')
  labels = np.repeat(np.arange(4), [40, 10, 3, 7])
  expected = utils.class_weight.compute_class_weight('balanced', classes=np.arange(4), y=labels)
  asked = ClassificationObjective(class_weights='balanced', label_smoothing=smoothing)
  objective = asked.with_counts(4, np.bincount(labels))
  np.testing.assert_allclose(objective.class_weights, expected, rtol=1e-12)
  logits = np.random.default_rng(0).normal(size=(len(labels), 4)).astype(np.float32)
  theirs = torch.nn.functional.cross_entropy(
    torch.tensor(logits),
    torch.tensor(labels),
    weight=torch.tensor(expected, dtype=torch.float32),
    label_smoothing=smoothing,
    reduction='none',
  )
  batch = {'label': labels.astype(np.int32)}
  np.testing.assert_allclose(objective.label_losses(logits, batch), theirs, rtol=1e-4)
  plain = dataclasses.replace(asked, class_weights=None)
  np.testing.assert_array_equal(  # evaluations count all alike
    objective.cross_entropy(logits, np.eye(4)[labels]), plain.cross_entropy(logits, np.eye(4)[labels])
  )
  binary = dataclasses.replace(objective, loss='sigmoid', label_smoothing=0.0)
  theirs = torch.nn.functional.binary_cross_entropy_with_logits(
    torch.tensor(logits),
    torch.tensor(np.eye(4)[labels], dtype=torch.float32),
    weight=torch.tensor(expected, dtype=torch.float32),
    reduction='none',
  ).sum(dim=1)
  np.testing.assert_allclose(binary.label_losses(logits, batch), theirs, rtol=1e-4)


def test_class_weights_of_another_number_than_the_classes_are_refused():
  with pytest.raises(
    UserError, match='class_weights has 2 weights, and the data has 3 classes; give one for each'
  ):
    ClassificationObjective(class_weights=(1.0, 2.0)).with_counts(3, None)


def numpy_loss(logits, targets, objective, weights):
  """The training loss in float64, class by class: focal, asymmetric, with Poly-1's and z's terms."""
  wide, terms = logits.astype(np.float64), np.zeros(logits.shape)
  o = objective

  def cost(p, focus):
    return -((1 - p) ** focus) * np.log(p) + o.poly * (1 - p)

  if o.loss == 'softmax':
    shares = np.exp(wide) / np.exp(wide).sum(1, keepdims=True)
    terms = targets * cost(shares, o.focus)
    return (weights * terms).sum(1) + o.z_loss * np.log(np.exp(wide).sum(1)) ** 2
  p = 1 / (1 + np.exp(-wide))
  other_focus = o.focus if o.other_focus is None else o.other_focus
  terms = targets * cost(p, o.focus) + (1 - targets) * cost(1 - np.maximum(p - o.margin, 0), other_focus)
  return (weights * terms).sum(1)


@pytest.mark.parametrize(
  'options',
  [
    {'focus': 2.0},
    {'poly': 1.5, 'z_loss': 1e-2, 'label_smoothing': 0.1, 'class_weights': tuple(np.linspace(0.5, 2, 6))},
    {'loss': 'sigmoid', 'focus': 0.5, 'poly': -0.5},
    {'loss': 'sigmoid', 'focus': 1.0, 'other_focus': 4.0, 'margin': 0.05, 'label_smoothing': 0.1},
  ],
)
def test_losses_of_hard_examples_equal_numpy_in_float64_and_have_gradients_everywhere(options):
  objective = ClassificationObjective(**options)
  rng = np.random.default_rng(0)
  logits, labels = rng.normal(size=(ROWS, 6)).astype(np.float32) * 3, rng.integers(0, 6, ROWS)
  smoothed = np.eye(6)[labels] * (1 - objective.label_smoothing) + objective.label_smoothing / 6
  weights = np.ones(6) if objective.class_weights is None else np.asarray(objective.class_weights)
  batch = {'label': labels.astype(np.int32)}
  expected = numpy_loss(logits, smoothed, objective, weights)
  np.testing.assert_allclose(objective.label_losses(logits, batch), expected, rtol=2e-5, atol=1e-6)
  extreme = np.concatenate([200 * np.eye(6, dtype=np.float32)[labels], logits * 0, -200 * np.eye(6)[labels]])
  labels = {'label': np.tile(batch['label'], 3)}
  gradient = jax.grad(lambda x: objective.label_losses(x, labels).sum())(extreme.astype(np.float32))
  assert np.isfinite(gradient).all()
  assert objective.cross_entropy(
    logits, smoothed, smooth=False
  ) == pytest.approx(  # evaluations count all alike
    ClassificationObjective(loss=objective.loss).cross_entropy(logits, smoothed, smooth=False)
  )


@pytest.mark.parametrize('gammas', [(1.0, 4.0), (0.0, 2.0)])
def test_the_asymmetric_loss_is_timms(gammas):
  """timm's file by itself, since the package imports torchvision."""
  torch, package = pytest.importorskip('torch'), importlib.util.find_spec('timm')
  if package is None:
    pytest.skip('needs timm')
  spec = importlib.util.spec_from_file_location(
    'asymmetric_loss', f'{package.submodule_search_locations[0]}/loss/asymmetric_loss.py'
  )
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  rng = np.random.default_rng(1)
  logits, weights = rng.normal(size=(ROWS, 9)).astype(np.float32) * 3, np.ones((ROWS, LONGEST), np.float32)
  labels, _ = lists(rng, 9)
  focus, other_focus = gammas
  objective = ClassificationObjective(loss='sigmoid', focus=focus, other_focus=other_focus, margin=0.05)
  theirs = module.AsymmetricLossMultiLabel(gamma_neg=other_focus, gamma_pos=focus, clip=0.05)
  targets = torch.tensor(dense(labels, weights, 9), dtype=torch.float32)
  got = objective.label_losses(logits, {'label': labels})
  np.testing.assert_allclose(np.mean(got), theirs(torch.tensor(logits), targets), rtol=1e-5)


@pytest.mark.parametrize('options', [{'margin': 0.05}, {'loss': 'sigmoid', 'z_loss': 1e-4}])
def test_an_option_of_the_other_loss_is_refused(options):
  with pytest.raises(
    UserError, match=r'^config\.objective\.\w+ is for loss .*; leave it out, or change the loss\.$'
  ):
    c.from_config_dict(c.as_json(c.Config(objective=ClassificationObjective(**options))))
