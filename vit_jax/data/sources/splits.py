"""The splits that a source has, and the one of them to evaluate on."""

from collections.abc import Collection, Sequence

from vit_jax.data import sources
from vit_jax.data.sources.base import SOURCES
from vit_jax.foundation.errors import UserError

# The splits that a source may have to evaluate on.
HELD_OUT = ('test', 'validation', 'val')


def of(spec: str) -> Collection[str]:
  """The splits that a source has; UserError where it is not there."""
  kind, place, _ = sources.parse(spec, '')
  return SOURCES[kind].splits(place)


def first_of(wanted: Sequence[str], spec: str) -> str:
  """The first of some splits that a source has; UserError where it has none of them, or is not there."""
  splits = of(spec)
  for split in wanted:
    if split in splits:
      return split
  *others, last = wanted
  raise UserError(
    f'{spec} has no split to test on ({", ".join(others)} or {last}), but {", ".join(splits)}; choose other data, '
    'or one of these.'
  )
