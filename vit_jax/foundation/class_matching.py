"""What a head means: its outputs and the classes of data are matched by their names, wherever the two meet.

A kept head (config.init), a run that goes on or is taken over, an evaluation, a mixture, the teachers of a
distillation and those of `vit_jax.selftrain` all ask `rows`.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from vit_jax.foundation.errors import UserError

# How classes are matched: by name, or the first output with the first class, and so on.
By = Literal['name', 'number']
NEW = -1  # the row of a class that the head does not have
_NAMED = 3  # classes that a sentence lists


class Matched(NamedTuple):
  """The rows of a head for the classes of data."""

  rows: np.ndarray  # int64 (classes,), the head's row for each; NEW: it has none
  notes: tuple[str, ...] = ()  # for the person, where the rows are not simply the classes in their order


def rows(
  head: Sequence[str],
  data: Sequence[str],
  *,
  outputs: int,
  what: str,
  remedy: str,
  by: By = 'name',
  complete: bool = True,
  wanted: int | None = None,
) -> Matched:
  """The rows of a head for the classes of data.

  Numbers in their order ('0', '1', …) are no names: against names they stand for the classes by number.

  Args:
    head: the names of its outputs; (): it has none.
    data: the names of the data's classes.
    outputs: of the head.
    what: has the head, to begin a sentence: 'The checkpoint runs/a'.
    remedy: ends the sentence of a refusal.
    by: 'number': the names do not count.
    complete: whether a class that the head does not have is refused where it has others.
    wanted: outputs of the head that is to be made of it, without which there is no match by number; None: one for
      each class.

  Raises:
    UserError: the data has none of the head's classes, or one that it does not have, or has twice.
  """
  names, classes, in_order = tuple(head), tuple(data), np.arange(len(data))
  if names and classes == names:
    return Matched(in_order)
  of_same_size = outputs == (len(classes) if wanted is None else wanted) and len(classes) <= outputs
  if by == 'number' and of_same_size:
    return Matched(
      in_order, (f'{what}: its outputs are the classes of the data by number, whatever their names.',)
    )
  found = by_name(names, classes, remedy)
  if (found != NEW).any():
    new = [name for name, row in zip(classes, found, strict=True) if row == NEW]
    if new and complete:
      raise UserError(
        f'{what} does not have {len(new)} of the {len(classes)} classes ({listed(new)}); {remedy}.'
      )
    return Matched(found, _said(names, classes, new, what))
  numbers = tuple(str(number) for number in range(outputs))
  numbered = classes == numbers[: len(classes)]
  if of_same_size and (numbered or (names in ((), numbers) and not set(classes) & set(numbers))):
    said = f'{what}: its outputs are the classes of the data by number, since only one of the two names them.'
    return Matched(in_order, (said,) if names or not numbered else ())
  there = f'the classes {listed(names)}' if names else f'{outputs} classes without names'
  raise UserError(f'{what} has {there}, and the data {len(classes)} others ({listed(classes)}); {remedy}.')


def by_name(head: Sequence[str], data: Sequence[str], remedy: str = 'rename one of them') -> np.ndarray:
  """int64 (classes of the data,): the output of each one's name; NEW: there is none.

  Raises UserError, which ends in `remedy`, where two outputs have the name of a class.
  """
  number_of = {name: number for number, name in enumerate(head)}
  if len(number_of) < len(head) and tuple(data) != tuple(head):
    twice = [name for name in data if list(head).count(name) > 1]
    if twice:
      raise UserError(
        f'Two outputs of the head are called {twice[0]!r}, so that its name tells neither; {remedy}.'
      )
  return np.array([number_of.get(name, NEW) for name in data], np.int64)


def listed(names: Sequence[str]) -> str:
  """'a, b, c, …'."""
  return ', '.join(names[:_NAMED]) + (', …' if len(names) > _NAMED else '')


def _said(head: Sequence[str], data: Sequence[str], new: Sequence[str], what: str) -> tuple[str, ...]:
  """The sentence of a match by name."""
  known = set(data)
  unused = [name for name in head if name not in known]
  parts = ['its outputs are matched with the classes of the data by name']
  if new:
    parts.append(f'{len(new)} of {len(data)} classes are new ({listed(new)}) and begin anew')
  if unused:
    parts.append(f'{len(unused)} outputs have no class in the data ({listed(unused)})')
  return (f'{what}: {"; ".join(parts)}.',)
