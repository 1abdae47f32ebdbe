"""Durations: '90 epochs', '20000 steps', '1e6 examples' or '5%' (of the run)."""

import math
import re
from fractions import Fraction
from typing import Annotated

from vit_jax.foundation.errors import UserError

_LARGEST = 1e18  # of any unit
_DURATION = re.compile(r'\s*([0-9.]+(?:e[+-]?[0-9]{1,3})?)\s*(epochs?|steps?|examples?|%)\s*')


def parse(text: str) -> tuple[Fraction, str]:
  """'90 epochs' -> (90, 'epoch'); the unit is 'epoch', 'step', 'example' or '%'. ValueError: it is no duration."""
  match = _DURATION.fullmatch(text)
  try:
    number = Fraction(match[1]) if match else None
  except ValueError:  # '1.2.3 steps'
    number = None
  if not match or number is None or number > _LARGEST:
    raise ValueError("it must be a duration such as '90 epochs', '500 steps' or '5%'")
  return number, match[2].rstrip('s')


def _check_positive(text: str) -> None:
  """A rule of options: a duration of more than nothing."""
  if parse(text)[0] == 0:
    raise ValueError('it must be more than nothing')


# Types of options: text that `parse` reads.
Duration = Annotated[str, _check_positive]
DurationOrZero = Annotated[str, parse]


def steps(duration: str, *, batch_size: int, examples: int, total: int | None = None) -> Fraction:
  """Training steps of a duration, and parts of one, exactly: two durations that meet do so in the same step.

  Of `batch_size` images each, with `examples` images an epoch; '%' is of `total`, the steps of the whole run.
  """
  number, unit = parse(duration)
  if unit == '%':
    if total is None:
      raise UserError(f'config.total is {duration!r}; give it in epochs, steps or examples.')
    return number * total / 100
  images = {'step': batch_size, 'epoch': examples, 'example': 1}
  return number * images[unit] / batch_size


def nearest(steps: Fraction) -> int:
  """Whole steps; half a step is one."""
  return math.floor(steps + Fraction(1, 2))
