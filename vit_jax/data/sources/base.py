"""The contract of a source of images, the registry of sources, and the grammar of splits.

A new kind of source is one file with a subclass of `NamedSource`, and one line in `SOURCES`.
"""

import abc
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, NamedTuple, Self

import numpy as np

from vit_jax.data.config import DataConfig
from vit_jax.foundation import class_matching
from vit_jax.foundation.errors import UserError
from vit_jax.foundation.registry import Registry


class ListsOfClassesError(UserError):
  """A source whose images have lists of classes is opened as one of a class each."""


class Record(NamedTuple):
  """One labelled image."""

  image: bytes | np.ndarray  # an encoded file, or uint8 pixels (H, W) or (H, W, C)
  # Its class, -1 where the data has none; or its list of classes, int (classes,), which may be empty.
  label: int | np.ndarray
  name: str  # what errors call it: a path, or 'cifar10/train record 17'
  weights: np.ndarray | None = None  # of its list of classes, float32 (classes,); None: each is 1
  # Reads its captions, at least one; UserError: they cannot be read. None: it has none.
  captions: Callable[[], Sequence[str]] | None = None


class Part(NamedTuple):
  """Consecutive records of a source that are shuffled and passed through on their own."""

  size: int  # number of records
  weight: float  # share of the training images drawn from this part, up to a common factor


class Source(abc.ABC):
  """Labelled images with random access.

  Several threads call `__getitem__` at the same time.

  Attributes:
    class_names: label -> name; (): the images have no classes.
  """

  class_names: tuple[str, ...]

  @abc.abstractmethod
  def __len__(self) -> int:
    """The number of records."""

  @abc.abstractmethod
  def __getitem__(self, index: int) -> Record:
    """The record of an index from 0 to len - 1, always the same one; UserError names one that cannot be read."""

  @abc.abstractmethod
  def labels(self) -> np.ndarray:
    """The labels of all records, int32 (records,); of lists of classes (records, longest list), padded with -1.

    Those of images without classes are -1.
    """

  @property
  def parts(self) -> tuple[Part, ...]:
    """The parts that are shuffled on their own, in the order of the records; usually all is one part."""
    return (Part(len(self), 1),)

  @property
  def is_remote(self) -> bool:
    """Whether records are requests over a network, for which the threads that read them mostly wait."""
    return False

  def version(self) -> str:
    """A text that differs once other images are at the same place, and is the same on every machine.

    For what is computed of the images and kept, and for a run that goes on. '' where they never change, or nothing
    tells whether they have.

    Raises:
      UserError: a file of the data cannot be read.
    """
    return ''

  def sums(self) -> str:
    """What changes with the list of checksums that was made beside the data, for a run that goes on; '' without one.

    It does not read the images, nor say that they are as the list has them.
    """
    return ''


class NamedSource(Source):
  """A source that `config.data.source` can name: 'KIND:PLACE:SPLIT', or 'KIND:SPLIT' without a place.

  Attributes:
    forms: how specs are written, for the error about one that names no source; (): 'KIND:PLACE'.
    has_place: whether a place follows the kind.
  """

  forms: ClassVar[tuple[str, ...]] = ()
  has_place: ClassVar[bool] = True

  @classmethod
  @abc.abstractmethod
  def open(cls, place: str, split: str, *, data: DataConfig, class_names: Sequence[str] | None) -> Self:
    """Opens one split.

    Args:
      place: where the data is: what the spec has after its kind; '' if `has_place` is False.
      split: the split, with slices and sums if the source knows them (`select` evaluates them).
      data: the options of the run's data; most sources ignore them.
      class_names: label -> name, from a checkpoint, whose numbering the labels must follow (`label_map` does
        that); None: the data's own.

    Raises:
      UserError: no such place or split, or data in a form that cannot be read.
    """

  @classmethod
  @abc.abstractmethod
  def splits(cls, place: str) -> Collection[str]:
    """The names of a place's splits, without opening any; UserError for no such place."""

  @classmethod
  def holds_out(cls, place: str) -> bool:
    """Whether a place has no split to evaluate, so that 'val' is a part of what there is to train on; 'all' is both."""
    return False

  @classmethod
  def same_place(cls, one: str, other: str) -> bool:
    """Whether two places, names or paths, are the same data."""
    return os.path.realpath(os.path.expanduser(one)) == os.path.realpath(os.path.expanduser(other))

  @classmethod
  def split_of(cls, place: str, whole: str) -> str | None:
    """The split of a whole place that another place is; None: it is none of its."""
    return None

  @classmethod
  def usual(cls, split: str) -> str:
    """A split with the names that `splits` has, where a source knows other words for them."""
    return split


