"""Targets, losses and hits against NumPy."""

import numpy as np
import pytest

from vit_jax import config as c
from vit_jax.objectives import losses

LISTS = [[3, 0], [6], [], [1, 1, 5], [0, 1, 2, 3]]  # an empty one, one with a class twice, a full one
PADDED = np.array([labels + [-1] * (4 - len(labels)) for labels in LISTS], np.int32)
HOT = np.array([[float(k in labels) for k in range(7)] for labels in LISTS])


@pytest.fixture
def rng():
  return np.random.default_rng(1)


def test_targets():
  labels = np.array([3, 0, 6], np.int32)
  one_hot, multi_hot = losses.targets(labels, 7), losses.targets(PADDED, 7)
  np.testing.assert_array_equal(one_hot, np.eye(7)[labels])
  np.testing.assert_array_equal(multi_hot, HOT)
  assert one_hot.dtype == multi_hot.dtype == np.float32


@pytest.mark.parametrize('smoothing', [0.0, 0.1])
@pytest.mark.parametrize('kind', ['classes', 'lists', 'mixed'])
def test_losses_against_numpy(rng, kind, smoothing):
  one_hot = np.eye(7)[rng.integers(0, 7, 5)]
  targets = {'classes': one_hot, 'lists': HOT, 'mixed': 0.3 * one_hot + 0.7 * one_hot[::-1]}[kind]
  logits = rng.normal(size=(5, 7)) * 4
  smooth = targets * (1 - smoothing) + smoothing / 7
  log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  expected = {'sigmoid': (np.log1p(np.exp(logits)) - smooth * logits).sum(-1)}
  if kind != 'lists':
    expected['softmax'] = -(smooth * log_softmax).sum(-1)
  for name, values in expected.items():
    loss = c.ClassificationObjective(loss=name, label_smoothing=smoothing)
    got = losses.per_example(loss, logits.astype(np.float32), targets.astype(np.float32))
    np.testing.assert_allclose(got, values, rtol=1e-4)


def test_hits():
  top = np.array([0, 5, 2, 1, 4])
  logits = np.eye(7, dtype=np.float32)[top]
  np.testing.assert_array_equal(losses.hits(logits, PADDED), [True, False, False, True, False])
  np.testing.assert_array_equal(losses.hits(logits, PADDED[:, 0]), [False, False, False, True, False])
