"""The parts that a transformer is composed of, each kind with a registry of names that are options of a config.

Code outside this package adds a part by the registry's `register`, and its name is a value of the option then.
"""

import dataclasses
from typing import Any

from vit_jax.foundation.registry import Registry


@dataclasses.dataclass(frozen=True)
class OneOf:
  """A rule of an option: a name in a registry."""

  registry: Registry[Any]

  def __call__(self, name: str) -> None:
    if name not in self.registry.names():
      raise ValueError(f'choose one of {list(self.registry.names())}')