SOURCES: Registry[NamedSource] = Registry(
  'source',
  {
    'digits': 'vit_jax.data.sources.digits:DigitsSource',
    'tfds': 'vit_jax.data.sources.tfds:TfdsSource',
    'folder': 'vit_jax.data.sources.folder:FolderSource',
    'vtab': 'vit_jax.data.sources.vtab_source:VtabSource',
  },
)

# The grammar of splits is that of TFDS: 'train', 'train[:90%]', 'train[100:]+test'.
_SPLIT = r'[\w-]+(?:\[[\w%:.-]+\])?'
SPLITS = re.compile(rf'{_SPLIT}(?:\s*\+\s*{_SPLIT})*')


def select(split: str, sizes: Mapping[str, int], where: str) -> list[tuple[str, int, int]]:
  """Evaluates a split with slices and sums by TFDS's own rules.

  Args:
    split: such as 'train', 'train[:90%]', 'train[100:]' or 'train+test'.
    sizes: split -> number of its records.
    where: what errors call the data.

  Returns:
    (split, first record, record after the last) for each summand.

  Raises:
    UserError: no such split, or a slice that cannot be taken.
  """
  check_split(split, sizes, where)
  ranges = [(split, 0, sizes[split])] if split in sizes else _evaluate(split, sizes, where)
  if not any(last > first for _, first, last in ranges):
    raise UserError(f'Split {split!r} of {where} has no records; choose another slice.')
  return ranges


def _evaluate(split: str, sizes: Mapping[str, int], where: str) -> list[tuple[str, int, int]]:
  import tensorflow_datasets as tfds  # here: it takes two seconds, and plain splits do not need it

  infos = {n: tfds.core.SplitInfo(name=n, shard_lengths=[size], num_bytes=0) for n, size in sizes.items()}
  try:
    parts = tfds.core.ReadInstruction.from_spec(split).to_absolute(infos)
  except (ValueError, NotImplementedError) as error:
    raise bad_split(split, where, error) from None
  return [(p.splitname, p.from_ or 0, sizes[p.splitname] if p.to is None else p.to) for p in parts]


def split_names(split: str) -> set[str]:
  """The splits of which 'train[:90%]+test' takes parts."""
  return {re.split(r'\[', part)[0].strip() for part in split.split('+')}


def check_split(split: str, splits: Collection[str], where: str) -> None:
  """Raises UserError, listing the splits that there are, if `split` names another one."""
  for name in sorted(split_names(split)):
    if name not in splits and name != 'all':
      part = f", of which a part is written as '{next(iter(sorted(splits)))}[90%:]'" if splits else ''
      raise UserError(f'{where} has no split {name!r}; it has {", ".join(sorted(splits)) or "none"}{part}.')


def bad_split(split: str, where: str, error: Exception) -> UserError:
  """The error for a split that TFDS cannot parse, or that reaches beyond the records."""
  reason = str(error).strip().splitlines()[-1].rstrip('.')
  return UserError(f"Split {split!r} of {where} cannot be read: {reason}; write it like 'train[:90%]'.")


def label_map(names: Sequence[str], class_names: Sequence[str] | None, where: str) -> np.ndarray:
  """Maps the labels of a data set to those of a model (None: the same), by the names of the classes.

  Returns:
    int64 (len(names) + 1,): for each of the data set's labels, the model's; of none, -1, it is -1.

  Raises:
    UserError: the data set has a class that the model does not know.
  """
  if class_names is None:
    return np.append(np.arange(len(names)), -1)
  found = class_matching.by_name(class_names, names)
  missing = [name for name, number in zip(names, found, strict=True) if number == class_matching.NEW]
  if missing:
    raise UserError(
      f'{where} has {len(missing)} classes that the model does not know, such as {missing[0]!r}; '
      f'use the data set it was trained on, or one with the same class names.'
    )
  return np.append(found, -1)
