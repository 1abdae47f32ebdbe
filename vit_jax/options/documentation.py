"""The documentation of a config's options, read from source by `ast`: `--help` needs no import of JAX.

An option's text is the comment above its field, or a string below it (an attribute docstring, as IDEs show).
"""

import ast
import contextlib
import dataclasses
import difflib
import functools
import importlib.util
import inspect
import itertools
import os
import pathlib
import sys
import textwrap
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, Self

from vit_jax import options
from vit_jax.foundation.registry import Registry

# A class of options: 'module:Class', as registries name it, or the class itself, which an outside module registered.
Place = str | type

CONFIG = 'vit_jax.config:Config'


@dataclasses.dataclass(frozen=True)
class OptionDoc:
  """One option."""

  name: str  # dotted, such as 'schedule.learning_rate'
  default: str  # as Python writes it
  text: str  # its comment, in one paragraph; may be ''


class _Field(NamedTuple):
  """A field of a class of options: its default as Python writes it, its section and, of a union, the registry."""

  default: str
  text: str
  section: Place | None = None
  registry: Registry | None = None
  names: str | None = None  # 'module:REGISTRY' of which its value names an entry

  def paragraph(self) -> str:
    """The text, behind it the names of the registry if it lacks some."""
    registry = _registry_at(self.names) if self.names else None
    if registry is None or all(name in self.text for name in registry.names()):
      return self.text
    return f'{self.text} Known: {", ".join(registry.names())}.'


def documented(place: Place = CONFIG, prefix: str = '') -> Iterator[OptionDoc]:
  """Every option of a class of options with its default, in the order of the fields; `prefix` goes before the names."""
  for name, field in _fields(place).items():
    if field.registry and field.section:
      kinds = f'One of {", ".join(field.registry.names())}.'
      yield OptionDoc(f'{prefix}{name}.{field.registry.tag}', repr(_kind(field)), kinds)
    if field.section:
      yield from documented(field.section, f'{prefix}{name}.')
    elif not field.registry:
      yield OptionDoc(f'{prefix}{name}', field.default, field.paragraph())


def _kind(field: _Field) -> str:
  """The name of the kind that a union has by default."""
  assert field.registry and field.section
  places = {_name(field.registry.place(kind)): kind for kind in field.registry.names()}
  return places[_name(field.section)]


def other_kinds() -> Iterator[tuple[str, list[OptionDoc]]]:
  """Of each union of a section of `Config`, such as `model`, the kinds that are not its default.

  Yields:
    The option that chooses a kind, such as "model.name='mixer'", and the options that only this kind has. Of
    a union with many members, `evaluators`, each kind with all options of a member, called NAME.
  """
  for name, field in _fields(CONFIG).items():
    if field.registry is None:
      continue
    prefix = f'{name}.' if field.section else f'{name}.NAME.'
    known = {doc.name for doc in documented(field.section, prefix)} if field.section else set()
    for kind in field.registry.names():
      own = [doc for doc in documented(field.registry.place(kind), prefix) if doc.name not in known]
      if own:
        yield f'{prefix}{field.registry.tag}={kind!r}', own


def help_text() -> str:
  """All options with their defaults and documentation, a paragraph each; behind them those of the other kinds."""
  paragraphs = [_paragraph(doc) for doc in documented()]
  for choice, own in other_kinds():
    paragraphs += [f'\nWith --config.{choice} there are:\n', *map(_paragraph, own)]
  return '\n'.join(paragraphs)


def _paragraph(doc: OptionDoc) -> str:
  head = f'  --config.{doc.name}={doc.default}'
  text = textwrap.fill(doc.text, 100, initial_indent='      ', subsequent_indent='      ')
  return f'{head}\n{text}' if doc.text else head


def _name(place: Place) -> str:
  return place if isinstance(place, str) else f'{place.__module__}:{place.__qualname__}'


def _fields(place: Place) -> dict[str, _Field]:
  """The fields of a class of options, those of the classes that it extends first."""
  module, _, name = _name(place).partition(':')
  try:
    return _Source.named(module).fields(name)
  except (LookupError, ImportError):
    if isinstance(place, str):
      raise
    return _fields_of_object(place)


def _fields_of_object(cls: type) -> dict[str, _Field]:
  """The fields of a class without a module to read, as a config's file, a function or `exec` makes them."""
  result: dict[str, _Field] = {}
  for base in cls.__mro__[:0:-1]:
    if dataclasses.is_dataclass(base):
      result |= _fields(base)
  texts = _Source.texts_of(cls)
  for field in dataclasses.fields(cls):
    if field.name in cls.__annotations__:
      default: Any = field.default
      if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
      section = type(default) if dataclasses.is_dataclass(default) else None
      registry = options.registry_of(cls, field.name)
      result[field.name] = _Field(repr(default), texts.get(field.name, ''), section, registry)
  return result


