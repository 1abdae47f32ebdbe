"""The embedded data set: 1,797 real handwritten digits of 8 x 8 pixels that come with scikit-learn."""

import functools
from collections.abc import Collection, Sequence
from typing import Self

import numpy as np

from vit_jax.data.config import DataConfig
from vit_jax.data.sources.base import NamedSource, Record, label_map, select

_SPLIT_SEED = 0  # of the division into train and test, which is part of the data set
_CLASSES = tuple('0123456789')
_SPLITS: tuple[str, ...] = ('train', 'test')


@functools.cache
def _digits() -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
  """All images, their labels, and the numbers of those that each split has, read from a file of text in a second."""
  from sklearn import datasets, model_selection  # here: other sources do not need it

  images, labels = datasets.load_digits(return_X_y=True)
  images = np.rint(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
  train, test = model_selection.train_test_split(
    np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=_SPLIT_SEED
  )
  return images, labels, dict(zip(_SPLITS, (np.asarray(train), np.asarray(test)), strict=True))


class DigitsSource(NamedSource):
  """Splits 'train' (1,437) and 'test' (360), stratified; images uint8 (8, 8), 0 … 16 scaled to 0 … 255."""

  forms = ('digits',)
  has_place = False

  def __init__(self, split: str, class_names: Sequence[str] | None = None):
    """'train' or 'test', with slices and sums; UserError for no such split, or digits that `class_names` lacks."""
    images, labels, numbers = _digits()
    ranges = select(split, {name: len(part) for name, part in numbers.items()}, 'digits')
    chosen = np.concatenate([numbers[name][first:last] for name, first, last in ranges])
    self.class_names = tuple(class_names or _CLASSES)
    self._images = images[chosen]
    self._labels = label_map(_CLASSES, class_names, 'digits')[labels[chosen]].astype(np.int32)
    self._name = f'digits/{split} record'

  @classmethod
  def open(cls, place: str, split: str, *, data: DataConfig, class_names: Sequence[str] | None) -> Self:
    return cls(split, class_names)

  @classmethod
  def splits(cls, place: str) -> Collection[str]:
    return _SPLITS

  def __len__(self) -> int:
    return len(self._labels)

  def __getitem__(self, index: int) -> Record:
    return Record(self._images[index], int(self._labels[index]), f'{self._name} {index}')

  def labels(self) -> np.ndarray:
    return self._labels
