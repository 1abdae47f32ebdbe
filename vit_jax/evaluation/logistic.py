"""Multinomial logistic regression, fitted to the end by L-BFGS, of features that need not fit into memory."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from vit_jax.data.sources import subset
from vit_jax.evaluation.features import Features

S = TypeVar('S')
T = TypeVar('T')

PENALTIES = tuple(10.0**power for power in range(4, -5, -1))  # to choose from, the strongest first
_FOLDS = 5
_CHOSEN_BY = 20_000  # images, at most, that the penalty is chosen by
_ITERATIONS = 300  # at most; L-BFGS takes some tens on standardised features
_FEW_PARAMETERS = 100_000
_MEMORY = 2**30  # bytes; features that take more as float64 are read from their files in each iteration


class Standard:
  """Standardises features: less the mean, over the deviation + 1e-5, both of the examples fitted to."""

  def __init__(self, parts: Iterable[np.ndarray]):
    """`parts`: float (examples, F) each, which are gone through twice."""
    count = sum(len(part) for part in parts)
    self._mean = sum(part.sum(axis=0, dtype=np.float64) for part in parts) / count
    squares = sum(((part - self._mean) ** 2).sum(axis=0) for part in parts)
    self._scale = np.sqrt(squares / count) + 1e-5

  def __call__(self, features: np.ndarray) -> np.ndarray:
    """float64 (examples, F)."""
    return (features - self._mean) / self._scale

  def folded(self, kernel: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kernel (F, K) and bias (K,) that give of features what those given here give of standardised ones."""
    kernel = kernel / self._scale[:, None]
    return kernel, bias - self._mean @ kernel


class Head(NamedTuple):
  """A linear classifier of features as they are: `features @ kernel + bias`."""

  kernel: np.ndarray  # float32 (F, K)
  bias: np.ndarray  # float32 (K,)
  l2: float  # the penalty it was fitted with
  accuracy: float  # by cross-validation, with that penalty; NaN where a class has a single image


def fit(
  parts: Iterable[Features],
  classes: int,
  l2: float,
  *,
  weights: np.ndarray | None = None,
  start: np.ndarray | None = None,
) -> np.ndarray:
  """Kernel and bias, float64 (F + 1, classes), of the least weights · cross-entropies + l2 / 2 |kernel|².

  Args:
    parts: standardised features with labels 0 … classes - 1, gone through in each iteration.
    classes: how many there are.
    l2: the penalty, against the sum over all examples.
    weights: of each class; None: 1.
    start: what a similar fit gave; None: zeros.

  It has converged where no derivative of the mean is above 1e-7. With a small penalty there may be no finite optimum;
  validation judges such fits like any other.
  """
  import threadpoolctl
  from scipy import optimize

  weights = np.ones(classes) if weights is None else weights
  if start is None:
    width = next(iter(parts)).values.shape[1]
    start = np.zeros((width + 1, classes))
  shape = start.shape

  def mean_loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
    parameters = flat.reshape(shape)
    loss, gradient, total = l2 / 2 * np.sum(parameters[:-1] ** 2), l2 * parameters, 0.0
    gradient[-1] = 0
    for values, labels in parts:
      own, rows = weights[labels], np.arange(len(labels))
      logs = _log_softmax(logits(parameters, values))
      loss -= own @ logs[rows, labels]
      excess = np.exp(logs)
      excess[rows, labels] -= 1
      excess *= own[:, None]
      gradient[:-1] += values.T @ excess
      gradient[-1] += excess.sum(axis=0)
      total += own.sum()
    return loss / total, gradient.ravel() / total

  options = {'maxiter': _ITERATIONS, 'maxls': 50, 'gtol': 1e-7, 'ftol': 64 * np.finfo(float).eps}
  # Threads that share products as small as those of a few classes mostly wait for each other: 5 s became minutes.
  with threadpoolctl.threadpool_limits(1 if start.size < _FEW_PARAMETERS else None, 'blas'):
    found = optimize.minimize(mean_loss, start.ravel(), jac=True, method='L-BFGS-B', options=options)
  return found.x.reshape(shape)


