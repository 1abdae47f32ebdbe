"""Losses, targets and metrics of classes with weights (soft labels) against NumPy and float64."""

import jax
import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from vit_jax.evaluation import classification_metrics, ranking
from vit_jax.objectives import classification
from vit_jax.objectives.classification import ClassificationObjective

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


@pytest.mark.parametrize(('mixed', 'smoothing'), [(False, 0.0), (True, 0.1)])
@pytest.mark.parametrize('loss', ['softmax', 'sigmoid'])
@pytest.mark.parametrize('classes', [12, 21_841])
def test_losses_equal_numpy_in_float64(classes, loss, mixed, smoothing):
  """Of logits around the bias at which the paper begins, -10, for a sigmoid."""
  rng = np.random.default_rng(classes)
  logits = rng.normal(size=(ROWS, classes)).astype(np.float32) * 3 - (10 if loss == 'sigmoid' else 0)
  labels, weights = lists(rng, classes)
  lam = rng.uniform(0.5, 1, ROWS).astype(np.float32)
  batch = {'label': labels, 'weight': weights}
  targets = dense(labels, weights, classes)
  if loss == 'softmax':
    targets /= np.maximum(targets.sum(1, keepdims=True), 1e-30)
  if mixed:
    batch |= {'label_b': labels[::-1], 'weight_b': weights[::-1], 'lam': lam}
    targets = lam[:, None] * targets + (1 - lam[:, None].astype(np.float64)) * targets[::-1]
  targets = targets * (1 - smoothing) + smoothing / classes
  wide = logits.astype(np.float64)
  if loss == 'sigmoid':
    expected = (np.logaddexp(0, wide) - targets * wide).sum(1)
  else:
    expected = -(targets * (wide - np.log(np.exp(wide).sum(1, keepdims=True)))).sum(1)
  objective = ClassificationObjective(loss=loss, label_smoothing=smoothing)
  got = objective.cross_entropy(logits, objective.mixed_targets(batch, classes))
  np.testing.assert_allclose(np.asarray(got, np.float64).mean(), expected.mean(), rtol=1e-6)
  np.testing.assert_allclose(got, expected, rtol=3e-6, atol=1e-6)


def test_weights_of_one_are_lists_without_weights():
  """To the bit."""
  labels, _ = lists(np.random.default_rng(0), 12)
  ones = (labels >= 0).astype(np.float32)
  objective = ClassificationObjective(loss='sigmoid')
  plain, weighted = objective.targets(labels, 12), objective.targets(labels, 12, ones)
  np.testing.assert_array_equal(plain, weighted)
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


def test_accuracy_is_of_the_class_with_the_largest_weight():
  """Or of any of those that share it; never of an empty list, or of one without any weight."""
  top = np.array([3, 0, 5, 0, 1])
  logits = np.eye(6, dtype=np.float32)[top]
  expected = [False, True, True, False, False]
  np.testing.assert_array_equal(classification.hits(logits, LABELS, WEIGHTS), expected)
  examples = classification_metrics.Examples(
    num_classes=6,
    label=LABELS,
    prediction=top,
    confidence=np.ones(5),
    rank=np.full(5, -1),
    loss=np.zeros(5),
    weight=WEIGHTS,
  )
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


@pytest.mark.parametrize('mixed', [False, True])
def test_smoothing_gives_an_image_without_any_weight_no_loss(mixed):
  rng = np.random.default_rng(3)
  logits = rng.standard_normal((3, 5)).astype(np.float32)
  label = np.array([[1, 4], [2, -1], [-1, -1]], np.int32)
  weight = np.array([[0.5, 0.25], [1, 0], [0, 0]], np.float32)
  targets = np.array([[0, 2 / 3, 0, 0, 1 / 3], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]])
  batch = {'label': label, 'weight': weight}
  if mixed:  # with an image that has no weight
    batch |= {
      'label_b': np.roll(label, 1, 0),
      'weight_b': np.roll(weight, 1, 0),
      'lam': np.full(3, 0.7, np.float32),
    }
    targets = 0.7 * targets + 0.3 * np.roll(targets, 1, 0)
  smoothed = 0.9 * targets + 0.1 * targets.sum(axis=1, keepdims=True) / 5
  log_shares = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
  losses = ClassificationObjective(label_smoothing=0.1).label_losses(logits, batch)
  np.testing.assert_allclose(losses, -(smoothed * log_shares).sum(axis=1), rtol=1e-5, atol=1e-6)
  assert losses[2] == 0 or mixed
