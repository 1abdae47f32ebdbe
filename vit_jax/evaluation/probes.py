"""Probes: classifiers fitted to frozen features, each with one setting that is chosen afterwards.

A probe is a function `fit(features, labels, classes) -> predict`, and `predict(features, setting)` gives
classes. The setting is the penalty l2 of 'ridge' and 'logistic', and the k of 'knn'. All is computed in
float64 on the host.
"""

import functools
import math
import statistics
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg

Predict = Callable[[np.ndarray, float], np.ndarray]
Fit = Callable[[np.ndarray, np.ndarray, int], Predict]

_BIAS = 100.0  # the constant feature; so large that its weight is hardly penalised
_FOLDS = 5
_ITERATIONS = 300  # at most; L-BFGS takes some tens on standardised features


def ridge(features: np.ndarray, labels: np.ndarray, classes: int) -> Predict:
  """Regularised least squares of float (examples, F) to targets of ±1, as in the paper's few-shot evaluation.

  The targets of a class without examples are all -1.
  """
  scale = Standard(features)
  targets = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)
  solution = Ridge(_with_bias(scale(features)), targets)
  weights = functools.cache(solution.weights)
  return lambda new, l2: (_with_bias(scale(new)) @ weights(l2)).argmax(axis=1)


def logistic(features: np.ndarray, labels: np.ndarray, classes: int) -> Predict:
  """Multinomial logistic regression by L-BFGS, which minimises the summed cross-entropies + l2 / 2 |W|²."""
  del classes  # scikit-learn finds them in the labels
  scale = Standard(features)

  @functools.cache
  def model(l2: float):
    return _fit_logistic(scale(features), labels, l2)

  if len(np.unique(labels)) == 1:  # nothing to separate, which scikit-learn refuses
    return lambda new, l2: np.full(len(new), labels[0])
  return lambda new, l2: model(l2).predict(scale(new))


def _fit_logistic(standard: np.ndarray, labels: np.ndarray, l2: float):
  """scikit-learn's model of standardised features (examples, F) and labels (examples,)."""
  from sklearn import exceptions, linear_model

  model = linear_model.LogisticRegression(C=1 / l2, solver='lbfgs', max_iter=_ITERATIONS)
  with warnings.catch_warnings():
    # With a small penalty there may be no finite optimum; validation judges such fits like any other.
    warnings.simplefilter('ignore', exceptions.ConvergenceWarning)
    return model.fit(standard, labels)


def _held_out(
  standard: np.ndarray, labels: np.ndarray, rest: np.ndarray, held: np.ndarray, l2: float
) -> tuple[float, float]:
  """Cross-entropy and accuracy on the examples `held` of a regression that is fitted to the examples `rest`."""
  from sklearn import metrics

  model = _fit_logistic(standard[rest], labels[rest], l2)
  shares = model.predict_proba(standard[held])
  loss = metrics.log_loss(labels[held], shares, labels=model.classes_)
  return loss, float(np.mean(model.classes_[shares.argmax(axis=1)] == labels[held]))


def knn(features: np.ndarray, labels: np.ndarray, classes: int) -> Predict:
  """The vote of the k nearest neighbours by cosine; ties go to the class with the lower number."""
  from sklearn import neighbors

  @functools.cache
  def model(k: int):
    nearest = neighbors.KNeighborsClassifier(min(k, len(labels)), metric='cosine', algorithm='brute')
    return nearest.fit(features, labels)

  return lambda new, k: model(int(k)).predict(new)


PROBES: dict[str, Fit] = {'ridge': ridge, 'logistic': logistic, 'knn': knn}
# The settings to choose from. Of equally good ones the first is taken: the strongest penalty.
GRIDS: dict[str, tuple[float, ...]] = {
  'ridge': tuple(2.0**power for power in range(20, -11, -1)),
  'logistic': tuple(10.0**power for power in range(4, -5, -1)),
  'knn': (1, 3, 5, 10, 20, 50, 100),
}


