"""What teachers predict of images, and which images a student gets."""

from typing import NamedTuple

import numpy as np


class Predictions(NamedTuple):
  """The most probable classes of images, the first one first."""

  classes: np.ndarray  # int32 (images, classes), -1 where an image cannot be read
  probabilities: np.ndarray  # float32 (images, classes)


class Choice(NamedTuple):
  """Which images and classes a student gets."""

  confidence: float = 0.0  # images whose most probable class is less probable are left out
  per_class: int | None = None  # at most so many images of each class, the most confident ones; None: all
  top: int = 5  # classes in a soft label; 1: hard labels


def choose(predictions: Predictions, choice: Choice) -> np.ndarray:
  """The numbers of the images that a student gets, in order; of equally confident ones of a class the first."""
  confidence, per_class = choice.confidence, choice.per_class
  best, confident = predictions.classes[:, 0], predictions.probabilities[:, 0]
  numbers = np.flatnonzero((best >= 0) & (confident >= confidence))
  if per_class is None or not len(numbers):
    return numbers
  order = numbers[np.lexsort((numbers, -confident[numbers], best[numbers]))]  # by class, then confidence
  firsts = np.flatnonzero(np.r_[True, np.diff(best[order]) != 0])  # where each class begins
  rank = np.arange(len(order)) - np.repeat(firsts, np.diff(np.r_[firsts, len(order)]))
  return np.sort(order[rank < per_class])
