"""Which splits a source has, so that one can be chosen to evaluate on."""

import os
from collections.abc import Callable, Collection, Sequence

from vit_jax.data import sources
from vit_jax.data.config import DataConfig
from vit_jax.data.sources.folder_listing import folders_in
from vit_jax.data.sources.tfds import builder_of
from vit_jax.errors import UserError

# The splits that a source may have to evaluate on.
HELD_OUT = ('test', 'validation', 'val')


def first_of(wanted: Sequence[str], spec: str) -> str:
  """The first of some splits that a source has.

  Raises:
    UserError: it has none of them, or is not there.
  """
  kind, place, _ = sources.parse(spec, '')
  splits = _SPLITS[kind](place) if kind in _SPLITS else _splits_that_open(spec)
  for split in wanted:
    if split in splits:
      return split
  *others, last = wanted
  raise UserError(f'{spec} has no split to test on ({", ".join(others)} or {last}), but {", ".join(splits)}.')


def _folder_splits(place: str) -> Collection[str]:
  """'test' if the folder has one; 'val' is always there, for it is held out where it has no folder."""
  folder = os.path.expanduser(place)
  if not os.path.isdir(folder):
    raise UserError(f'There is no folder {place}; give the path of one that has a sub-folder per class.')
  return ('test', 'val') if 'test' in folders_in(folder) else ('val',)


def _tfds_splits(place: str) -> Collection[str]:
  return tuple(builder_of(place).info.splits)


def _splits_that_open(spec: str) -> Collection[str]:
  """The splits of a source that does not list its splits; raises UserError if not even 'train' opens."""
  sources.open_source(spec, 'train', data=DataConfig())
  found = ['train']
  for split in HELD_OUT:
    try:
      sources.open_source(spec, split, data=DataConfig())
    except UserError:
      continue
    found.append(split)
  return found


# Kind of source -> its splits, by its place.
_SPLITS: dict[str, Callable[[str], Collection[str]]] = {'folder': _folder_splits, 'tfds': _tfds_splits}
