"""What teachers predict of images, and which images a student gets."""

from typing import NamedTuple

import numpy as np


class Predictions(NamedTuple):
  """The most probable classes of images, the first one first."""

  classes: np.ndarray  # int32 (images, classes), -1 where an image cannot be read
  probabilities: np.ndarray  # float32 (images, classes)


def choose(predictions: Predictions, confidence: float, per_class: int | None) -> np.ndarray:
  """The numbers of the images whose most probable class is at least so probable, in order.

  A class keeps `per_class` of them, the most confident ones and of equal ones the first; None: all.
  """
  best, confident = predictions.classes[:, 0], predictions.probabilities[:, 0]
  numbers = np.flatnonzero((best >= 0) & (confident >= confidence))
  if per_class is None or not len(numbers):
    return numbers
  order = numbers[np.lexsort((numbers, -confident[numbers], best[numbers]))]  # by class, then confidence
  firsts = np.flatnonzero(np.r_[True, np.diff(best[order]) != 0])  # where each class begins
  rank = np.arange(len(order)) - np.repeat(firsts, np.diff(np.r_[firsts, len(order)]))
  return np.sort(order[rank < per_class])
