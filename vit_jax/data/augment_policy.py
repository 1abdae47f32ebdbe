"""The notation of `config.data.augment`: 'medium1', '3augment', 'randaugment(2,15) | erase(0.25)'."""

import difflib
import re
from typing import NamedTuple


class Step(NamedTuple):
  """One augmentation: its name and its arguments."""

  name: str
  arguments: tuple[float, ...] = ()


class _Argument(NamedTuple):
  """An argument of an augmentation, its bounds, both included, and whether it is a whole number."""

  name: str
  low: float
  high: float
  whole: bool = False


_AUGMENTATIONS: dict[str, tuple[_Argument, ...]] = {
  'randaugment': (_Argument('layers', 1, 16, whole=True), _Argument('magnitude', 0, 30)),
  '3augment': (),
  'jitter': (_Argument('strength', 0, 1),),
  'erase': (_Argument('probability', 0, 1),),
  'dino': (_Argument('blur', 0, 1), _Argument('solarize', 0, 1)),
}

# AugReg ('How to train your ViT?', arXiv 2106.10270), section 3: each level's RandAugment, and its mixup
# alpha.
_LEVELS: dict[str, tuple[tuple[Step, ...], float]] = {
  'none': ((), 0.0),
  'light1': ((Step('randaugment', (2, 0)),), 0.0),
  'light2': ((Step('randaugment', (2, 10)),), 0.2),
  'medium1': ((Step('randaugment', (2, 15)),), 0.2),
  'medium2': ((Step('randaugment', (2, 15)),), 0.5),
  'strong1': ((Step('randaugment', (2, 20)),), 0.5),
  'strong2': ((Step('randaugment', (2, 20)),), 0.8),
}
LEVELS = tuple(_LEVELS)

_PART = re.compile(r'\s*(\w+)\s*(?:\(([^()]*)\))?\s*')


def parse(text: str) -> tuple[Step, ...]:
  """The steps in order, levels replaced by theirs; ValueError for an unknown name, or arguments that do not fit it."""
  steps: list[Step] = []
  for part in text.split('|'):
    match = _PART.fullmatch(part)
    if not match:
      raise ValueError(f"{part.strip()!r} is not written as an augmentation such as 'randaugment(2,15)'")
    name, arguments = match[1], match[2]
    if name in _LEVELS and arguments is None:
      steps += _LEVELS[name][0]
    else:
      steps.append(_step(name, arguments))
  return tuple(steps)


def mixup(text: str) -> float:
  """The mixup alpha that comes with the levels named in `text`: the largest of them."""
  names = [part.strip() for part in text.split('|')]
  return max(_LEVELS[name][1] if name in _LEVELS else 0.0 for name in names)


def _step(name: str, arguments: str | None) -> Step:
  if name not in _AUGMENTATIONS:
    names = [*_LEVELS, *_AUGMENTATIONS]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f'did you mean {near[0]!r}' if near else f'there are {", ".join(names)}'
    raise ValueError(f'{name!r} is no augmentation; {hint}')
  expected = _AUGMENTATIONS[name]
  values = [part.strip() for part in arguments.split(',')] if arguments and arguments.strip() else []
  if len(values) != len(expected):
    form = f'{name}({", ".join(argument.name for argument in expected)})' if expected else name
    raise ValueError(f'{name!r} is given {len(values)} numbers, and is written {form}')
  numbers = [_number(name, value, argument) for value, argument in zip(values, expected, strict=True)]
  return Step(name, tuple(numbers))


def _number(name: str, value: str, argument: _Argument) -> float:
  try:
    number = float(value)
  except ValueError:
    raise ValueError(f'the {argument.name} of {name!r} is {value!r}, which is no number') from None
  if not argument.low <= number <= argument.high or (argument.whole and number % 1):
    kind = 'a whole number' if argument.whole else 'a number'
    raise ValueError(
      f'the {argument.name} of {name!r} is {value}; it must be {kind} between {argument.low} and '
      f'{argument.high}'
    )
  return number
