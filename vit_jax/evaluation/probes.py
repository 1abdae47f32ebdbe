"""Probes: classifiers fitted to frozen features, each with one setting that is chosen afterwards.

A probe is a function `fit(features, labels, classes) -> predict`, and `predict(features, setting)` gives
classes. The setting is the penalty l2 of 'ridge' and 'logistic', and the k of 'knn' and 'weighted_knn'. All is computed
in float64 on the host.
"""

import functools
from collections.abc import Callable

import numpy as np

from vit_jax.evaluation import logistic as logistic_lib
from vit_jax.evaluation.features import Features
from vit_jax.evaluation.logistic import Standard

Predict = Callable[[np.ndarray, float], np.ndarray]
Fit = Callable[[np.ndarray, np.ndarray, int], Predict]

_ROWS = 1024  # whose neighbours are looked for at a time
_VOTE_TEMPERATURE = 0.07  # of the weights of 'weighted_knn'
_BIAS = 100.0  # the constant feature; so large that its weight is hardly penalised


def ridge(features: np.ndarray, labels: np.ndarray, classes: int) -> Predict:
  """Regularised least squares of float (examples, F) to targets of ±1, as in the paper's few-shot evaluation.

  The targets of a class without examples are all -1.
  """
  scale = Standard([features])
  targets = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)
  solution = Ridge(_with_bias(scale(features)), targets)
  weights = functools.cache(solution.weights)
  return lambda new, l2: (_with_bias(scale(new)) @ weights(l2)).argmax(axis=1)


def logistic(features: np.ndarray, labels: np.ndarray, classes: int) -> Predict:
  """Multinomial logistic regression by L-BFGS, which minimises the summed cross-entropies + l2 / 2 |W|²."""
  del classes  # those of the labels
  there, numbers = np.unique(labels, return_inverse=True)
  scale = Standard([features])
  standard = [Features(scale(features), numbers)]
  fitted = functools.cache(lambda l2: logistic_lib.fit(standard, len(there), l2))
  return lambda new, l2: there[logistic_lib.logits(fitted(l2), scale(new)).argmax(axis=1)]


def knn(features: np.ndarray, labels: np.ndarray, classes: int) -> Predict:
  """The vote of the k nearest neighbours by cosine; ties go to the class with the lower number."""
  from sklearn import neighbors

  @functools.cache
  def model(k: int):
    nearest = neighbors.KNeighborsClassifier(min(k, len(labels)), metric='cosine', algorithm='brute')
    return nearest.fit(features, labels)

  return lambda new, k: model(int(k)).predict(new)


def weighted_knn(features: np.ndarray, labels: np.ndarray, classes: int) -> Predict:
  """The vote of the k nearest neighbours, each by exp(cosine / 0.07) (DINO, arXiv 2104.14294, section 4)."""
  learnt = _unit(features)

  def predict(new: np.ndarray, k: float) -> np.ndarray:
    parts = [new[first : first + _ROWS] for first in range(0, len(new), _ROWS)]
    return np.concatenate([np.empty(0, int), *(vote(part, min(int(k), len(labels))) for part in parts)])

  def vote(part: np.ndarray, k: int) -> np.ndarray:
    cosines = _unit(part) @ learnt.T
    nearest = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
    weights = np.exp(np.take_along_axis(cosines, nearest, axis=1) / _VOTE_TEMPERATURE)
    votes = np.zeros((len(part), classes))
    np.add.at(votes, (np.arange(len(part))[:, None], labels[nearest]), weights)
    return votes.argmax(axis=1)

  return predict


PROBES: dict[str, Fit] = {'ridge': ridge, 'logistic': logistic, 'knn': knn, 'weighted_knn': weighted_knn}
# The settings to choose from. Of equally good ones the first is taken: the strongest penalty.
GRIDS: dict[str, tuple[float, ...]] = {
  'ridge': tuple(2.0**power for power in range(20, -11, -1)),
  'logistic': logistic_lib.PENALTIES,
  'knn': (1, 3, 5, 10, 20, 50, 100),
  'weighted_knn': (20, 10, 100, 200),
}


class Ridge:
  """The W that minimises |X W - Y|² + l2 |W|², for any l2, by one decomposition.

  With the eigenvalues s and eigenvectors V of XᵀX, W = V (s + l2)⁻¹ Vᵀ Xᵀ Y; with the eigenvectors U of XXᵀ,
  W = Xᵀ U (s + l2)⁻¹ Uᵀ Y. The smaller of the two matrices is decomposed.
  """

  def __init__(self, x: np.ndarray, targets: np.ndarray):
    """`x`: float64 (examples, features); `targets`: float64 (examples, outputs)."""
    examples, features = x.shape
    wide = examples < features
    values, vectors = np.linalg.eigh(x @ x.T if wide else x.T @ x)
    self._values = np.maximum(values, 0)  # rounding may make them slightly negative
    self._left = x.T @ vectors if wide else vectors
    self._right = vectors.T @ (targets if wide else x.T @ targets)

  def weights(self, l2: float) -> np.ndarray:
    """W, float64 (features, outputs), for a penalty l2 above 0."""
    return self._left @ (self._right / (self._values + l2)[:, None])


def _unit(features: np.ndarray) -> np.ndarray:
  features = features.astype(np.float64)
  return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


def _with_bias(features: np.ndarray) -> np.ndarray:
  return np.pad(features, ((0, 0), (0, 1)), constant_values=_BIAS)