def logits(parameters: np.ndarray, standard: np.ndarray) -> np.ndarray:
  """float64 (examples, classes), by the parameters of `fit`, of standardised features."""
  return standard @ parameters[:-1] + parameters[-1]


def _log_softmax(said: np.ndarray) -> np.ndarray:
  said = said - said.max(axis=1, keepdims=True)
  return said - np.log(np.exp(said).sum(axis=1, keepdims=True))


def head(
  parts: Iterable[Features], classes: int, *, weights: np.ndarray | None = None, seed: int = 0
) -> Head:
  """Multinomial logistic regression whose penalty is that of the least cross-entropy in cross-validation.

  Args:
    parts: features, float32 (examples, F), with labels; gone through as often as needed.
    classes: K; a class without examples gets the lowest logit.
    weights: of each class; None: 1.
    seed: of the folds, and of the images that the penalty is chosen by where there are many.
  """
  labels = np.concatenate([part.labels for part in parts])
  there, numbers = np.unique(labels, return_inverse=True)
  own = np.ones(len(there)) if weights is None else weights[there]
  scale = Standard(_Mapped(lambda part: part.values, parts))

  def standardised(part: Features) -> Features:
    return Features(scale(part.values), np.searchsorted(there, part.labels))

  standard: Iterable[Features] = _Mapped(standardised, parts)
  if 8 * len(labels) * next(iter(parts)).values.shape[1] <= _MEMORY:
    standard = list(standard)
  rank = subset.ranks(numbers, seed)
  chosen = rank < max(_CHOSEN_BY // len(there), _FOLDS)
  l2, accuracy, start = _best_penalty(_selected(standard, chosen), rank[chosen], own)
  fitted = fit(standard, len(there), l2, weights=own, start=start)
  kernel, bias = np.zeros((len(fitted) - 1, classes)), np.full(classes, fitted[-1].min() - 10)
  kernel[:, there], bias[there] = fitted[:-1], fitted[-1]
  kernel, bias = scale.folded(kernel, bias)
  return Head(kernel.astype(np.float32), bias.astype(np.float32), l2, accuracy)


class _Mapped(Iterable[T]):
  """`map`, which can be gone through again."""

  def __init__(self, function: Callable[[S], T], items: Iterable[S]):
    self._function, self._items = function, items

  def __iter__(self) -> Iterator[T]:
    return map(self._function, self._items)


def _selected(parts: Iterable[Features], chosen: np.ndarray) -> Features:
  """The examples that are chosen, bool (examples,), of all parts."""
  found, first = [], 0
  for values, labels in parts:
    own = chosen[first : first + len(labels)]
    found.append((values[own], labels[own]))
    first += len(labels)
  values, labels = zip(*found, strict=True)
  return Features(np.concatenate(values), np.concatenate(labels))


def _best_penalty(
  features: Features, rank: np.ndarray, weights: np.ndarray
) -> tuple[float, float, np.ndarray | None]:
  """The penalty of the least cross-entropy in cross-validation, its accuracy there, and parameters to start from.

  By the loss and not by the accuracy, in which many penalties are equal: all images right, at half the confidence.
  Weaker penalties are tried until one is no better. Where a class has a single image, there is nothing to choose by: 1,
  and an accuracy of NaN.

  `features` are standardised, with labels 0 … K - 1, and `rank` numbers those of each class.
  """
  values, labels = features
  best, least = (1.0, math.nan, None), math.inf
  folds = min(_FOLDS, int(np.bincount(labels).min()))
  if folds == 1:
    return best
  fitted: list[np.ndarray | None] = [None] * folds
  for l2 in PENALTIES:
    losses, hits = [], []
    for fold in range(folds):
      held = rank % folds == fold
      rest = Features(values[~held], labels[~held])
      fitted[fold] = parameters = fit([rest], len(weights), l2, weights=weights, start=fitted[fold])
      said, own = logits(parameters, values[held]), labels[held]
      losses.append(np.average(-_log_softmax(said)[np.arange(len(own)), own], weights=weights[own]))
      hits.append(np.mean(said.argmax(axis=1) == own))
    loss = statistics.fmean(losses)
    if loss >= least:
      break
    best, least = (l2, statistics.fmean(hits), fitted[0]), loss
  return best
