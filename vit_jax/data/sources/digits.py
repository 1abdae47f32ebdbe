"""The embedded data set: 1,797 real handwritten digits, 8 x 8 pixels, that come with scikit-learn."""

from collections.abc import Sequence

import numpy as np

from vit_jax.data.sources.base import Record, label_map, select

_SPLIT_SEED = 0  # of the division into train and test, which is part of the data set


class DigitsSource:
  """Splits 'train' (1,437) and 'test' (360), stratified; images uint8 (8, 8), 0..16 scaled to 0..255."""

  def __init__(self, split: str, class_names: Sequence[str] | None = None):
    """Raises UserError for a split that is not there."""
    from sklearn import datasets, model_selection  # here: it takes a second that other sources need not wait

    images, labels = datasets.load_digits(return_X_y=True)
    images = np.rint(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    numbers = model_selection.train_test_split(
      np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=_SPLIT_SEED
    )
    parts = dict(zip(('train', 'test'), numbers, strict=True))
    ranges = select(split, {name: len(part) for name, part in parts.items()}, 'digits')
    chosen = np.concatenate([parts[name][first:last] for name, first, last in ranges])
    names = [str(digit) for digit in range(10)]
    self.class_names = tuple(class_names or names)
    self._images = images[chosen]
    self._labels = label_map(names, class_names, 'digits')[labels[chosen]].astype(np.int32)
    self._name = f'digits/{split} record'

  def __len__(self) -> int:
    return len(self._labels)

  def __getitem__(self, index: int) -> Record:
    return Record(self._images[index], int(self._labels[index]), f'{self._name} {index}')

  def labels(self) -> np.ndarray:
    return self._labels
