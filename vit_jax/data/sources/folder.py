"""A person's own images: `folder:/path`, with one sub-folder per class.

Either `train/CLASS/…` beside `val/CLASS/…` and `test/CLASS/…`, or `CLASS/…` directly, of which a share is held
out as 'val'. `folder_layout.py` knows the other names of splits. Folders within a class belong to it; hidden
files are ignored.
"""

import functools
import itertools
import logging
import math
import os
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

from vit_jax.data.config import DataConfig
from vit_jax.data.sources import folder_layout
from vit_jax.data.sources.base import NamedSource, Record, check_split, select
from vit_jax.data.sources.folder_layout import class_name, listed
from vit_jax.data.sources.folder_listing import (
  EXTENSIONS,
  Listing,
  files_below,
  folders_in,
  list_images,
  other_files,
  version_of,
)
from vit_jax.foundation import buckets, foreign_files
from vit_jax.foundation.errors import UserError

_log = logging.getLogger(__name__)

_HELD_OUT_SPLITS = ('train', 'val')  # of a folder whose classes are in its root
# What `vit_jax.prepare` reads and this source does not.
_ARCHIVES = ('.tar', '.tar.gz', '.tgz', '.zip', '.parquet')
_TABLES = ('.csv', '.tsv', 'metadata.jsonl')


class _Part(NamedTuple):
  """The images of one split."""

  top: str  # the folder of the split, relative to the root; '' is the root
  classes: tuple[str, ...]  # the names of its class folders, sorted
  numbers: np.ndarray  # int64 (images,), of the images in the listing
  members: np.ndarray  # int64 (images,), the index in `classes` of each image's class


