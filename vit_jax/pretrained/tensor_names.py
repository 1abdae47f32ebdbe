"""What is said of the tensors of any file."""

import pathlib
from collections.abc import Sequence

import numpy as np

from vit_jax.foundation.errors import UserError

_LONGEST = 200


def check(path: pathlib.Path, name: str) -> None:
  """Raises UserError for a name that no model has, and that no error could show."""
  if len(name) > _LONGEST or not name.isprintable():
    raise UserError(
      f'{path} holds a tensor called {name[:40]!r}…, which no model has; check what the file holds.'
    )


def check_finite(path: pathlib.Path, name: str, tensor: np.ndarray) -> None:
  """Raises UserError where not all of a tensor is finite."""
  if not np.isfinite(tensor).all():
    raise UserError(
      f'{path} has NaN or infinite values in {name}; its training diverged or the file is damaged, use another.'
    )


def some(names: Sequence[str]) -> str:
  """'a (and 3 more)': the first of them, and how many others there are."""
  return names[0] if len(names) == 1 else f'{names[0]} (and {len(names) - 1} more)'
