"""Durations: '90 epochs', '20000 steps', '1e6 examples' or '5%' (of the run)."""

import math
import re
from typing import Annotated

from vit_jax.foundation.errors import UserError

_LARGEST = 1e18  # of any unit
_DURATION = re.compile(r'\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*(epochs?|steps?|examples?|%)\s*')


def parse(text: str) -> tuple[float, str]:
  """'90 epochs' -> (90.0, 'epoch'); the unit is 'epoch', 'step', 'example' or '%'. ValueError: it is no duration."""
  match = _DURATION.fullmatch(text)
  try:
    number = float(match[1]) if match else math.nan
  except ValueError:  # '1.2.3 steps'
    number = math.nan
  if not match or not number <= _LARGEST:
    raise ValueError("it must be a duration such as '90 epochs', '500 steps' or '5%'")
  return number, match[2].rstrip('s')


def _check_positive(text: str) -> None:
  """A rule of options: a duration of more than nothing."""
  if parse(text)[0] == 0:
    raise ValueError('it must be more than nothing')


# Types of options: text that `parse` reads.
Duration = Annotated[str, _check_positive]
DurationOrZero = Annotated[str, parse]


def steps(duration: str, *, batch_size: int, examples: int, total: int | None = None) -> float:
  """Training steps of a duration, and parts of one.

  Of `batch_size` images each, with `examples` images an epoch; '%' is of `total`, the steps of the whole run.
  """
  number, unit = parse(duration)
  if unit == '%':
    if total is None:
      raise UserError(f'config.total is {duration!r}; give it in epochs, steps or examples.')
    return number * (total / 100)
  per_unit = {'step': 1, 'epoch': examples / batch_size, 'example': 1 / batch_size}
  return number * per_unit[unit]


def nearest(steps: float) -> int:
  """Whole steps; half a step is one."""
  return math.floor(steps + 0.5)
