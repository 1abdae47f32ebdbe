"""Some records of a source: those of some classes, or no more than so many of each class."""

from collections.abc import Sequence

import numpy as np

from vit_jax.data.sources.base import Record, Source


class Subset:
  """The chosen records of a source, in its order; labels and class names stay as they are."""

  def __init__(self, source: Source, chosen: np.ndarray):
    """
    Args:
      source: the records.
      chosen: bool (len(source),).
    """
    self.class_names = source.class_names
    self._source, self._numbers = source, np.flatnonzero(chosen).astype(np.uint32)

  def __len__(self) -> int:
    return len(self._numbers)

  def __getitem__(self, index: int) -> Record:
    return self._source[int(self._numbers[index])]

  def labels(self) -> np.ndarray:
    return self._source.labels()[self._numbers]


def of_classes(source: Source, names: Sequence[str]) -> Subset:
  """The records that have at least one of the classes; names that the source has not are passed over."""
  wanted = [number for number, name in enumerate(source.class_names) if name in set(names)]
  labels = source.labels()
  return Subset(source, np.isin(labels, wanted).reshape(len(labels), -1).any(axis=1))


def at_most(source: Source, count: int, seed: int) -> Subset:
  """The records that are, for each of their classes, among its first `count` in an order drawn by the seed.

  So no class has more; where records have lists of classes it may have fewer than there are, since a record
  goes with the fullest of its classes.
  """
  labels = source.labels()
  labels = np.sort(labels.reshape(len(labels), -1), axis=1)
  labels[:, 1:][labels[:, 1:] == labels[:, :-1]] = -1  # a class is on a list once
  return Subset(source, ((ranks(labels, seed) < count) | (labels < 0)).all(axis=1))


def ranks(labels: np.ndarray, seed: int) -> np.ndarray:
  """How many records come before each one among those of its class, in an order drawn by the seed.

  Args:
    labels: int (records,) or (records, classes of each); what is on a list twice counts twice.
    seed: of the order.

  Returns:
    int64 of that shape; where a label is -1, without meaning.
  """
  order = np.argsort(np.random.Philox(key=seed).random_raw(len(labels)), kind='stable')
  classes = labels[order].ravel()  # of the records in that order
  by_class = np.argsort(classes, kind='stable')
  first = np.searchsorted(classes[by_class], classes[by_class])  # where each one's class begins
  rank = np.empty(len(classes), np.int64)  # of each one among its class
  rank[by_class] = np.arange(len(classes)) - first
  result = np.empty(labels.shape, np.int64)
  result[order] = rank.reshape(labels.shape)
  return result