class Standard:
  """Standardises features: less the mean, over the deviation + 1e-5, both of the examples fitted to."""

  def __init__(self, features: np.ndarray):
    features = features.astype(np.float64)
    self._mean, self._scale = features.mean(axis=0), features.std(axis=0) + 1e-5

  def __call__(self, features: np.ndarray) -> np.ndarray:
    return (features - self._mean) / self._scale

  def folded(self, kernel: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kernel (F, K) and bias (K,) that give of features what those given here give of standardised ones."""
    kernel = kernel / self._scale[:, None]
    return kernel, bias - self._mean @ kernel


class Ridge:
  """The W that minimises |X W - Y|² + l2 |W|², for any l2, by one decomposition.

  With the eigenvalues s and eigenvectors V of XᵀX, W = V (s + l2)⁻¹ Vᵀ Xᵀ Y; with the eigenvectors U of XXᵀ,
  W = Xᵀ U (s + l2)⁻¹ Uᵀ Y. The smaller of the two matrices is decomposed.
  """

  def __init__(self, x: np.ndarray, targets: np.ndarray):
    """`x`: float64 (examples, features); `targets`: float64 (examples, outputs)."""
    examples, features = x.shape
    wide = examples < features
    values, vectors = scipy.linalg.eigh(x @ x.T if wide else x.T @ x)
    self._values = np.maximum(values, 0)  # rounding may make them slightly negative
    self._left = x.T @ vectors if wide else vectors
    self._right = vectors.T @ (targets if wide else x.T @ targets)

  def weights(self, l2: float) -> np.ndarray:
    """W, float64 (features, outputs), for a penalty l2 above 0."""
    return self._left @ (self._right / (self._values + l2)[:, None])


def _with_bias(features: np.ndarray) -> np.ndarray:
  return np.pad(features, ((0, 0), (0, 1)), constant_values=_BIAS)


class Head(NamedTuple):
  """A linear classifier of features as they are: `features @ kernel + bias`."""

  kernel: np.ndarray  # float32 (F, K)
  bias: np.ndarray  # float32 (K,)
  l2: float  # the penalty it was fitted with
  accuracy: float  # by cross-validation, with that penalty; NaN where a class has a single image


def logistic_head(features: np.ndarray, labels: np.ndarray, classes: int) -> Head:
  """Multinomial logistic regression whose penalty is that of the least cross-entropy in cross-validation.

  Features are float (examples, F), and labels int (examples,), at least two of them different. A class without examples
  gets the lowest logit.
  """
  scale = Standard(features)
  standard = scale(features)
  l2, accuracy = _best_penalty(standard, labels)
  model = _fit_logistic(standard, labels, l2)
  weights, bias = model.coef_, model.intercept_
  if len(weights) == 1:  # of two classes scikit-learn gives the second's logit, the first's being 0
    weights, bias = np.concatenate([0 * weights, weights]), np.concatenate([0 * bias, bias])
  kernel = np.zeros((features.shape[1], classes))
  kernel[:, model.classes_] = weights.T
  biases = np.full(classes, bias.min() - 10)
  biases[model.classes_] = bias
  # (x - mean) / scale @ kernel + bias, in terms of x.
  kernel, biases = scale.folded(kernel, biases)
  return Head(kernel.astype(np.float32), biases.astype(np.float32), l2, accuracy)


def _best_penalty(standard: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
  """The penalty of the least cross-entropy in cross-validation, and its accuracy there.

  By the loss and not by the accuracy, in which many penalties are equal: all images right, at half the confidence.
  Where a class has a single image, there is nothing to choose by: 1, and an accuracy of NaN.
  """
  from sklearn import model_selection

  best, loss, accuracy = 1.0, math.inf, math.nan
  folds = min(_FOLDS, int(np.bincount(labels)[np.unique(labels)].min()))
  if folds == 1:
    return best, accuracy
  divided = list(model_selection.StratifiedKFold(folds).split(standard, labels))
  for penalty in GRIDS['logistic']:
    scores = [_held_out(standard, labels, rest, held, penalty) for rest, held in divided]
    mean_loss, mean_accuracy = (statistics.fmean(values) for values in zip(*scores, strict=True))
    if mean_loss < loss:
      best, loss, accuracy = penalty, mean_loss, mean_accuracy
  return best, accuracy
