"""Where records come from: `digits[:SPLIT]`, `tfds:NAME[:SPLIT]`, `tfds:/a/prepared/directory[:SPLIT]`,
`folder:/path[:SPLIT]` and `vtab:TASK[:SPLIT]`, or a mixture of them.

A split is what TFDS takes: 'train', 'train[:90%]', 'train[100:]', 'train+test'; of a task of VTAB, one that
its definition names (`vtab.py`). What follows the last colon is read as a split if it looks like one and the
whole is not an existing directory.
"""

import difflib
import os
import re
from collections.abc import Collection, Sequence

from vit_jax.data.config import DataConfig
from vit_jax.data.sources import subset, tfds_features, vtab
from vit_jax.data.sources.base import SPLITS, Source
from vit_jax.data.sources.digits import DigitsSource
from vit_jax.data.sources.folder import FolderSource
from vit_jax.data.sources.mixture import Mixture
from vit_jax.data.sources.tfds import PreparedSource, builder_of
from vit_jax.errors import UserError

_WITH_SPLIT = re.compile(rf'(.+):({SPLITS.pattern})')


def open_training(data: DataConfig, seed: int) -> Source:
  """The records to train on: those of data.source, or of all sources of data.mixture.

  Args:
    data: also its classes and max_per_class are kept to, in each source.
    seed: of the choice among the images of a class.

  Raises:
    UserError: as `open_source`; or one of data.classes is in no source.
  """
  specs, weights = zip(*data.mixture or ((data.source, 1.0),), strict=True)
  parts = [open_source(spec, data.split, data=data) for spec in specs]
  known = {name for part in parts for name in part.class_names}
  for name in data.classes:
    if name not in known:
      raise _unknown_class(name, known, data.title)
  if data.max_per_class:
    parts = [subset.at_most(part, data.max_per_class, seed) for part in parts]
  return Mixture(parts, weights) if data.mixture else parts[0]


def open_source(
  spec: str, split: str, *, data: DataConfig, class_names: Sequence[str] | None = None
) -> Source:
  """The records of a source.

  Args:
    spec: see the module's text.
    split: what to read unless the spec says so itself.
    data: its val_fraction is what a folder without splits holds out, its max_labels allows lists of classes,
      its classes are those whose records there are.
    class_names: label -> name, from a checkpoint; None: what the data set says.

  Raises:
    UserError: no such source, data set or split, or data in a form that cannot be read.
  """
  source = _open(*parse(spec, split), data, class_names)
  if not data.classes:
    return source
  if not set(data.classes) & set(source.class_names):
    raise _unknown_class(data.classes[0], source.class_names, spec)
  chosen = subset.of_classes(source, data.classes)
  if not len(chosen):
    raise UserError(f'{spec} has no images of config.data.classes; correct the classes or leave it out.')
  return chosen


def _open(kind: str, rest: str, split: str, data: DataConfig, class_names: Sequence[str] | None) -> Source:
  if kind == 'digits':
    return DigitsSource(split, class_names)
  if kind == 'folder':
    return FolderSource(rest, split, val_fraction=data.val_fraction, class_names=class_names)
  if kind == 'vtab':
    task = vtab.task_of(rest)
    builder = builder_of(task.dataset)
    sizes = {name: info.num_examples for name, info in builder.info.splits.items()}
    return PreparedSource(
      builder, task.split(split, sizes), class_names, tfds_features.of_task(builder.info, task)
    )
  builder = builder_of(rest)
  how = tfds_features.of_features(builder.info, lists=data.max_labels is not None)
  return PreparedSource(builder, split, class_names, how)


def _unknown_class(name: str, known: Collection[str], where: str) -> UserError:
  near = difflib.get_close_matches(name, known, n=1) or sorted(known)[:1]
  return UserError(
    f'config.data.classes has {name!r}, which is not among the {len(known)} classes of {where}; '
    f'did you mean {near[0]!r}?'
  )


def parse(spec: str, split: str) -> tuple[str, str, str]:
  """'tfds:cifar10:train[:98%]' -> ('tfds', 'cifar10', 'train[:98%]'); `split` if the spec has none."""
  kind, _, rest = spec.partition(':')
  if kind == 'digits':
    return kind, '', rest or split
  if kind not in ('tfds', 'folder', 'vtab') or not rest:
    raise UserError(
      f"{spec!r} is not a source; write 'digits', 'tfds:NAME', 'tfds:/a/prepared/directory', "
      f"'folder:/path' or 'vtab:TASK'."
    )
  match = _WITH_SPLIT.fullmatch(rest)
  if match and not os.path.isdir(os.path.expanduser(rest)):
    return kind, match[1], match[2]
  return kind, rest, split
