"""Opens the sources that a config names: 'KIND:PLACE:SPLIT', or several of them as a mixture.

`digits[:SPLIT]`, `tfds:NAME[:SPLIT]`, `tfds:/a/prepared/directory[:SPLIT]`, `folder:/path[:SPLIT]`,
`vtab:TASK[:SPLIT]`; `base.SOURCES` lists the kinds.

A split is written as TFDS writes it: 'train', 'train[:90%]', 'train[100:]', 'train+test'. What follows the
last colon is the split if it looks like one, unless the whole is an existing directory.
"""

import dataclasses
import difflib
import functools
import glob
import os
import re
from collections.abc import Collection, Sequence

import numpy as np

from vit_jax.data import folds
from vit_jax.data.config import DataConfig
from vit_jax.data.sources import subset
from vit_jax.data.sources.base import SOURCES, SPLITS, NamedSource, Source, select, split_names
from vit_jax.data.sources.cached import Cached
from vit_jax.data.sources.folder_listing import paths_in
from vit_jax.data.sources.mixture import Mixture
from vit_jax.data.sources.tfds_files import INFO
from vit_jax.foundation import buckets
from vit_jax.foundation.errors import UserError

_MANY = 10**9  # records of a split whose size does not matter
_UNPREPARED = ('wds', 'webdataset', 'parquet', 'hf')  # kinds of data that `vit_jax.prepare` reads

_WITH_SPLIT = re.compile(rf'(.+):({SPLITS.pattern})')


def open_training(data: DataConfig, seed: int, class_names: Sequence[str] | None = None) -> Source:
  """The records to train on: those of `data.source`, or of all sources of `data.mixture`.

  A source of the mixture that has no images of `data.classes` gives its names of classes only, so that labels and
  head are those of the whole mixture.

  Args:
    data: source or mixture, split, classes, max_per_class.
    seed: of the choice among the images of a class.
    class_names: label -> name, from a checkpoint; None: the data's own.

  Raises:
    UserError: as `open_source`; or one of `data.classes` is in none of the sources.
  """
  specs = [spec for spec, _ in data.mixture] or [data.source]
  # A part of a mixture has but some of the classes.
  parts = [_opened(spec, data.split, data, None if data.mixture else class_names) for spec in specs]
  known = {name for part in parts for name in part.class_names}
  for name in data.classes:
    if name not in known:
      raise _unknown_class(name, known, data.title)
  if data.classes:
    parts = [subset.of_classes(part, data.classes) for part in parts]
    if not any(map(len, parts)):
      raise _no_images(data.title)
  if data.max_per_class is not None:
    if not known:
      raise UserError(f'{data.title} has no classes; leave config.data.max_per_class out.')
    parts = [subset.at_most(part, data.max_per_class, seed) for part in parts]
  return Mixture(parts, [weight for _, weight in data.mixture], class_names) if data.mixture else parts[0]


def open_source(
  spec: str, split: str, *, data: DataConfig, class_names: Sequence[str] | None = None
) -> Source:
  """The records of one source.

  Args:
    spec: 'KIND:PLACE' or 'KIND:PLACE:SPLIT'.
    split: the split to read if the spec names none.
    data: its `classes` select records; the source reads what concerns it, such as `val_fraction`.
    class_names: label -> name, from a checkpoint; None: the data's own.

  Raises:
    UserError: no such source, data set or split, or data in a form that cannot be read.
  """
  source = _opened(spec, split, data, class_names)
  if not data.classes:
    return source
  if not set(data.classes) & set(source.class_names):
    raise _unknown_class(data.classes[0], source.class_names, spec)
  chosen = subset.of_classes(source, data.classes)
  if not len(chosen):
    raise _no_images(spec)
  return chosen


def _opened(spec: str, split: str, data: DataConfig, class_names: Sequence[str] | None = None) -> Source:
  """All records of one source, kept in memory if `data.cache` says so; raises as `open_source`."""
  kind, place, split = parse(spec, split)
  split = SOURCES[kind].usual(split)
  if data.fold is not None and split_names(split) & set(folds.SPLITS):
    source = _folded(kind, place, split, data.fold, data, class_names)
  else:
    source = SOURCES[kind].open(place, split, data=data, class_names=class_names)
  return Cached(source, data.channels) if data.cache else source


def _folded(
  kind: str, place: str, split: str, fold: str, data: DataConfig, class_names: Sequence[str] | None
) -> Source:
  """The 'train' and 'val' of a fold, or parts of them, such as 'train[:90%]' and 'train+val'.

  They are of all images where a place has no splits, otherwise of those of its 'train'.
  """
  holds_out, where = SOURCES[kind].holds_out(place), title(f'{kind}:{place}' if place else kind, 'train')
  if not holds_out and 'val' in SOURCES[kind].splits(place):
    raise UserError(
      f"{where} stands beside a split 'val', which config.data.fold {fold} would replace; leave it out, or put the "
      f'folders of all classes into one folder without train and val.'
    )
  opened = functools.partial(SOURCES[kind].open, place, 'all' if holds_out else 'train', data=data)
  whole = opened(class_names=class_names)
  # By the place's own numbers of classes: a mixture and a checkpoint have others, and would move images to other folds.
  labels = whole.labels() if class_names is None else opened(class_names=None).labels()
  numbers = {name: np.flatnonzero(folds.chosen(labels, name, fold)) for name in folds.SPLITS}
  if split in numbers and not len(numbers[split]):
    raise UserError(
      f"{where} has {len(whole)} images, none of which is in '{split}' of config.data.fold {fold}."
    )
  sizes = {name: len(images) for name, images in numbers.items()}
  chosen = np.zeros(len(whole), bool)
  for name, first, last in select(split, sizes, f'{where} by config.data.fold {fold}'):
    chosen[numbers[name][first:last]] = True
  return subset.Subset(whole, chosen)


