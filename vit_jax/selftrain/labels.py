"""The labels that a student gets: the choice among predictions, as a data set."""

import pathlib
from typing import NamedTuple

import numpy as np

from vit_jax.foundation import cpus
from vit_jax.foundation.errors import UserError
from vit_jax.selftrain import choosing, samples
from vit_jax.selftrain.choosing import Predictions
from vit_jax.selftrain.unlabelled import Unlabelled


class Choice(NamedTuple):
  """Which images and classes a student gets."""

  confidence: float = 0.0  # images whose most probable class is less probable are left out
  per_class: int | None = None  # at most so many images of each class, the most confident ones; None: all
  top: int = 5  # classes in a soft label; 1: hard labels


class Labels(NamedTuple):
  """What was written."""

  numbers: np.ndarray  # of the images that were chosen
  longest: int  # the most classes that an image has
  unreadable: int  # images that were left out since they cannot be read


def write(
  source: Unlabelled,
  predictions: Predictions,
  choice: Choice,
  class_names: tuple[str, ...],
  workdir: pathlib.Path,
) -> Labels:
  """Writes the data set in `workdir`; raises as `samples.prepare`, and UserError where no image is chosen."""
  numbers = choosing.choose(predictions, choice.confidence, choice.per_class)
  unreadable = int((predictions.classes[:, 0] < 0).sum())
  if not len(numbers):
    raise UserError(
      f'Of {len(source):,} images {unreadable:,} cannot be read, and no other reaches '
      f'--confidence={choice.confidence:g}; lower it, or check the images.'
    )
  selection = f'top{choice.top}-confidence{choice.confidence:g}-per_class{choice.per_class or "all"}'
  workers = cpus.usable()
  longest = samples.prepare(
    source, predictions, numbers, choice.top, class_names, workdir, selection, workers
  )
  return Labels(numbers, longest, unreadable)
