"""The values of a JSON file from elsewhere, each of them checked where it is read."""

import json
import pathlib
import reprlib
from collections.abc import Mapping
from typing import Any, TypeGuard, TypeVar

from vit_jax.foundation import foreign_files
from vit_jax.foundation.errors import UserError

T = TypeVar('T')

_LARGEST_SIZE = 10**6
_LONGEST_TEXT = 200


def is_text(value: Any) -> TypeGuard[str]:
  """Whether a value of JSON is a string that can be written: JSON may escape half of a character."""
  if not isinstance(value, str):
    return False
  try:
    value.encode()
  except UnicodeEncodeError:
    return False
  return True


def given(names: tuple[str, ...]) -> tuple[str, ...] | None:
  """The names of classes; None: they are what transformers calls classes that nobody named."""
  return None if names == tuple(f'LABEL_{i}' for i in range(len(names))) else names


class JsonObject:
  """An object of a JSON file. A value that is null counts as one that is not there."""

  def __init__(self, path: pathlib.Path, values: Mapping[str, Any]):
    self.path = path  # of the file, for errors
    self._values = values

  @classmethod
  def read(cls, path: pathlib.Path) -> 'JsonObject':
    """The object that a file holds; UserError where it holds none, or is no regular file."""
    try:
      values = json.loads(foreign_files.read_text(path))
    except RecursionError as error:
      raise UserError(f'{path} cannot be read as JSON (too deeply nested); get the file again.') from error
    except (ValueError, OSError) as error:
      reason = getattr(error, 'strerror', None) or error
      raise UserError(f'{path} cannot be read as JSON ({reason}); get the file again.') from error
    if not isinstance(values, dict):
      raise UserError(f'{path} holds a {type(values).__name__} and not a JSON object; check the file.')
    return cls(path, values)

  def __contains__(self, name: str) -> bool:
    return self._values.get(name) is not None

  def with_defaults(self, defaults: Mapping[str, Any]) -> 'JsonObject':
    """The same, with values for names that are not there."""
    return JsonObject(
      self.path, {**self._values, **{name: defaults[name] for name in defaults if name not in self}}
    )

  def says_null(self, name: str) -> bool:
    """Whether a value is there, and null."""
    return name in self._values and self._values[name] is None

  def names(self) -> list[str]:
    """The names of its values."""
    return list(self._values)

  def without(self, name: str) -> 'JsonObject':
    """The same without a value."""
    return JsonObject(self.path, {key: value for key, value in self._values.items() if key != name})

  def raw(self, name: str, default: Any = None) -> Any:
    """A value as it is in the file, not checked."""
    value = self._values.get(name)
    return default if value is None else value

  def integer(self, name: str, default: int) -> int:
    """A positive integer of at most a million."""
    value = self.raw(name, default)
    if type(value) is not int or not 1 <= value <= _LARGEST_SIZE:
      raise self.error(name, value, f'a positive integer of at most {_LARGEST_SIZE:,}')
    return value

  def count(self, name: str, default: int) -> int:
    """Zero or a positive integer of at most a million."""
    return 0 if self.raw(name, default) == 0 else self.integer(name, default)

  def number(
    self, name: str, default: float | None = None, *, low: float = 1e-30, high: float = 1e30
  ) -> float:
    """A finite number from `low` to `high`."""
    value = self.raw(name, default)
    if type(value) not in (int, float) or not low <= value <= high:
      raise self.error(name, value, f'a number from {low:g} to {high:g}')
    return float(value)

  def flag(self, name: str, default: bool) -> bool:
    """True or false."""
    value = self.raw(name, default)
    if not isinstance(value, bool):
      raise self.error(name, value, 'true or false')
    return value

  def text(self, name: str, default: str = '') -> str:
    """A string."""
    value = self.raw(name, default)
    if not is_text(value) or len(value) > _LONGEST_TEXT:
      raise self.error(name, value, 'a short text')
    return value

  def choice(self, name: str, choices: Mapping[str, T], default: str) -> T:
    """What a string stands for among `choices`."""
    value = self.text(name, default)
    if value not in choices:
      raise UserError(
        f'{self.path} has {name} {value!r}, and vit_jax has {", ".join(choices)}; choose another checkpoint.'
      )
    return choices[value]

  def sides(self, name: str, default: int | tuple[int, int] | None = None) -> tuple[int, int]:
    """Height and width, which are given as one number or two."""
    value = self.raw(name, default)
    pair = value if isinstance(value, list | tuple) else [value, value]
    if len(pair) != 2 or not all(type(side) is int and 0 < side <= _LARGEST_SIZE for side in pair):
      raise self.error(name, value, f'one or two positive integers of at most {_LARGEST_SIZE:,}')
    return pair[0], pair[1]

  def numbers(self, name: str, default: tuple[float, ...], count: int, *, low: float) -> tuple[float, ...]:
    """`count` finite numbers from `low` on, or one that stands for all of them."""
    value = self.raw(name, default)
    values = value if isinstance(value, list | tuple) else [value]
    if len(values) not in (1, count) or not all(type(v) in (int, float) and low <= v <= 1e6 for v in values):
      raise self.error(name, value, f'{count} numbers from {low:g} to 1e+06')
    return tuple(float(number) for number in values)

  def section(self, name: str) -> 'JsonObject':
    """An object within this one; an empty one where there is none."""
    value = self.raw(name, {})
    if not isinstance(value, dict):
      raise self.error(name, value, 'an object')
    return JsonObject(self.path, value)

  def error(self, name: str, value: Any, must_be: str) -> UserError:
    """That a value is not what it must be; what is long or deep is shortened."""
    found = 'nothing' if value is None else reprlib.repr(value)
    return UserError(f'{self.path} has {name} {found}, which must be {must_be}; check the file.')

  def check_only(self, only: Mapping[str, Any], models: str) -> None:
    """Raises UserError for another value than `only` has, the ones of our `models`; what is not there passes."""
    for name, wanted in only.items():
      value = self.raw(name, wanted)
      if value != wanted or isinstance(value, bool) != isinstance(wanted, bool):
        raise UserError(
          f'{self.path} has {name} {reprlib.repr(value)}, and vit_jax has {models} with {wanted!r} only; '
          'choose another checkpoint.'
        )

  def class_names(self, num_classes: int) -> tuple[str, ...] | None:
    """The names in transformers' `id2label`, one for each class (otherwise UserError); None: nobody named them."""
    names = self.raw('id2label')
    if not num_classes or names is None:
      return None
    if not isinstance(names, dict) or set(names) != {str(i) for i in range(num_classes)}:
      raise UserError(
        f'{self.path.parent} has a head of {num_classes} classes, and id2label in its {self.path.name} does not '
        f'name 0 to {num_classes - 1}; get the config that belongs to the tensors.'
      )
    ordered = [names[str(i)] for i in range(num_classes)]
    if not all(is_text(name) or isinstance(name, int | float) for name in ordered):
      raise self.error('id2label', names, 'an object of texts')
    return given(tuple(str(name) for name in ordered))