def title(spec: str, split: str) -> str:
  """What messages call a split of a source, as `open_source` takes it: 'folder:/photos val'."""
  kind, place, split = parse(spec, split)
  return f'{kind}:{place} {split}' if place else f'{kind} {split}'


def evaluated(
  spec: str, split: str, data: DataConfig, trained: DataConfig, images: int = 0, version: str = ''
) -> tuple[str, DataConfig]:
  """The split that an evaluation of `spec` counts, and the options of the data by which it is opened.

  What a training holds out, a fold or a part of a folder, is held out of what was `trained` on, as it was then. Another
  place has no fold; where it has no split to evaluate either, and `spec` names none, all its images are counted, unless
  those to train on are as many, of as many bytes, as the run's: then it is the run's folder, moved or copied.

  Args:
    spec, split: source and split as they are named.
    data: the options without those of the training.
    trained: the data of the run that trained the model.
    images: how many that run trained on; 0: not known.
    version: what `Source.version` said of them; '': not known.

  Raises:
    UserError: as `check_fold`.
  """
  kind, place, named = parse(spec, '')
  source = SOURCES[kind]
  own = dataclasses.replace(data, fold=trained.fold, val_fraction=trained.val_fraction)
  if _splits_trained_on(spec, trained):
    check_fold(trained, images, version)
    return split, own
  if named or not source.holds_out(place):
    return split, dataclasses.replace(data, fold=None)
  is_copy = version and not trained.mixture and _is_copy(f'{kind}:{place}', trained, images, version)
  return (split, own) if is_copy else ('all', dataclasses.replace(data, fold=None))


def was_trained_on(spec: str, split: str, trained: DataConfig) -> bool:
  """Whether a run was trained on images of a split, as far as is known without their sizes."""
  kind, place, split = parse(spec, split)
  return any(
    kind == other and _have_in_common(SOURCES[kind], (place, split), (where, own))
    for other, where, own in _trained_parts(trained)
  )


def have_in_common(spec: str, one: str, other: str) -> bool:
  """Whether two splits of a source have images in common, as far as is known without their sizes."""
  source = SOURCES[parse(spec, '')[0]]
  return _overlap(source.usual(one), source.usual(other))


def _have_in_common(source: type[NamedSource], one: tuple[str, str], other: tuple[str, str]) -> bool:
  """Whether two splits (place, split) have images in common; the one place may be a split of the other."""
  (place, split), (where, own) = one, other
  split, own = source.usual(split), source.usual(own)
  if source.same_place(place, where):
    return _overlap(split, own)
  if inner := source.split_of(place, where):
    return _overlap(inner, own)
  inner = source.split_of(where, place)
  return inner is not None and _overlap(split, inner)


def _trained_parts(trained: DataConfig) -> list[tuple[str, str, str]]:
  """Kind, place and split of each source of a run's data."""
  return [parse(each, trained.split) for each, _ in trained.mixture or [(trained.source, 1)]]


def _splits_trained_on(spec: str, trained: DataConfig) -> list[str]:
  """The splits of a source's place that a run was trained on; [] where its data is elsewhere."""
  kind, place, _ = parse(spec, '')
  parts = _trained_parts(trained)
  return [split for other, where, split in parts if kind == other and SOURCES[kind].same_place(place, where)]


def _overlap(one: str, other: str) -> bool:
  """Whether two splits of one place have images in common, as far as that is known without their sizes."""
  if 'all' in split_names(one) | split_names(other):
    return True
  return any(_meet(part.strip(), another.strip()) for part in one.split('+') for another in other.split('+'))


def _meet(one: str, other: str) -> bool:
  """`_overlap` of single parts, such as 'train[:90%]'."""
  if split_names(one) != split_names(other):
    return False
  if '[' not in one or '[' not in other or one == other:
    return True
  if ('%' in one) != ('%' in other):
    return False  # a share beside numbers of records: who knows
  (name,) = split_names(one)
  (_, first, last), (_, begin, end) = (select(part, {name: _MANY}, name)[0] for part in (one, other))
  return max(first, begin) < min(last, end)


