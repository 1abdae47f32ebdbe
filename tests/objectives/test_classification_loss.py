"""Targets, losses and hits of classification against NumPy."""

import dataclasses

import chex
import numpy as np
import pytest

from vit_jax.foundation.errors import UserError
from vit_jax.objectives import classification
from vit_jax.objectives.classification import ClassificationObjective

LISTS = [[3, 0], [6], [], [1, 1, 5], [0, 1, 2, 3]]  # an empty one, one with a class twice, a full one
PADDED = np.array([labels + [-1] * (4 - len(labels)) for labels in LISTS], np.int32)
HOT = np.array([[float(k in labels) for k in range(7)] for labels in LISTS])


@pytest.fixture
def rng():
  return np.random.default_rng(1)


def test_targets_are_one_hot_or_multi_hot():
  labels = np.array([3, 0, 6], np.int32)
  one_hot, multi_hot = classification.class_targets(labels, 7), classification.class_targets(PADDED, 7)
  np.testing.assert_array_equal(one_hot, np.eye(7)[labels])
  np.testing.assert_array_equal(multi_hot, HOT)
  chex.assert_type([one_hot, multi_hot], np.float32)


@pytest.mark.parametrize('labels', [np.array([3, 0, 6, 2, 2], np.int32), PADDED], ids=['classes', 'lists'])
def test_targets_of_mixed_images_are_mixed_by_their_shares(labels):
  lam = np.linspace(0.5, 1, 5, dtype=np.float32)
  batch = {'label': labels, 'label_b': labels[::-1], 'lam': lam}
  plain, other = (classification.class_targets(each, 7) for each in (labels, labels[::-1]))
  expected = lam[:, None] * plain + (1 - lam[:, None]) * other
  objective = ClassificationObjective(loss='sigmoid')
  np.testing.assert_allclose(objective.mixed_targets(batch, 7), expected, rtol=1e-6)
  np.testing.assert_array_equal(objective.mixed_targets({'label': labels}, 7), plain)


@pytest.mark.parametrize('smoothing', [0.0, 0.1])
@pytest.mark.parametrize('kind', ['classes', 'lists'])
def test_losses_equal_numpy(rng, kind, smoothing):
  one_hot = np.eye(7)[rng.integers(0, 7, 5)]
  targets = {'classes': one_hot, 'lists': HOT}[kind]
  logits = rng.normal(size=(5, 7)) * 4
  log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  for smooth, share in ((True, smoothing), (False, 0.0)):
    smoothed = targets * (1 - share) + share / 7
    expected = {'sigmoid': (np.log1p(np.exp(logits)) - smoothed * logits).sum(-1)}
    if kind != 'lists':
      expected['softmax'] = -(smoothed * log_softmax).sum(-1)
    for name, values in expected.items():
      objective = ClassificationObjective(loss=name, label_smoothing=smoothing)
      inputs = (logits.astype(np.float32), targets.astype(np.float32))
      got = objective.cross_entropy(*inputs, smooth=smooth)
      np.testing.assert_allclose(got, values, rtol=1e-4)


def test_hits_are_of_the_own_class_or_of_one_on_the_list():
  top = np.array([0, 5, 2, 1, 4])
  logits = np.eye(7, dtype=np.float32)[top]
  np.testing.assert_array_equal(classification.hits(logits, PADDED), [True, False, False, True, False])
  expected = [False, False, False, True, False]
  np.testing.assert_array_equal(classification.hits(logits, PADDED[:, 0]), expected)


@pytest.mark.parametrize('smoothing', [0.0, 0.1])
@pytest.mark.slow
def test_class_weights_are_scikit_learns_and_weigh_losses_as_pytorchs(rng, smoothing):
  torch = pytest.importorskip('torch')
  utils = pytest.importorskip('sklearn.utils')
  labels = np.repeat(np.arange(4), [40, 10, 3, 7])
  expected = utils.class_weight.compute_class_weight('balanced', classes=np.arange(4), y=labels)
  asked = ClassificationObjective(class_weights='balanced', label_smoothing=smoothing)
  objective = asked.with_counts(4, np.bincount(labels))
  np.testing.assert_allclose(objective.class_weights, expected, rtol=1e-12)
  logits = rng.normal(size=(len(labels), 4)).astype(np.float32)
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
