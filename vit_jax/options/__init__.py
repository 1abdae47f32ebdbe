"""Options as frozen dataclasses: from dicts, to dicts, to ml_collections, checked where they are read.

A field's type says all that is checked of it alone: its type, its choices (`Literal`), and rules in
`Annotated` (`AtLeast(1)`, `Between(0, 1)`, `regex`, `Duration`). What concerns several fields of a section is
in its method `check`. A section that is one of several kinds is `Annotated[Base, REGISTRY]`: a tagged union,
whose option `REGISTRY.tag` names the kind, and which has the options of that kind only.
"""

import ast
import contextlib
import dataclasses
import difflib
import functools
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

import ml_collections
from ml_collections import config_dict

from vit_jax.foundation.errors import UserError
from vit_jax.foundation.registry import Registry

T = TypeVar('T')

_LONGEST_QUOTE = 200  # characters of a value in an error


class UnknownKind(UserError):
  """A section of a kind that no registry has."""


@dataclasses.dataclass(frozen=True)
class Between:
  """A rule: a number from `low` up to `high`, both included."""

  low: float
  high: float

  def __call__(self, value: float) -> None:
    if not self.low <= value <= self.high:
      raise ValueError(f'it must be between {self.low} and {self.high}')


class AtLeast(Between):
  """A rule: a number from `low` on, below a limit that only a slip exceeds."""

  def __init__(self, low: float, at_most: float = math.inf):
    super().__init__(low, at_most)

  def __call__(self, value: float) -> None:
    if value > self.high:
      raise ValueError(f'it must be at most {self.high:,}')
    if not value >= self.low:
      raise ValueError(f'it must be at least {self.low}')


def regex(pattern: str) -> None:
  """A rule: a regular expression."""
  try:
    re.compile(pattern)
  except re.error as error:
    raise ValueError(f'it must be a regular expression ({error})') from None


class _Square:
  """Metadata of a pair (height, width): one number stands for both sides."""


class _Resumable:
  """Metadata of an option or a section that may differ when a run is resumed."""


RESUMABLE = _Resumable()
TINY = 1e-12

# Types of options.
Count = Annotated[int, AtLeast(1, at_most=2**31 - 1)]
Amount = Annotated[int, AtLeast(0, at_most=2**31 - 1)]
BatchSize = Annotated[int, AtLeast(1, at_most=2**20)]  # SigLIP (arXiv 2303.15343) tried a million
Size = Annotated[int, AtLeast(1, at_most=1_000_000)]  # of an axis of a network's arrays
Pixels = Annotated[int, AtLeast(1, at_most=16_384)]  # along a side of an image
Positive = Annotated[float, AtLeast(TINY)]
NotNegative = Annotated[float, AtLeast(0)]
Factor = Annotated[float, AtLeast(1)]  # and its inverse
Rate = Annotated[float, Between(0, 0.999)]  # of dropout and its kin
Regex = Annotated[str, regex]
ImageSize = Annotated[tuple[Pixels, Pixels], _Square()]  # height, width in pixels


def from_dict(cls: type[T], values: Mapping[str, Any], path: str = 'config') -> T:
  """An instance of dataclass `cls`, every name, type and value checked.

  `values`: option -> value, sections being dicts, as `as_dict` makes them, or a ConfigDict's; errors call the section
  `path`. Raises UserError for an unknown option, a wrong value, or values that contradict each other.
  """
  hints = _hints(cls)
  for name in values:
    if name not in hints:
      raise _unknown(name, hints, path)
  section = cls(**{name: _read(hints[name], value, f'{path}.{name}') for name, value in values.items()})
  check = getattr(section, 'check', None)  # of what several of its options say together
  if callable(check):
    check(path)
  return section


def as_dict(section: Any) -> dict[str, Any]:
  """Nested dicts of JSON's types and tuples; a section of a union has its tag first."""
  result = {}
  for name, hint in _hints(type(section)).items():
    result[name] = _written(hint, getattr(section, name))
  return result


