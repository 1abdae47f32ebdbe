"""Metrics of classification, by NumPy, from what a model says of each example.

The examples are in the data's order and on every process, so that a metric has the same bits for any batch
size and number of processes, as far as the model itself does. The metrics, by their names in `metrics.jsonl`
(behind '<evaluator>/'):

  accuracy              whether the most probable class is the example's, or on its list (precision@1, to
                        which an example with an empty list counts as a miss), or the one with the largest
                        weight on a list with weights
  loss                  mean cross-entropy, without label smoothing
  top_5_accuracy        whether the example's class is among the 5 most probable; where there are more than 5
  mean_class_accuracy   mean, over the classes that have examples, of the accuracy among a class's examples
  calibration_error     see `calibration`
  real_accuracy         see `real_labels.py`; where the evaluator has such labels
  mean_average_precision   of lists of classes, see `ranking.py`; instead of the three in the middle. Of
                        classes with weights, those of at least a half count.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vit_jax.evaluation.base import MetricKind
from vit_jax.objectives.classification import is_own

TOP = 5
_Z = 1.959963984540054  # standard deviations around the mean that hold 95 % of a normal distribution
BINS = 15  # of the calibration error, as in arXiv 1706.04599

# How the metrics are read; see the module's text for what they are.
METRICS: Mapping[str, MetricKind] = {
  'accuracy': MetricKind(higher_is_better=True, percent=True, headline=True),
  'loss': MetricKind(higher_is_better=False),
  'top_5_accuracy': MetricKind(higher_is_better=True, percent=True),
  'mean_class_accuracy': MetricKind(higher_is_better=True, percent=True),
  'calibration_error': MetricKind(higher_is_better=False),
  'real_accuracy': MetricKind(higher_is_better=True, percent=True),
  'mean_average_precision': MetricKind(higher_is_better=True, percent=True, headline=True),
}
# Those that examples with lists of classes do not have.
OF_SINGLE_CLASSES = ('top_5_accuracy', 'mean_class_accuracy', 'calibration_error')


class Examples(NamedTuple):
  """What a model says of each of N examples, in their order."""

  num_classes: int  # of the head
  label: np.ndarray  # int32 (N,), or (N, max_labels) padded with -1 where examples have lists of classes
  prediction: np.ndarray  # int32 (N,), the most probable class
  confidence: np.ndarray  # float32 (N,), its probability
  rank: np.ndarray  # int32 (N,), how many classes are more probable than the example's own; of lists -1
  loss: np.ndarray  # float32 (N,)
  real: np.ndarray | None = None  # int32 (N, M) padded with -1, the classes that ReaL accepts
  mean_average_precision: float | None = None  # of lists; None: of single classes
  weight: np.ndarray | None = None  # float32 (N, max_labels), of the classes of lists; None: each is 1


def summarise(examples: Examples) -> dict[str, float]:
  """Metric -> value: those of METRICS that these examples have."""
  count = len(examples.prediction)
  values = {
    'accuracy': int(hits(examples).sum()) / count,
    'loss': float(examples.loss.mean(dtype=np.float64)),
  }
  if examples.real is not None:
    values['real_accuracy'] = real_accuracy(examples.prediction, examples.real)
  if examples.mean_average_precision is not None:
    return values | {'mean_average_precision': examples.mean_average_precision}
  if examples.num_classes > TOP:
    values['top_5_accuracy'] = int((examples.rank < TOP).sum()) / count
  right, total = per_class(examples)
  values['mean_class_accuracy'] = float((right[total > 0] / total[total > 0]).mean())
  values['calibration_error'] = calibration(examples).error
  return values


def hits(examples: Examples) -> np.ndarray:
  """bool (N,): whether the most probable class is the example's own, or on its list, as `accuracy` counts."""
  return is_own(examples.prediction, examples.label, examples.weight)


def wilson(right: npt.ArrayLike, total: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
  """The 95 % confidence interval of a share, Wilson's (JASA 22, 1927): float64 low and high; NaN of none.

  It needs no resampling, holds for shares near 0 and 1, and is the one that is usually recommended (Brown, Cai and
  DasGupta, 2001). `right` of `total` examples are counts of any shape.
  """
  with np.errstate(invalid='ignore', divide='ignore'):
    share, shrunk = np.divide(right, total), _Z**2 / np.asarray(total, np.float64)
    middle = (share + shrunk / 2) / (1 + shrunk)
    half = np.sqrt(shrunk * (share * (1 - share) + shrunk / 4)) / (1 + shrunk)
  return np.clip(middle - half, 0, 1), np.clip(middle + half, 0, 1)


def interval_text(right: int, total: int) -> str:
  """'91.80% to 95.93%': `wilson` of a share."""
  low, high = wilson(right, total)
  return f'{low:.2%} to {high:.2%}'


def share_text(right: int, total: int) -> str:
  """'94.20% of 500 images (95% interval 91.80% to 95.93%)'."""
  return f'{right / total:.2%} of {total:,} images (95% interval {interval_text(right, total)})'


def real_accuracy(prediction: np.ndarray, real: np.ndarray) -> float:
  """The share of predictions, int32 (N,), that ReaL accepts, among the examples for which it accepts any class at all.

  The accepted classes are int32 (N, M), padded with -1. NaN where it accepts a class for none.
  """
  counted = (real >= 0).any(axis=1)
  right = (prediction[:, None] == real).any(axis=1)
  return int((right & counted).sum()) / int(counted.sum()) if counted.any() else float('nan')


def per_class(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
  """int64 (K,) twice: of each class, the examples that are classified right, and all; of single classes."""
  right = np.bincount(examples.label[hits(examples)], minlength=examples.num_classes)
  return right, np.bincount(examples.label, minlength=examples.num_classes)


def confusion(examples: Examples) -> np.ndarray:
  """int64 (K, K): how many examples of a class (row) are taken for which (column); of single classes."""
  classes = examples.num_classes
  flat = examples.label.astype(np.int64) * classes + examples.prediction
  return np.bincount(flat, minlength=classes**2).reshape(classes, classes)


@dataclasses.dataclass(frozen=True)
class Calibration:
  """How far the model's probabilities are from how often it is right."""

  count: np.ndarray  # int64 (BINS,), examples in each bin of confidence
  confidence: np.ndarray  # float64 (BINS,), its mean over a bin's examples; NaN in an empty one
  accuracy: np.ndarray  # likewise
  error: float  # the expected calibration error


def calibration(examples: Examples) -> Calibration:
  """The expected calibration error of Guo et al. (arXiv 1706.04599).

  Examples are put into 15 bins of equal width by the probability of the most probable class (its softmax, or
  its sigmoid where that is the loss); bin i has those above i / 15, up to and with (i + 1) / 15. The error is
  the mean, weighted by the examples of a bin, of |accuracy - mean confidence|.
  """
  confidence = examples.confidence.astype(np.float64)
  if not np.isfinite(confidence).all():
    nothing = np.full(BINS, np.nan)
    return Calibration(np.zeros(BINS, np.int64), nothing, nothing, float('nan'))
  bins = np.clip(np.ceil(confidence * BINS) - 1, 0, BINS - 1).astype(np.int64)
  count = np.bincount(bins, minlength=BINS)
  right = np.bincount(bins[hits(examples)], minlength=BINS)
  summed = np.bincount(bins, weights=confidence, minlength=BINS)
  with np.errstate(invalid='ignore'):
    mean, accuracy = summed / count, right / count
  error = float(np.abs(right - summed).sum() / count.sum())
  return Calibration(count, mean, accuracy, error)
