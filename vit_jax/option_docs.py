"""The documentation of a config's options, read from the comments above their fields."""

import dataclasses
import difflib
import inspect
import re
import textwrap
from collections.abc import Collection, Iterator
from typing import Any

from vit_jax import options

_FIELD = re.compile(r'  (\w+): ')


@dataclasses.dataclass(frozen=True)
class OptionDoc:
  """One option.

  Attributes:
    name: dotted, such as 'schedule.learning_rate'.
    default: as Python writes it.
    text: its comment, in one paragraph; may be ''.
  """

  name: str
  default: str
  text: str


def documented(section: Any, prefix: str = '') -> Iterator[OptionDoc]:
  """Every option of a config or of a section of it, in the order of the fields.

  Args:
    section: an instance of a dataclass of options; its values are shown as the defaults.
    prefix: of the names, with a '.' at its end.
  """
  comments = _comments(type(section))
  for field in dataclasses.fields(section):
    value, name = getattr(section, field.name), f'{prefix}{field.name}'
    registry = options.registry_of(type(section), field.name)
    if registry is not None:
      parts = (
        {f'{name}.{key}': item for key, item in value.items()} if isinstance(value, dict) else {name: value}
      )
      for part, item in parts.items():
        kinds = f'One of {", ".join(registry.names())}.'
        yield OptionDoc(f'{part}.{registry.tag}', repr(registry.name_of(type(item))), kinds)
        yield from documented(item, f'{part}.')
    elif dataclasses.is_dataclass(value):
      yield from documented(value, f'{name}.')
    else:
      yield OptionDoc(name, repr(value), comments.get(field.name, ''))


def _comments(cls: type) -> dict[str, str]:
  """Field -> the comment above it, in the class or in those that it extends."""
  result: dict[str, str] = {}
  for base in reversed(cls.__mro__):
    if not dataclasses.is_dataclass(base):
      continue
    lines: list[str] = []
    for line in inspect.getsource(base).splitlines():
      field = _FIELD.match(line)
      if line.startswith('  # '):
        lines.append(line[4:])
      elif field:
        result[field[1]] = ' '.join(lines)
        lines = []
      else:
        lines = []
  return result


def other_kinds(section: Any) -> Iterator[tuple[str, list[OptionDoc]]]:
  """Of each union of a section, such as `model`, the kinds that the section has not chosen.

  Yields:
    The option that chooses a kind, such as "model.name='mixer'", and the options that only this kind has. Of
    a union with many members, `evaluators`, each kind with all options of a member, called NAME.
  """
  for field in dataclasses.fields(section):
    registry = options.registry_of(type(section), field.name)
    if registry is None:
      continue
    value = getattr(section, field.name)
    of_many = isinstance(value, dict)
    prefix = f'{field.name}.NAME.' if of_many else f'{field.name}.'
    known = set() if of_many else {doc.name for doc in documented(value, prefix)}
    for kind in registry.names():
      own = [doc for doc in documented(registry[kind](), prefix) if doc.name not in known]
      if own:
        yield f'{prefix}{registry.tag}={kind!r}', own


def help_text(section: Any) -> str:
  """All options with their defaults and documentation, a paragraph each; behind them those of the other kinds."""
  paragraphs = [_paragraph(doc) for doc in documented(section)]
  for choice, own in other_kinds(section):
    paragraphs += [f'\nWith --config.{choice} there are:\n', *map(_paragraph, own)]
  return '\n'.join(paragraphs)


def _paragraph(doc: OptionDoc) -> str:
  head = f'  --config.{doc.name}={doc.default}'
  text = textwrap.fill(doc.text, 100, initial_indent='      ', subsequent_indent='      ')
  return f'{head}\n{text}' if doc.text else head


def nearest(name: str, names: Collection[str]) -> str | None:
  """The dotted name of an option most like `name`: one with the same last part, else the most similar."""
  last = name.rpartition('.')[2]
  same = [other for other in names if other.rpartition('.')[2] == last]
  if same:
    return difflib.get_close_matches(name, same, n=1, cutoff=0.0)[0]
  section = name.rpartition('.')[0]
  by_last = {other.rpartition('.')[2]: other for other in sorted(names)}
  # Of options with the same last part, that of the same section.
  by_last |= {other.rpartition('.')[2]: other for other in names if other.rpartition('.')[0] == section}
  close = difflib.get_close_matches(last, by_last, n=1, cutoff=0.65)
  return by_last[close[0]] if close else None
