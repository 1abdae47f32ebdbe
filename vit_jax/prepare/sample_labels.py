"""The label of a sample of WebDataset or a row of parquet, checked: classes by number or name, and weights."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax.data.sources.folder_layout import class_name, split_named
from vit_jax.foundation.errors import UserError
from vit_jax.prepare.tables import Columns, column

LABELS = ('label', 'labels', 'cls')  # the first that is there
WEIGHTS = ('label_probs', 'weights')  # 'label_probs': COYO-Labeled-300M

_MOST_CLASSES = 1_000_000  # a larger number is an identifier and no class


def split_of(path: str) -> str:
  """The split that a word of a path names: 'data/imagenet12k-validation-0003.tar' -> 'val'; else 'train'.

  The file's own name says it before its folders do, and a folder before the one that it is in: 'train_full/test-0.tar'.
  """
  words = [word for part in reversed(path.split('/')) for word in re.split(r'[^A-Za-z]+', part)]
  return next(filter(None, map(split_named, words)), 'train')


def labels_and_weights(
  fields: Mapping[str, Any], columns: Columns, where: str
) -> tuple[tuple[str, ...], tuple[float, ...]]:
  """A sample's classes and their weights, or (); UserError where there is no label, or the weights do not fit."""
  if not columns.has_labels:
    return (), ()
  key = column(fields, columns.label, LABELS, 'label', where)
  labels = tuple(_class(value, where) for value in _as_list(fields[key]))
  weight_key = weight_column(fields, columns, where)
  if weight_key is None:
    return tuple(dict.fromkeys(labels)), ()
  weights = tuple(_as_list(fields[weight_key]))
  sound = all(type(weight) in (int, float) and 0 <= weight <= 1 for weight in weights)
  if not sound or not len(weights) == len(labels) == len(set(labels)):
    raise UserError(
      f'{where} has the labels {repr(labels)[:99]} and the weights {repr(weights)[:99]} ({weight_key}); give each '
      'label once, with a weight from 0 to 1, or correct --weight_column.'
    )
  return labels, tuple(map(float, weights))


def weight_column(there: Iterable[Any], columns: Columns, where: str) -> str | None:
  """The column of the weights; None: there is none, and none is asked for. Raises as `tables.column`."""
  names = list(there)
  if columns.weight is None and not set(WEIGHTS) & set(names):
    return None
  return column(names, columns.weight, WEIGHTS, 'weight', where)


def ordered_classes(names: Iterable[str], given: tuple[str, ...] | None) -> tuple[list[str], list[str]]:
  """What images call the classes, and what the data set calls them, in the order of their labels.

  Classes that are all numbers keep their numbers, also where some number has no image. `given` names each number;
  None: it is the name. UserError for a number without a name, or names for classes that are not numbers.
  """
  names = list(names)
  if not all(re.fullmatch('[0-9]+', name) for name in names):
    if given is not None:
      raise UserError(
        f'--class_names is for classes that are numbers, and one is {min(names)!r}; leave it out.'
      )
    return sorted(names), sorted(names)
  largest = max(map(int, names), default=-1)
  if largest >= _MOST_CLASSES:
    raise UserError(f'The label {largest} is too large for the number of a class; correct --label_column.')
  count = largest + 1 if given is None else len(given)
  if largest >= count:
    raise UserError(
      f'An image has the class number {largest}, and there are {count} class names; correct them.'
    )
  numbers = [str(number) for number in range(count)]
  return numbers, numbers if given is None else _unique(given)


def _as_list(value: Any) -> list[Any]:
  if value is None:
    return []
  return value if isinstance(value, list) else [value]


def _class(value: Any, where: str) -> str:
  """The class as text; a number without leading zeros."""
  if isinstance(value, float) and value.is_integer() and math.isfinite(value):
    value = int(value)
  text = (
    class_name(str(value).strip()) if isinstance(value, str | int) and not isinstance(value, bool) else ''
  )
  if not text or text.startswith('-'):
    raise UserError(f'{where} has the label {value!r}; a label is the number or the name of a class.')
  return str(int(text)) if re.fullmatch('[0-9]+', text) else text


def _unique(names: tuple[str, ...]) -> list[str]:
  """The names made different: of equal ones ('crane', bird and machine) all but the first get their numbers behind."""
  taken, seen, result = set(names), set[str](), []
  for number, name in enumerate(names):
    if name in seen:
      while name in taken:
        name = f'{name} ({number})'
      taken.add(name)
    seen.add(name)
    result.append(name)
  return result
