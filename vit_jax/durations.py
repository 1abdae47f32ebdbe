"""Durations: '90 epochs', '20000 steps', '1e6 examples' or '5%' (of the run)."""

import math
import re

from vit_jax.errors import UserError

_DURATION = re.compile(r'\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*(epochs?|steps?|examples?|%)\s*')


def parse(text: str) -> tuple[float, str]:
  """'90 epochs' -> (90.0, 'epoch'); the unit is 'epoch', 'step', 'example' or '%'.

  Raises:
    ValueError: the text is no duration.
  """
  match = _DURATION.fullmatch(text)
  if not match:
    raise ValueError(f"{text!r} is not a duration such as '90 epochs', '500 steps' or '5%'")
  return float(match[1]), match[2].rstrip('s')


def steps(duration: str, *, batch_size: int, examples: int, total: int | None = None) -> int:
  """Number of training steps of a duration, to the nearest.

  Args:
    duration: a number and a unit.
    batch_size: images a step.
    examples: images an epoch.
    total: steps of the whole run, what '%' refers to.
  """
  number, unit = parse(duration)
  if unit == '%' and total is None:
    raise UserError(f'config.total is {duration!r}; give it in epochs, steps or examples.')
  per_unit = {'step': 1, 'epoch': examples / batch_size, 'example': 1 / batch_size}
  scale = total / 100 if unit == '%' else per_unit[unit]
  return math.floor(number * scale + 0.5)