def check_fold(trained: DataConfig, images: int, version: str) -> None:
  """Raises UserError where a run's fold is another one by now: an image more, less or renamed moves others.

  Args:
    trained: the data of the run that trained the model.
    images: how many that run trained on; 0: not known.
    version: what `Source.version` said of them; '': not known.
  """
  if trained.fold is None or not images:
    return
  source = open_training(trained, 0)
  then = paths_in(version)
  if len(source) == images and (not then or then == paths_in(source.version())):
    return
  had = f'{images:,}' if len(source) != images else 'others, or other names of them,'
  raise UserError(
    f'{trained.title} has {len(source):,} images to train on by config.data.fold {trained.fold}, and had {had} when '
    'the run was trained, so that this fold holds out images that it was trained on; restore them, or name others.'
  )


def _is_copy(spec: str, trained: DataConfig, images: int, version: str) -> bool:
  """Whether a place, by the options of what a run trained on, has as many images to train on, of as many bytes."""
  kind, _, split = parse(trained.source, trained.split)
  if kind != parse(spec, '')[0]:
    return False
  try:
    there = open_training(dataclasses.replace(trained, source=spec, split=split), 0)
  except UserError:
    return False
  # Folders' versions begin with their bytes; what follows depends on times of change, which a copy may not have.
  return len(there) == images and there.version().partition(' bytes')[0] == version.partition(' bytes')[0]


def placed(data: DataConfig, directory: str | None) -> DataConfig:
  """Options whose relative places were written in a directory, with absolute ones; None: it is not known.

  A place that is not there stays relative: the project was moved, or copied to another machine, with its data.
  """
  if directory is None:
    return data

  def absolute(spec: str) -> str:
    kind, place, split = parse(spec, '')
    if kind != 'folder' and not place.startswith('.'):
      return spec
    path = os.path.normpath(os.path.join(directory, os.path.expanduser(place)))
    there = os.path.exists(path) or place.startswith('~')
    return ':'.join(part for part in (kind, path, split) if part) if there else spec

  mixture = tuple((absolute(spec), weight) for spec, weight in data.mixture)
  return dataclasses.replace(data, source=absolute(data.source), mixture=mixture)


def spec_of(name: str) -> str:
  """What a person calls data on a command line, as `open_source` takes it.

  A source as configs name it stays as it is. A folder is 'folder:NAME', one that was prepared, in a bucket too,
  'tfds:NAME', and so is any other name.
  """
  if buckets.is_bucket(name):
    return f'tfds:{name}'
  if name.partition(':')[0] in SOURCES.names():
    return name
  path = os.path.expanduser(name)
  if not os.path.isdir(path):
    if name.startswith(('/', './', '../', '~')) or name.endswith('/'):
      return f'folder:{name}'
    return name if ':' in name else f'tfds:{name}'
  if glob.glob(f'{glob.escape(path)}/{INFO}') or glob.glob(f'{glob.escape(path)}/*/{INFO}'):
    return f'tfds:{name}' if name[0] in '/~.' else f'tfds:./{name}'
  return f'folder:{name}'


def without_split(spec: str) -> str:
  """'tfds:cifar10:train[:98%]' -> 'tfds:cifar10'."""
  kind, place, _ = parse(spec, '')
  return f'{kind}:{place}' if place else kind


def parse(spec: str, split: str) -> tuple[str, str, str]:
  """'tfds:cifar10:train[:98%]' -> ('tfds', 'cifar10', 'train[:98%]'): kind, place and split (`split` if it names none).

  UserError for no such kind of source, or no place.
  """
  kind, _, rest = spec.partition(':')
  if kind not in SOURCES.names():
    raise _no_source(spec)
  if not SOURCES[kind].has_place:
    return kind, '', rest or split
  if not rest:
    raise _no_source(spec)
  match = _WITH_SPLIT.fullmatch(rest)
  if match and not os.path.isdir(os.path.expanduser(rest)):
    return kind, match[1], match[2]
  return kind, rest, split


def _no_source(spec: str) -> UserError:
  kind, _, place = spec.partition(':')
  if kind in SOURCES.names() and not place:
    written = ' or '.join(map(repr, SOURCES[kind].forms or (f'{kind}:PLACE',)))
    return UserError(f"{spec!r} names no place behind its ':'; write {written}.")
  if kind in _UNPREPARED and place:
    folder = spec if kind == 'hf' else re.split(r'/[^/]*[*?{]', place)[0]  # without a pattern of names
    return UserError(
      f'{spec!r} has no random access; prepare it once with: vit_jax prepare {folder} '
      f'~/tensorflow_datasets/NAME/1.0.0, and train on tfds:NAME.'
    )
  forms: list[str] = []
  for kind in SOURCES.names():
    forms += SOURCES[kind].forms or (f'{kind}:PLACE',)
  *others, last = map(repr, forms)
  return UserError(f'{spec!r} is not a source; write {", ".join(others)} or {last}.')


def _no_images(where: str) -> UserError:
  return UserError(f'{where} has no images of config.data.classes; correct the classes or leave it out.')


def _unknown_class(name: str, known: Collection[str], where: str) -> UserError:
  if not known:
    return UserError(f'{where} has no classes; leave config.data.classes out.')
  near = difflib.get_close_matches(name, known, n=1) or sorted(known)[:1]
  return UserError(
    f'config.data.classes has {name!r}, which is not among the {len(known)} classes of {where}; '
    f'did you mean {near[0]!r}?'
  )