class FolderSource(NamedSource):
  """The images of one split, ordered by a hash of their paths, so that a slice has images of all classes."""

  forms = ('folder:/path',)

  def __init__(self, root: str, split: str, *, val_fraction: float, class_names: Sequence[str] | None = None):
    """Lists the files (`folder_listing.py`) without opening any.

    Args:
      root: the folder.
      split: 'train', 'val' or 'test', under any of their usual names, with slices and sums.
      val_fraction: the share of the images held out as 'val' if the root has no folders of splits.
      class_names: label -> name; None: the classes of the training split, sorted; without one, those of `split`.

    Raises:
      UserError: no such folder or split, a folder that cannot be read, no images, a class that the training
        split lacks or whose name cannot be printed, or a folder whose classes lie one level deeper.
    """
    if buckets.is_bucket(root):
      prepared = f'{root.rstrip("/")}_prepared/1.0.0'
      raise UserError(
        f'folder:{root} is in a bucket, where a request for each file is slow; prepare it once with: '
        f'vit_jax prepare {root} {prepared}, and train on tfds:{prepared}.'
      )
    self._root = pathlib.Path(root).expanduser()
    _check_readable(self._root)
    split = self.usual(split)
    self._listing, parts, train_classes = _splits(self._root, split, val_fraction)
    if class_names is None:
      self._check_layout(parts, train_classes)
    self.class_names = tuple(class_names or train_classes)
    known = [class_name(name) for name in self.class_names]
    label_of = {name: label for label, name in enumerate(known)}
    ordered: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, part in parts.items():
      complete = name == 'train' and class_names is None
      _check_classes(part, known, f'{root} ({name})', complete=complete)
      labels = np.array([label_of[found] for found in part.classes], np.int32)
      order = np.argsort(self._listing.hashes[part.numbers], kind='stable')
      ordered[name] = part.numbers[order], labels[part.members[order]]
    ranges = select(split, {name: len(part.numbers) for name, part in parts.items()}, root)
    self._numbers = np.concatenate([ordered[name][0][first:last] for name, first, last in ranges])
    self._labels = np.concatenate([ordered[name][1][first:last] for name, first, last in ranges])

  def _check_layout(self, parts: Mapping[str, '_Part'], train_classes: Sequence[str]) -> None:
    """Raises UserError if what stands for classes is something else."""
    with_images = [self._listing.folders[number] for number in np.unique(self._listing.parents)]
    for top, part in {part.top: part for part in parts.values()}.items():
      path, prefix = self._root / top, f'{top}/' if top else ''
      below = (tuple(folder[len(prefix) :].split('/')) for folder in with_images if folder.startswith(prefix))
      folder_layout.check_classes(part.classes, below, path, f'give folder:{path}/')
      if len(train_classes) == 1:
        _check_no_table(path, train_classes[0])
    if len(train_classes) == 1:
      _check_no_table(self._root, train_classes[0])

  @classmethod
  def open(cls, place: str, split: str, *, data: DataConfig, class_names: Sequence[str] | None) -> Self:
    return cls(place, split, val_fraction=data.val_fraction, class_names=class_names)

  @classmethod
  def splits(cls, place: str) -> Collection[str]:
    root = pathlib.Path(place).expanduser()
    _check_readable(root)
    return tuple(folder_layout.splits_among(folders_in(root), root).values()) or _HELD_OUT_SPLITS

  @classmethod
  def holds_out(cls, place: str) -> bool:
    root = pathlib.Path(place).expanduser()
    return root.is_dir() and not folder_layout.splits_among(folders_in(root), root)

  @classmethod
  def split_of(cls, place: str, whole: str) -> str | None:
    inner = pathlib.Path(place).expanduser().resolve()
    return folder_layout.split_named(inner.name) if cls.same_place(str(inner.parent), whole) else None

  @classmethod
  def usual(cls, split: str) -> str:
    return re.sub(r'[A-Za-z]\w*', lambda name: folder_layout.split_named(name[0]) or name[0], split)

  def __len__(self) -> int:
    return len(self._numbers)

  def __getitem__(self, index: int) -> Record:
    """Raises UserError for a file that cannot be read."""
    path = os.path.join(self._root, self._listing.path(self._numbers[index]))
    try:
      image = foreign_files.read_bytes(path, foreign_files.LARGEST_IMAGE)
    except OSError as error:
      raise UserError(f'{path} cannot be read ({error.strerror}); restore or remove it.') from error
    caption = functools.partial(_caption, f'{os.path.splitext(path)[0]}.txt')
    return Record(image, int(self._labels[index]), path, captions=caption)

  def labels(self) -> np.ndarray:
    return self._labels

  def version(self) -> str:
    """As of the contract, as long as machines agree about the files' times of change."""
    return version_of([self._listing.path(number) for number in self._numbers], self._root)


def _caption(path: str) -> tuple[str]:
  """The caption in the file beside an image; UserError where it cannot be read."""
  try:
    if not (text := foreign_files.read_text(path).strip()):
      raise OSError('it is empty')
    return (text,)
  except (OSError, UnicodeDecodeError) as error:
    reason = getattr(error, 'strerror', None) or error
    raise UserError(
      f'{path}, the caption of an image, cannot be read ({reason}); write it, in UTF-8.'
    ) from error


@functools.cache
def _warn(text: str) -> None:
  """Logs a warning once per process, although a folder is opened for each of its splits."""
  _log.warning('%s', text)


def _check_readable(root: pathlib.Path) -> None:
  try:
    os.scandir(root).close()
  except (FileNotFoundError, NotADirectoryError):
    raise UserError(
      f'There is no folder {root}; give the path of one that has a sub-folder per class.'
    ) from None
  except OSError as error:
    raise UserError(f'The folder {root} cannot be read ({error.strerror}); check its permissions.') from error


