"""A selection of a source's records: those of some classes, or a limited number of each class."""

from collections.abc import Sequence

import numpy as np

from vit_jax.data.sources.base import Record, Source


class Subset(Source):
  """The chosen records of a source, in its order; labels and class names stay the same."""

  def __init__(self, source: Source, chosen: np.ndarray):
    """`chosen`: bool (len(source),)."""
    self.class_names = source.class_names
    self._source, self._numbers = source, np.flatnonzero(chosen).astype(np.uint32)

  def __len__(self) -> int:
    return len(self._numbers)

  def __getitem__(self, index: int) -> Record:
    return self._source[int(self._numbers[index])]

  @property
  def is_remote(self) -> bool:
    return self._source.is_remote

  def version(self) -> str:
    return self._source.version()

  def sums(self) -> str:
    return self._source.sums()

  def labels(self) -> np.ndarray:
    return self._source.labels()[self._numbers]


def of_classes(source: Source, names: Sequence[str]) -> Subset:
  """The records with at least one of the classes; names that the source does not have are ignored."""
  wanted = [number for number, name in enumerate(source.class_names) if name in set(names)]
  return Subset(source, np.any(np.isin(_lists(source.labels()), wanted), axis=1))


def at_most(source: Source, count: int, seed: int) -> Subset:
  """The records that are among the first `count` of each of their classes, in an order drawn with the seed.

  No class keeps more than `count` records. Where records have lists of classes, a class may keep fewer than it
  could: a record is dropped as soon as one of its classes is full.
  """
  labels = np.sort(_lists(source.labels()), axis=1)
  labels[:, 1:][labels[:, 1:] == labels[:, :-1]] = -1  # count a class once per record
  kept = (ranks(labels, seed) < count) | (labels < 0)
  return Subset(source, np.all(kept, axis=1))


def _lists(labels: np.ndarray) -> np.ndarray:
  """Labels (records,) or (records, n) -> (records, n), also where there are no records."""
  return labels if labels.ndim == 2 else labels[:, np.newaxis]


def ranks(labels: np.ndarray, seed: int) -> np.ndarray:
  """The number of records that precede each record among those of its class, in an order drawn with the seed.

  Of labels int (records,), or (records, n) for lists of classes, in which a class that is there twice counts twice:
  int64 of the same shape, meaningless where a label is -1.
  """
  order = np.argsort(np.random.Philox(key=seed).random_raw(len(labels)), kind='stable')
  classes = labels[order].ravel()  # in that order
  by_class = np.argsort(classes, kind='stable')
  first = np.searchsorted(classes[by_class], classes[by_class])  # where the class of each entry begins
  rank = np.empty(len(classes), np.int64)
  rank[by_class] = np.arange(len(classes)) - first
  result = np.empty(labels.shape, np.int64)
  result[order] = rank.reshape(labels.shape)
  return result
