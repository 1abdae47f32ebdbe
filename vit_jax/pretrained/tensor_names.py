"""The names of tensors in errors."""

import pathlib
from collections.abc import Sequence

from vit_jax.foundation.errors import UserError

_LONGEST = 200


def check(path: pathlib.Path, name: str) -> None:
  """Raises UserError for a name that no model has, and that no error could show."""
  if len(name) > _LONGEST or not name.isprintable():
    raise UserError(
      f'{path} holds a tensor called {name[:40]!r}…, which no model has; check what the file holds.'
    )


def some(names: Sequence[str]) -> str:
  """'a (and 3 more)': the first of them, and how many others there are."""
  return names[0] if len(names) == 1 else f'{names[0]} (and {len(names) - 1} more)'