def _splits(
  root: pathlib.Path, split: str, val_fraction: float
) -> tuple[Listing, dict[str, _Part], Sequence[str]]:
  """The listing, the splits that `split` names, and the sorted classes of the training split."""
  there = folders_in(root)
  folders = folder_layout.splits_among(there, root)
  if not folders:
    check_split(split, _HELD_OUT_SPLITS, str(root))
    listing = list_images(root, [''])
    everything = _part(listing, '', root)
    if split == 'all':
      return listing, {'all': everything}, everything.classes
    evaluates = 'val' in re.findall(r'\w+', split)
    parts = _hold_out(everything, listing.hashes, val_fraction, root, warns=evaluates)
    if not len(parts['val'].numbers) and evaluates:
      raise UserError(
        f"No class of {root} has two images, so that none can be held out as 'val'; add images, or put those "
        f'to train on below {root}/train and the others below {root}/val.'
      )
    return listing, parts, sorted(everything.classes)
  others = set(there) - set(folders)
  wanted = re.findall(r'\w+', split)
  if others and 'train' in wanted and 'train' not in folders.values():
    raise UserError(
      f'{root} has {listed(others)} beside {listed(folders)}, which is called like a split; put the classes to '
      f'train on below {root}/train, or rename {listed(folders)} if it is a class.'
    )
  check_split(split, list(folders.values()), str(root))
  if others:
    _warn(f'{root}: left out {listed(others)}, beside the folders of splits ({listed(folders)}).')
  tops = {top: name for top, name in folders.items() if name in wanted or 'all' in wanted}
  listing = list_images(root, list(tops))
  parts = {name: _part(listing, top, root) for top, name in tops.items()}
  train = next((top for top, name in folders.items() if name == 'train'), None)
  if train:
    train_classes = {class_name(folder) for folder in folders_in(root / train)}
  else:  # the classes that are evaluated are all that is known
    train_classes = {name for part in parts.values() for name in part.classes}
  return listing, parts, sorted(train_classes)


def _part(listing: Listing, top: str, root: pathlib.Path) -> _Part:
  """The images of the class folders in `top`, relative to the root ('' is the root); warns of other files."""
  prefix = f'{top}/' if top else ''
  classes: dict[str, int] = {}
  folder_classes = np.full(len(listing.folders), -1)
  for number, folder in enumerate(listing.folders):
    if folder != top and folder.startswith(prefix):
      name = class_name(folder[len(prefix) :].split('/')[0])
      folder_classes[number] = classes.setdefault(name, len(classes))
  folder_layout.check_class_names(classes, root / top)
  members = folder_classes[listing.parents]
  numbers = np.flatnonzero(members >= 0)
  if not len(numbers):
    raise _no_images(root / top, root)
  others = np.where(folder_classes >= 0, listing.others, 0)
  if others.any():
    _refuse_archives([root / listing.folders[number] for number in np.flatnonzero(others)])
    example = root / listing.folders[others.argmax()]
    _warn(
      f'{root / top}: ignored {others.sum()} files, most in {example}, whose names do not end as those of images '
      f'({", ".join(_endings(example))}); {_read_endings()} are read.'
    )
  return _Part(top, tuple(classes), numbers, members[numbers])


def _endings(folder: pathlib.Path) -> list[str]:
  """How the names of `other_files` in a folder end: the first few, sorted."""
  names = [name for name in os.listdir(folder) if not folder_layout.is_hidden(name)]
  others = {pathlib.Path(name).suffix[1:] or name for name in other_files(names)}
  return sorted({name.lower() for name in others})[: folder_layout.NAMED]


def _read_endings() -> str:
  return ', '.join(extension[1:] for extension in EXTENSIONS)


def _refuse_archives(folders: Sequence[pathlib.Path]) -> None:
  """Raises UserError if one of these folders of images has an archive or parquet file too."""
  for folder in folders:
    for name in sorted(os.listdir(folder)):
      if name.lower().endswith(_ARCHIVES) and name[0] != '.':
        raise UserError(
          f'{folder} has images and {name}, whose images would be left out; move it away or, if it holds the '
          f'data, prepare it (vit_jax prepare {folder / name} ~/data/NAME/1.0.0) and train on '
          f'tfds:~/data/NAME/1.0.0.'
        )


