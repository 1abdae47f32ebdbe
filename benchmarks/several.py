"""Flags that take several names with commas."""

import argparse
from collections.abc import Callable, Collection


def several(choices: Collection[str]) -> Callable[[str], list[str]]:
  """The type of a flag of argparse: some of the choices, with commas between them."""

  def names(text: str) -> list[str]:
    found = text.split(',')
    for name in found:
      if name not in choices:
        raise argparse.ArgumentTypeError(f'there is no {name!r}; choose from {", ".join(choices)}')
    return found

  return names
