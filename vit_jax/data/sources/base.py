"""What a source is: numbered records with a class or a list of classes each; and how splits are sliced."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow_datasets as tfds

from vit_jax.errors import UserError


class Record(NamedTuple):
  """One labelled image."""

  image: bytes | np.ndarray  # an encoded file, or uint8 pixels (H, W) or (H, W, C)
  label: int | np.ndarray  # its class, or int (classes,), possibly none, where images have lists of them
  name: str  # what an error calls it: a path, or 'cifar10/train record 17'


class Source(Protocol):
  """Labelled images with random access; `__getitem__` is called from several threads."""

  class_names: tuple[str, ...]

  def __len__(self) -> int: ...

  def __getitem__(self, index: int) -> Record: ...

  def labels(self) -> np.ndarray:
    """int32 (records,), or (records, longest list) padded with -1: the labels alone, to choose among them."""
    ...


# TFDS's grammar of splits: 'train', 'train[:90%]', 'train[100:]+test'.
SPLIT = r'[\w-]+(?:\[[\w%:.-]+\])?'
SPLITS = re.compile(rf'{SPLIT}(?:\s*\+\s*{SPLIT})*')


def select(split: str, sizes: Mapping[str, int], where: str) -> list[tuple[str, int, int]]:
  """The ranges of records that a split with slices and sums names, by TFDS's own rules.

  Args:
    split: such as 'train', 'train[:90%]', 'train[100:]' or 'train+test'.
    sizes: number of records of each split that there is.
    where: what an error calls the data.

  Returns:
    (split, first record, record after the last) for each summand.

  Raises:
    UserError: no such split, or a slice that cannot be.
  """
  infos = {n: tfds.core.SplitInfo(name=n, shard_lengths=[size], num_bytes=0) for n, size in sizes.items()}
  check_split(split, sizes, where)
  try:
    parts = tfds.core.ReadInstruction.from_spec(split).to_absolute(infos)
  except (ValueError, NotImplementedError) as error:
    raise bad_split(split, where, error) from None
  ranges = [(p.splitname, p.from_ or 0, sizes[p.splitname] if p.to is None else p.to) for p in parts]
  if not any(last > first for _, first, last in ranges):
    raise UserError(f'Split {split!r} of {where} has no records; choose another slice.')
  return ranges


def check_split(split: str, splits: Sequence[str] | Mapping[str, int], where: str) -> None:
  """Raises UserError, listing the splits there are, where `split` names one that is not there."""
  names = [re.split(r'\[', part)[0].strip() for part in split.split('+')]
  for name in names:
    if name not in splits and name != 'all':
      raise UserError(f'{where} has no split {name!r}; it has {", ".join(sorted(splits)) or "none"}.')


def bad_split(split: str, where: str, error: Exception) -> UserError:
  """The error for a split that TFDS cannot parse or that reaches beyond the records."""
  reason = str(error).strip().splitlines()[-1].rstrip('.')
  return UserError(f"Split {split!r} of {where} cannot be read: {reason}; write it like 'train[:90%]'.")


def label_map(names: Sequence[str], class_names: Sequence[str] | None, where: str) -> np.ndarray:
  """int64 (len(names),): the label, by name, that each class of a data set has in `class_names`.

  Raises:
    UserError: the data set has a class that `class_names` has not.
  """
  if class_names is None:
    return np.arange(len(names))
  numbers = {name: number for number, name in enumerate(class_names)}
  missing = [name for name in names if name not in numbers]
  if missing:
    raise UserError(
      f'{where} has {len(missing)} classes that the model does not know, such as {missing[0]!r}; '
      f'use the data set it was trained on, or one with the same class names.'
    )
  return np.array([numbers[name] for name in names])