class _Source:
  """A module that is read and not imported: its classes, and where its names come from."""

  def __init__(self, file: str, module: str = ''):
    text = pathlib.Path(file).read_text(encoding='utf-8')
    self._lines, self._module = text.splitlines(), module
    self._classes: dict[str, ast.ClassDef] = {}
    self._values: dict[str, ast.expr | None] = {}
    self._imports: dict[str, str] = {}  # name -> 'module:name'
    for node in ast.parse(text).body:
      if isinstance(node, ast.ClassDef):
        self._classes[node.name] = node
      elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        self._values[node.target.id] = node.value
      elif isinstance(node, ast.ImportFrom):
        self._imports |= {alias.asname or alias.name: f'{node.module}:{alias.name}' for alias in node.names}

  @classmethod
  @functools.cache
  def named(cls, module: str) -> Self:
    """The source of a module; ImportError: there is none."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.has_location:
      raise ImportError(module)
    return cls(spec.origin, module)

  @classmethod
  def texts_of(cls, made: type) -> dict[str, str]:
    """The texts of a class's own fields, from the file of its methods; none where there is no such file."""
    files = {item.__code__.co_filename for item in vars(made).values() if inspect.isfunction(item)}
    for file in filter(os.path.isfile, files):
      source = cls(file)
      if made.__qualname__ in source._classes:
        return {name: text for name, _, text in source._own(made.__qualname__)}
    return {}

  @functools.cache  # noqa: B019 (of modules, which stay)
  def fields(self, name: str) -> dict[str, _Field]:
    """The fields of a class, those of the classes that it extends first; LookupError: the module has no such class."""
    result: dict[str, _Field] = {}
    for base in reversed(self._classes[name].bases):
      with contextlib.suppress(LookupError, ImportError):  # of a class that is none of options
        result |= _fields(self._place(ast.unparse(base)))
    for field, statement, text in self._own(name):
      default, section = _default(statement), None
      if isinstance(default, ast.Call):
        section = self._place(ast.unparse(default.func))
      registry, names = self._registry(statement.annotation), self._names(statement.annotation)
      result[field] = _Field(_as_written(default), text, section, registry, names)
    return result

  def _own(self, name: str) -> Iterator[tuple[str, ast.AnnAssign, str]]:
    """(field, its line, its text) of each field of a class's own."""
    body = self._classes[name].body
    for statement, following in zip(body, [*body[1:], None], strict=True):
      if not isinstance(statement, ast.AnnAssign) or 'ClassVar' in ast.unparse(statement.annotation):
        continue
      text = _string(following)
      if text is None:
        above = itertools.takewhile(
          lambda line: line.startswith('#'), map(str.strip, self._lines[statement.lineno - 2 :: -1])
        )
        text = ' '.join(line.lstrip('#: ') for line in [*above][::-1])
      yield ast.unparse(statement.target), statement, ' '.join(text.split())

  def _place(self, name: str) -> str:
    """'module:name' of a name of this module, or of one that it imports."""
    return self._imports.get(name, f'{self._module}:{name}')

  def _registry(self, annotation: ast.expr) -> Registry | None:
    """The registry of a union's annotation: `Annotated[Base, REGISTRY]`, not that of the names `OneOf(REGISTRY)`."""
    arguments = annotation.slice if isinstance(annotation, ast.Subscript) else annotation
    for node in arguments.elts if isinstance(arguments, ast.Tuple) else ():
      if isinstance(node, ast.Name) and node.id.isupper():
        return _registry_at(self._place(node.id))
    return None

  def _names(self, annotation: ast.expr) -> str | None:
    """'module:REGISTRY' of an option that names an entry: `OneOf(REGISTRY)` or `KindOf('module:REGISTRY')`."""
    for node in ast.walk(annotation):
      if isinstance(node, ast.Call) and ast.unparse(node.func) in ('OneOf', 'KindOf'):
        argument = ast.unparse(node.args[0])
        return self._place(argument) if argument.isidentifier() else ast.literal_eval(argument)
    return None


def _registry_at(place: str) -> Registry | None:
  """The registry at 'module:NAME', read if its module is not imported; None: there is something else."""
  module, _, name = place.partition(':')
  if module in sys.modules:  # with what other modules have registered
    found = getattr(sys.modules[module], name)
    return found if isinstance(found, Registry) else None
  value = _Source.named(module)._values.get(name)
  if isinstance(value, ast.Call) and ast.unparse(value.func) == 'Registry':
    named = {keyword.arg or '': ast.literal_eval(keyword.value) for keyword in value.keywords}
    return Registry(*map(ast.literal_eval, value.args), **named)
  return None


def _default(statement: ast.AnnAssign) -> ast.expr | None:
  """The default of a field; of `dataclasses.field(default=…)` the one that it names."""
  value = statement.value
  if isinstance(value, ast.Call) and ast.unparse(value.func) in ('dataclasses.field', 'field'):
    return next((keyword.value for keyword in value.keywords if keyword.arg == 'default'), None)
  return value


def _as_written(default: ast.expr | None) -> str:
  try:
    return repr(ast.literal_eval(default)) if default else ''
  except ValueError:
    return ast.unparse(default) if default else ''


def _string(statement: ast.stmt | None) -> str | None:
  """The text of an attribute docstring; None: the statement is none."""
  if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
    return str(statement.value.value)
  return None


def nearest(name: str, names: Collection[str]) -> str | None:
  """The dotted name of an option most like `name`: one with the same last part, or the most similar."""
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
