"""What is read, and checked, of a `config.json` of transformers."""

import pathlib
from typing import Any

from vit_jax.errors import UserError


def class_names(folder: pathlib.Path, values: dict[str, Any], num_classes: int) -> tuple[str, ...] | None:
  names = values.get('id2label')
  if not num_classes or names is None:
    return None
  if not isinstance(names, dict) or set(names) != {str(i) for i in range(num_classes)}:
    raise UserError(
      f'{folder} has a head of {num_classes} classes, and id2label in its config.json does not name 0 to '
      f'{num_classes - 1}; get the config that belongs to the tensors.'
    )
  ordered = tuple(str(names[str(i)]) for i in range(num_classes))
  # What transformers calls classes that nobody named.
  return None if ordered == tuple(f'LABEL_{i}' for i in range(num_classes)) else ordered


def integer(folder: pathlib.Path, values: dict[str, Any], name: str) -> int:
  value = values[name]
  if isinstance(value, bool) or not isinstance(value, int) or value < 1:
    raise UserError(f'{folder}/config.json has {name} {value!r}, which must be a positive integer.')
  return value


def number(folder: pathlib.Path, values: dict[str, Any], name: str) -> float:
  value = values[name]
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    raise UserError(f'{folder}/config.json has {name} {value!r}, which must be a number.')
  return float(value)


def sides(folder: pathlib.Path, values: dict[str, Any], name: str) -> tuple[int, int]:
  """Height and width, which are given as one number or two."""
  value = values[name]
  pair = value if isinstance(value, list) else [value, value]
  if len(pair) != 2 or not all(type(side) is int and side > 0 for side in pair):
    raise UserError(f'{folder}/config.json has {name} {value!r}, which must be one or two positive integers.')
  return pair[0], pair[1]