def _no_images(path: pathlib.Path, root: pathlib.Path) -> UserError:
  """The error for a folder without images; if it holds what `vit_jax.prepare` reads, it says so."""
  beside = (os.path.join(root, name) for name in sorted(os.listdir(root)))
  for file in itertools.chain(files_below(path), beside):
    if file.lower().endswith((*_ARCHIVES, *_TABLES)):
      is_own_table = file.lower().endswith(_TABLES) and not os.path.basename(file).startswith('metadata.')
      prepared = file if is_own_table else root
      return UserError(
        f'{path} has no images in class sub-folders but {os.path.relpath(file, path)}; prepare its images '
        f'once (vit_jax prepare {prepared} ~/data/NAME/1.0.0) and train on tfds:~/data/NAME/1.0.0.'
      )
  return UserError(
    f'{path} has no images in class sub-folders; put the {_read_endings()} files of each class into a folder '
    f'named after it.'
  )


def _check_classes(part: _Part, known: Sequence[str], where: str, *, complete: bool) -> None:
  """Raises UserError for an unknown class; a class without images is an error if `complete`, or a warning."""
  unknown = sorted(set(part.classes) - set(known))
  folder_layout.check_evaluated(unknown, known, where)
  if unknown:
    raise UserError(
      f'{where} has the class folder {unknown[0]!r}, which is not among the {len(known)} classes of the '
      f'training split; add training images for it, or rename or remove the folder.'
    )
  filled = {part.classes[number] for number in np.unique(part.members)}
  empty = [name for name in known if name not in filled]
  if empty and complete:
    raise UserError(f'Class folder {empty[0]!r} of {where} has no images; add some or remove it.')
  if empty:
    _warn(f'{where} has no images of {len(empty)} classes: {", ".join(empty)}.')


def _check_no_table(folder: pathlib.Path, name: str) -> None:
  """Raises UserError if a table, which may have the classes, lies in a folder beside the only class folder."""
  tables = sorted(file for file in os.listdir(folder) if file.lower().endswith(_TABLES))
  if tables:
    raise UserError(
      f'{folder} has one class folder, {name!r}, and beside it {tables[0]}; if this has the classes, prepare the '
      f'images once (vit_jax prepare {folder / tables[0]} ~/data/NAME/1.0.0) and train on '
      f'tfds:~/data/NAME/1.0.0.'
    )


def _hold_out(
  part: _Part, hashes: np.ndarray, fraction: float, root: pathlib.Path, *, warns: bool
) -> dict[str, _Part]:
  """Divides a folder into 'train' and 'val' by a hash of each path, so that adding files moves no other.

  The image with the highest hash of each class is always trained on, so that no class is only held out. Where
  `fraction` holds out none of a class with two images or more, the one with the lowest hash is held out, and it `warns`
  of that: where 'val' is read, rather than 'train' alone, which a recipe may only count.
  """
  own = hashes[part.numbers]
  highest = np.zeros(len(part.classes), np.uint64)
  np.maximum.at(highest, part.members, own)
  may_be_held = own != highest[part.members]
  held = (own < np.uint64(math.ceil(fraction * 2**64))) & may_be_held
  lowest = highest.copy()
  np.minimum.at(lowest, part.members, own)
  evaluated = np.isin(np.arange(len(part.classes)), part.members[held])
  extra = (own == lowest[part.members]) & may_be_held & ~evaluated[part.members]
  if extra.any() and warns:
    few = [part.classes[number] for number in np.unique(part.members[extra])]
    _warn(
      f'{root}: {len(few)} of {len(part.classes)} classes ({listed(few)}) have so few images that '
      f'config.data.val_fraction {fraction:g} would hold out none; one image of each is held out.'
    )
  held |= extra
  return {'train': _chosen(part, ~held), 'val': _chosen(part, held)}


def _chosen(part: _Part, chosen: np.ndarray) -> _Part:
  return part._replace(numbers=part.numbers[chosen], members=part.members[chosen])
