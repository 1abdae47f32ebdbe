"""Registries: short names → the classes behind a contract, imported when they are first asked for."""

import dataclasses
import difflib
import importlib
from typing import Generic, TypeVar

from vit_jax.foundation.errors import UserError

T = TypeVar('T')


class Registry(Generic[T]):
  """The implementations of one contract by name.

  An entry is one line, `'name': 'package.module:Class'`; its module is imported at first use, so that a
  contract's file imports none of its implementations. Code outside this package adds its own with `register`.
  """

  def __init__(self, what: str, entries: dict[str, str], *, tag: str = 'name'):
    """Entries are name -> 'module:Class'; errors call a thing `what`; `tag`: the option of a config with the name."""
    self.what = what
    self.tag = tag
    self._entries: dict[str, str | type[T]] = dict(entries)

  def register(self, name: str, cls: type[T]) -> None:
    """Adds a class from outside, also where its cell is executed again; ValueError where another one has the name."""
    taken = self[name] if name in self._entries else cls
    if (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
      raise ValueError(f'the {self.what} {name!r} is registered already')
    self._entries[name] = cls

  def names(self) -> tuple[str, ...]:
    """All names, in the order of registration."""
    return tuple(self._entries)

  def place(self, name: str) -> 'str | type[T]':
    """'module:Class' of a name, or the class itself once it is imported."""
    return self._entries[name]

  def __getitem__(self, name: str) -> type[T]:
    """The class of a name; a UserError that names the nearest where there is none."""
    if name not in self._entries:
      near = difflib.get_close_matches(str(name), self._entries, n=1)
      hint = f'did you mean {near[0]!r}?' if near else f'choose one of {", ".join(self._entries)}.'
      raise UserError(f'There is no {self.what} {name!r}; {hint}')
    entry = self._entries[name]
    if not isinstance(entry, str):
      return entry
    module, _, attribute = entry.partition(':')
    cls: type[T] = getattr(importlib.import_module(module), attribute)
    self._entries[name] = cls
    return cls

  def name_of(self, cls: type) -> str:
    """The name that a class is registered under; ValueError if it is not."""
    for name, entry in self._entries.items():
      if entry is cls or entry == f'{cls.__module__}:{cls.__qualname__}':
        return name
    raise ValueError(f'{cls.__qualname__} is not registered as a {self.what}')


@dataclasses.dataclass(frozen=True)
class KindOf:
  """Metadata of an option whose text begins with a name of a registry ('digits' in 'digits:test'), for its help.

  Attributes:
    registry: 'module:REGISTRY', of a module that imports the option's.
  """

  registry: str
