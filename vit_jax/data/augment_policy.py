"""How `config.data.augment` is written: 'medium1', '3augment', 'randaugment(2,15) | erase(0.25)'."""

import difflib
import re
from typing import NamedTuple


class Step(NamedTuple):
  """One augmentation and its numbers."""

  name: str
  arguments: tuple[float, ...] = ()


class _Kind(NamedTuple):
  """What the numbers of an augmentation are called, and between what they lie."""

  arguments: tuple[tuple[str, float, float], ...] = ()


_KINDS = {
  'randaugment': _Kind((('layers', 1, 16), ('magnitude', 0, 30))),
  '3augment': _Kind(),
  'jitter': _Kind((('strength', 0, 1),)),
  'erase': _Kind((('probability', 0, 1),)),
}

# 'How to train your ViT?' (arXiv 2106.10270), section 3: RandAugment and the alpha of mixup, by name.
_LEVELS = {
  'none': ((), 0.0),
  'light1': ((Step('randaugment', (2, 0)),), 0.0),
  'light2': ((Step('randaugment', (2, 10)),), 0.2),
  'medium1': ((Step('randaugment', (2, 15)),), 0.2),
  'medium2': ((Step('randaugment', (2, 15)),), 0.5),
  'strong1': ((Step('randaugment', (2, 20)),), 0.5),
  'strong2': ((Step('randaugment', (2, 20)),), 0.8),
}
LEVELS = tuple(_LEVELS)

_WRITTEN = re.compile(r'\s*(\w+)\s*(?:\(([^()]*)\))?\s*')


def parse(text: str) -> tuple[Step, ...]:
  """The steps, in order; a level is replaced by its own.

  Raises:
    ValueError: an unknown name, or numbers that do not belong to it.
  """
  steps: list[Step] = []
  for part in text.split('|'):
    match = _WRITTEN.fullmatch(part)
    if not match:
      raise ValueError(f"{part.strip()!r} is not written as an augmentation such as 'randaugment(2,15)'")
    name, numbers = match[1], match[2]
    if name in _LEVELS and numbers is None:
      steps += _LEVELS[name][0]
    else:
      steps.append(_step(name, numbers))
  return tuple(steps)


def mixup(text: str) -> float:
  """The alpha of mixup that the levels named in it come with: the largest."""
  return max(_LEVELS[name][1] if name in _LEVELS else 0.0 for name in map(str.strip, text.split('|')))


def _step(name: str, numbers: str | None) -> Step:
  if name not in _KINDS:
    names = [*_LEVELS, *_KINDS]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f'did you mean {near[0]!r}' if near else f'there are {", ".join(names)}'
    raise ValueError(f'{name!r} is no augmentation; {hint}')
  expected = _KINDS[name].arguments
  values = [part.strip() for part in numbers.split(',')] if numbers and numbers.strip() else []
  if len(values) != len(expected):
    form = f'{name}({", ".join(argument for argument, _, _ in expected)})' if expected else name
    raise ValueError(f'{name!r} is given {len(values)} numbers, and is written {form}')
  return Step(name, tuple(_number(name, v, *argument) for v, argument in zip(values, expected, strict=True)))


def _number(name: str, value: str, argument: str, low: float, high: float) -> float:
  try:
    number = float(value)
  except ValueError:
    raise ValueError(f'the {argument} of {name!r} is {value!r}, which is no number') from None
  if not low <= number <= high or (argument == 'layers' and number % 1):
    kind = 'a whole number' if argument == 'layers' else 'a number'
    raise ValueError(f'the {argument} of {name!r} is {value}; it must be {kind} between {low} and {high}')
  return number
