"""Data sets that recipes name: `vit_jax prepare imagenet21k SRC` puts them where recipes look."""

import dataclasses
import os
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class NamedSet:
  """What a recipe expects of a data set."""

  version: str  # its folder within the data set's
  # The one split of all images; None: those of the source, 'val' under the name 'validation'.
  split: str | None
  num_classes: int | None  # so many there must be; None: any number
  # Images that the recipes' slices of the split hold out; 0: they have another split for that.
  held_out: int
  recipe: str  # a recipe that trains on it


NAMED_SETS: Mapping[str, NamedSet] = {
  'imagenet21k': NamedSet('1.0.0', 'full', None, 102_400, 'configs/vit_l16.py:imagenet21k'),
  # The version is that of TFDS's own builder, which finds it and knows the names of the classes.
  'imagenet2012': NamedSet('5.1.0', None, 1000, 0, 'configs/vit_l16.py:imagenet2012'),
}


def default_destination(name: str) -> str:
  """Where recipes look for a named data set: in $TFDS_DATA_DIR, or else ~/tensorflow_datasets."""
  folder = os.environ.get('TFDS_DATA_DIR', '~/tensorflow_datasets')
  return f'{folder.rstrip("/")}/{name}/{NAMED_SETS[name].version}'


def training_command(name: str, records: int, labels: str = '') -> str:
  """The command that trains on a named data set of so many images, also a rehearsal; `labels`: its `label_options`."""
  named = NAMED_SETS[name]
  command = f'vit_jax train --config={named.recipe}{labels}'
  if not named.held_out or records > named.held_out:
    return command
  held = max(records // 10, 1)
  return (
    f"{command} --config.data.split='{named.split}[{held}:]' "
    f"--config.evaluators.val.split='{named.split}[:{held}]'"
  )


def label_options(longest: int | None, weighted: bool) -> str:
  """The options of a run on images with lists of at most `longest` classes (None: one class), perhaps with weights."""
  if longest is None:
    return ''
  options = f" --config.data.max_labels={longest} --config.objective.loss='sigmoid'"
  return options + ' --config.data.label_weights=True' if weighted else options