def flatten(section: Any) -> dict[str, Any]:
  """{'model.patch': 16, ...}: every option by its dotted name."""

  def walk(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
      if isinstance(value, dict):
        yield from walk(value, f'{prefix}{name}.')
      else:
        yield f'{prefix}{name}', value

  return dict(walk(as_dict(section), ''))


def resumable(cls: type, prefix: str = '') -> Iterator[str]:
  """The dotted names of the options that may differ when a run is resumed; of a whole section 'mesh.'."""
  for name, hint in _hints(cls).items():
    inner, metadata = _unpacked(hint)
    if RESUMABLE in metadata:
      yield f'{prefix}{name}.' if dataclasses.is_dataclass(inner) else f'{prefix}{name}'
    elif registry := _registry(metadata):
      for kind in registry.names():
        yield from resumable(registry[kind], f'{prefix}{name}.')
    elif isinstance(inner, type) and dataclasses.is_dataclass(inner):
      yield from resumable(inner, f'{prefix}{name}.')


def registry_of(cls: type, name: str) -> Registry | None:
  """The registry of an option that is a tagged union, or a dict of them; None: it is another one."""
  return _registry(_unpacked(_hints(cls)[name])[1])


def to_config_dict(section: Any) -> ml_collections.ConfigDict:
  """A locked ConfigDict, in which each option keeps its type, also where it is None.

  A union has its tag, its own options, and placeholders for those of the other kinds, so that a command line
  may choose another kind and set its options. So is an option at its default that another kind has with
  another default: the kind chosen in the end decides.
  """
  result = ml_collections.ConfigDict(_with_placeholders(section))
  result.lock()
  return result


def _with_placeholders(section: Any) -> dict[str, Any]:
  result = {}
  for name, hint in _hints(type(section)).items():
    value = getattr(section, name)
    inner, metadata = _unpacked(hint)
    registry = _registry(metadata)
    if registry and isinstance(value, dict):
      result[name] = {key: _union_with_placeholders(item, registry) for key, item in value.items()}
    elif registry:
      result[name] = _union_with_placeholders(value, registry)
    elif dataclasses.is_dataclass(value):
      result[name] = _with_placeholders(value)
    else:
      result[name] = _placeholder(inner) if value is None else value
  return result


def _union_with_placeholders(section: Any, registry: Registry) -> dict[str, Any]:
  result = {registry.tag: registry.name_of(type(section))} | _with_placeholders(section)
  for kind in registry.names():
    for name, hint in _hints(registry[kind]).items():
      if name not in _hints(type(section)) or _depends_on_the_kind(section, name, registry[kind]):
        result[name] = _placeholder(_unpacked(hint)[0])
  return result


def _depends_on_the_kind(section: Any, name: str, other: type) -> bool:
  """Whether an option that two kinds have is at its default, and the other kind has another default."""
  default = _default(type(section), name)
  optional = _optional(_hints(type(section))[name])  # None is a value of those, and no placeholder
  return not optional and getattr(section, name) == default != _default(other, name)


def _placeholder(hint: Any) -> Any:
  """An option without a value, of the type that a value will have."""
  hint = _without_none(hint)
  hint = _unpacked(hint)[0]
  if typing.get_origin(hint) is Literal:
    return config_dict.placeholder(type(typing.get_args(hint)[0]))
  return config_dict.placeholder(typing.get_origin(hint) or hint)


def _written(hint: Any, value: Any) -> Any:
  registry = _registry(_unpacked(hint)[1])
  if isinstance(value, dict):
    return {name: _written(hint if registry else None, item) for name, item in value.items()}
  if registry:
    return {registry.tag: registry.name_of(type(value))} | as_dict(value)
  return as_dict(value) if dataclasses.is_dataclass(value) else value


def _read(hint: Any, value: Any, path: str) -> Any:
  """`value` checked against a type hint; lists become tuples, ints floats, dicts sections."""
  inner, metadata = _unpacked(hint)
  origin, args = typing.get_origin(inner), typing.get_args(inner)
  if registry := _registry(metadata):
    if origin is dict and isinstance(value, Mapping):
      return {name: _read_union(registry, item, f'{path}.{name}') for name, item in value.items()}
    return _read_union(registry, value, path)
  if origin in (types.UnionType, typing.Union):
    # What a flag makes of a tuple where a word may stand.
    if isinstance(value, str) and value.startswith('('):
      with contextlib.suppress(ValueError, SyntaxError):
        value = ast.literal_eval(value)
    return None if value is None else _read(_without_none(inner, value), value, path)
  if dataclasses.is_dataclass(inner) and isinstance(value, Mapping):
    return from_dict(typing.cast(type, inner), value, path)
  if any(isinstance(item, _Square) for item in metadata):
    if isinstance(value, int):
      value = (value, value)
    elif isinstance(value, (tuple, list)) and len(value) == 1:  # what a flag makes of one number
      value = (value[0], value[0])
  value = _typed(inner, origin, args, value, path)
  for rule in metadata:
    if callable(rule):
      try:
        rule(value)
      except ValueError as error:
        raise UserError(f'{path} is {_shown(value)}; {error}.') from None
  return value


def _typed(hint: Any, origin: Any, args: tuple[Any, ...], value: Any, path: str) -> Any:
  """`value` if it is of the type, converted where nothing is lost."""
  if origin is Literal:
    if value in args and type(value) in {type(arg) for arg in args}:
      return value
    raise UserError(f'{path} is {_shown(value)}; choose one of {list(args)}.')
  if origin is tuple and isinstance(value, (tuple, list)):
    kinds = args[:1] * len(value) if args[-1] is Ellipsis else args
    if len(kinds) == len(value):
      return tuple(_read(kind, item, path) for kind, item in zip(kinds, value, strict=True))
  if hint is float and isinstance(value, int) and not isinstance(value, bool):
    with contextlib.suppress(OverflowError):
      return float(value)
  boolean_as_int = hint is int and isinstance(value, bool)
  if isinstance(hint, type) and origin is None and isinstance(value, hint) and not boolean_as_int:
    return value
  raise UserError(f'{path} is {_shown(value)}, which is not of type {_type_text(hint)}.')


def _shown(value: Any) -> str:
  """A value as errors quote it: a file may hold one of any length."""
  text = repr(value)
  return text if len(text) <= _LONGEST_QUOTE else f'{text[:_LONGEST_QUOTE]}…'


def _read_union(registry: Registry, values: Any, path: str) -> Any:
  """The section of the kind that its tag names.

  A ConfigDict holds the options of the other kinds too. They are skipped where they are None, as placeholders
  are, and where they have the default of the kind that the config's file had chosen, in case the command line
  has chosen another.
  """
  if dataclasses.is_dataclass(values):  # as it is in Python already
    values = {registry.tag: registry.name_of(type(values))} | as_dict(values)
  if not isinstance(values, Mapping) or registry.tag not in values:
    raise UserError(f'{path} is {_shown(values)}; it must be a section with the option {registry.tag!r}.')
  name = values[registry.tag]
  if name not in registry.names():
    near = difflib.get_close_matches(str(name), registry.names(), n=1)
    hint = f'did you mean {near[0]!r}?' if near else f'choose one of {list(registry.names())}.'
    raise UnknownKind(f'{path}.{registry.tag} is {_shown(name)}; {hint}')
  cls = registry[name]
  hints, own = _hints(cls), {}
  for option, value in values.items():
    if option == registry.tag:
      continue
    if option in hints:
      if value is not None or _optional(hints[option]):
        own[option] = value
      continue
    others = [kind for kind in registry.names() if option in _hints(registry[kind])]
    if not others:
      raise _unknown(option, hints, path)
    if value is not None and all(value != _default(registry[kind], option) for kind in others):
      raise UserError(
        f'{path}.{option} is an option of the {registry.what} {others[0]!r}, and {path}.{registry.tag} is '
        f'{name!r}; leave it out, or choose {others[0]!r}.'
      )
  return from_dict(cls, own, path)


def _unknown(name: str, hints: Mapping[str, Any], path: str) -> UserError:
  near = difflib.get_close_matches(name, hints, n=1)
  hint = f'did you mean {path}.{near[0]}?' if near else f'it has {", ".join(hints)}.'
  return UserError(f'{path}.{name} is not an option; {hint}')


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
  """Field -> type, with what is annotated to it."""
  hints = typing.get_type_hints(cls, include_extras=True)
  return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _default(cls: type, name: str) -> Any:
  (field,) = (field for field in dataclasses.fields(cls) if field.name == name)
  return field.default


def _unpacked(hint: Any) -> tuple[Any, tuple[Any, ...]]:
  """(type, what is annotated to it)."""
  if typing.get_origin(hint) is Annotated:
    inner, *metadata = typing.get_args(hint)
    return inner, tuple(metadata)
  return hint, ()


def _registry(metadata: tuple[Any, ...]) -> Registry | None:
  return next((item for item in metadata if isinstance(item, Registry)), None)


def _optional(hint: Any) -> bool:
  inner, _ = _unpacked(hint)
  return typing.get_origin(inner) in (types.UnionType, typing.Union)


def _without_none(hint: Any, value: Any = None) -> Any:
  """The type of an option that may also be None; of two, the tuple for a list. Others as they are."""
  if not _optional(hint):
    return hint
  kinds = [arg for arg in typing.get_args(_unpacked(hint)[0]) if arg is not type(None)]
  several = isinstance(value, (tuple, list))
  return next((kind for kind in kinds if (typing.get_origin(kind) is tuple) == several), kinds[0])


def _type_text(hint: Any) -> str:
  """'int', 'tuple[int, int]': a type as errors name it, without what is annotated to it."""
  inner = _unpacked(hint)[0]
  args = typing.get_args(inner)
  if typing.get_origin(inner) is tuple:
    return f'tuple[{", ".join("..." if arg is Ellipsis else _type_text(arg) for arg in args)}]'
  return inner.__name__ if isinstance(inner, type) else str(inner)
