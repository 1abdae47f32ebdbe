"""Probes: classifiers fitted to frozen features, each with one setting that is chosen afterwards.

A probe is a function `fit(features, labels, classes) -> predict`, and `predict(features, setting)` gives
classes. The setting is the penalty l2 of 'ridge' and 'logistic', and the k of 'knn' and 'weighted_knn'. All is computed
in float64 on the host.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from vit_jax.evaluation import logistic as logistic_lib
from vit_jax.evaluation.features import Features
from vit_jax.evaluation.logistic import Standard

Predict = Callable[[np.ndarray, float], np.ndarray]
Fit = Callable[[np.ndarray, np.ndarray, int], Predict]

_VOTE_TEMPERATURE = 0.07  # of the weights of 'weighted_knn'
_BIAS = 100.0  # the constant feature; so large that its weight is hardly penalised


def ridge(features: np.ndarray, labels: np.ndarray, classes: int) -> Predict:
  """Regularised least squares of float (examples, F) to targets of ±1, as in the paper's few-shot evaluation.

  The targets of a class without examples are all -1. With X = U S Vᵀ the W that minimises |X W - Y|² + l2 |W|² is
  V (S² + l2)⁻¹ Vᵀ Xᵀ Y, so that one decomposition serves all penalties: of XᵀX, or of X where it is the smaller one.
  """
  scale = Standard([features])
  targets = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)
  x = _with_bias(scale(features))
  if len(x) < x.shape[1]:
    _, values, vectors = np.linalg.svd(x, full_matrices=False)
    squares, vectors = values**2, vectors.T
  else:
    squares, vectors = np.linalg.eigh(x.T @ x)
    squares = np.maximum(squares, 0)  # rounding may make them slightly negative
  products = vectors.T @ (x.T @ targets)
  weights = functools.cache(lambda l2: vectors @ (products / (squares + l2)[:, None]))
  return lambda new, l2: (_with_bias(scale(new)) @ weights(l2)).argmax(axis=1)


def logistic(features: np.ndarray, labels: np.ndarray, classes: int) -> Predict:
  """Multinomial logistic regression by L-BFGS, which minimises the summed cross-entropies + l2 / 2 |W|²."""
  del classes  # those of the labels
  there, numbers = np.unique(labels, return_inverse=True)
  scale = Standard([features])
  standard = [Features(scale(features), numbers)]
  fitted = functools.cache(lambda l2: logistic_lib.fit(standard, len(there), l2))
  return lambda new, l2: there[logistic_lib.logits(fitted(l2), scale(new)).argmax(axis=1)]


def knn(features: np.ndarray, labels: np.ndarray, classes: int, weights: Any = 'uniform') -> Predict:
  """The vote of the k nearest neighbours by cosine; ties go to the class with the lower number.

  `weights` of the neighbours are a function of the distances of vectors of length 1, which are sqrt(2 - 2 cosine).
  """
  from sklearn import neighbors, preprocessing

  del classes  # those of the labels
  unit = lambda vectors: preprocessing.normalize(vectors.astype(np.float64))
  learnt = unit(features)

  def predict(new: np.ndarray, k: float) -> np.ndarray:
    nearest = neighbors.KNeighborsClassifier(min(int(k), len(labels)), weights=weights, algorithm='brute')
    return nearest.fit(learnt, labels).predict(unit(new))

  return predict


def weighted_knn(features: np.ndarray, labels: np.ndarray, classes: int) -> Predict:
  """The vote of the k nearest neighbours, each by exp(cosine / 0.07) (DINO, arXiv 2104.14294, section 4)."""
  return knn(features, labels, classes, lambda distances: np.exp((1 - distances**2 / 2) / _VOTE_TEMPERATURE))


PROBES: dict[str, Fit] = {'ridge': ridge, 'logistic': logistic, 'knn': knn, 'weighted_knn': weighted_knn}
# The settings to choose from. Of equally good ones the first is taken: the strongest penalty.
GRIDS: dict[str, tuple[float, ...]] = {
  'ridge': tuple(2.0**power for power in range(20, -11, -1)),
  'logistic': logistic_lib.PENALTIES,
  'knn': (1, 3, 5, 10, 20, 50, 100),
  'weighted_knn': (20, 10, 100, 200),
}


def _with_bias(features: np.ndarray) -> np.ndarray:
  return np.pad(features, ((0, 0), (0, 1)), constant_values=_BIAS)
