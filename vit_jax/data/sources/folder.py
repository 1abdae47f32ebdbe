"""A person's own images: `folder:/path`, one sub-folder per class.

Either `train/CLASS/…` beside `val/CLASS/…` (or `validation/`) and `test/CLASS/…`, or `CLASS/…` directly, of
which a share is held out as 'val'. Folders within a class belong to it; hidden files are ignored.
"""

import logging
import math
import os
import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.data.sources.base import Record, check_split, select
from vit_jax.data.sources.folder_listing import EXTENSIONS, Listing, folders_in, list_images
from vit_jax.errors import UserError

SPLITS = {'train': 'train', 'val': 'val', 'validation': 'val', 'test': 'test'}  # folder -> split


class _Part(NamedTuple):
  """The images of one split."""

  classes: tuple[str, ...]  # its class folders, sorted
  numbers: np.ndarray  # int64 (images,), in the listing
  members: np.ndarray  # int64 (images,), the number of each one's class in `classes`


class FolderSource:
  """The images of one split, ordered by a hash of their path, so that a slice of it has all classes."""

  def __init__(self, root: str, split: str, *, val_fraction: float, class_names: Sequence[str] | None = None):
    """Lists the files (`listing.py`); opens none.

    Args:
      root: the folder.
      split: 'train', 'val' (or 'validation') or 'test', with slices.
      val_fraction: the share held out as 'val' where the root has no folders of splits.
      class_names: label -> name; None: the training split's classes, sorted.

    Raises:
      UserError: no such folder or split, no images, or a class that the training split lacks.
    """
    self._root = pathlib.Path(root).expanduser()
    if not self._root.is_dir():
      raise UserError(f'There is no folder {root}; give the path of one that has a sub-folder per class.')
    split = re.sub(r'\bvalidation\b', 'val', split)
    self._listing, parts, train_classes = _splits(self._root, split, val_fraction)
    self.class_names = tuple(class_names or train_classes)
    numbers_of = {name: number for number, name in enumerate(self.class_names)}
    ordered: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, part in parts.items():
      complete = name == 'train' and class_names is None
      _check_classes(part, self.class_names, f'{root} ({name})', complete=complete)
      labels = np.array([numbers_of[name] for name in part.classes], np.int32)
      order = np.argsort(self._listing.hashes[part.numbers], kind='stable')
      ordered[name] = part.numbers[order], labels[part.members[order]]
    ranges = select(split, {name: len(part.numbers) for name, part in parts.items()}, root)
    self._numbers = np.concatenate([ordered[name][0][first:last] for name, first, last in ranges])
    self._labels = np.concatenate([ordered[name][1][first:last] for name, first, last in ranges])

  def __len__(self) -> int:
    return len(self._numbers)

  def __getitem__(self, index: int) -> Record:
    """Raises UserError for a file that cannot be read."""
    path = os.path.join(self._root, self._listing.path(self._numbers[index]))
    try:
      with open(path, 'rb') as file:
        return Record(file.read(), int(self._labels[index]), path)
    except OSError as error:
      raise UserError(f'{path} cannot be read ({error.strerror}); restore or remove it.') from error

  def labels(self) -> np.ndarray:
    return self._labels


def _splits(
  root: pathlib.Path, split: str, val_fraction: float
) -> tuple[Listing, dict[str, _Part], Sequence[str]]:
  """The listing, the splits that `split` names, and the sorted classes of the training split."""
  folders = {name: SPLITS[name] for name in folders_in(root) if name in SPLITS}
  if not folders:
    check_split(split, ('train', 'val'), str(root))
    listing = list_images(root, [''])
    everything = _part(listing, '', root)
    return listing, _hold_out(everything, listing.hashes, val_fraction), everything.classes
  if len(set(folders.values())) < len(folders):
    raise UserError(f'{root} has both val/ and validation/; remove or rename one of them.')
  check_split(split, list(folders.values()), str(root))
  wanted = re.findall(r'\w+', split)
  tops = {top: name for top, name in folders.items() if name in wanted or 'all' in wanted}
  listing = list_images(root, list(tops))
  parts = {name: _part(listing, top, root / top) for top, name in tops.items()}
  return listing, parts, folders_in(root / 'train') if 'train' in folders else ()


def _part(listing: Listing, top: str, path: pathlib.Path) -> _Part:
  """The images of the class folders in `top`; warns of how many other files there are."""
  prefix = f'{top}/' if top else ''
  classes: dict[str, int] = {}
  folder_classes = np.full(len(listing.folders), -1)
  for number, folder in enumerate(listing.folders):
    if folder != top and folder.startswith(prefix):
      name = folder[len(prefix) :].split('/')[0]
      folder_classes[number] = classes.setdefault(name, len(classes))
  members = folder_classes[listing.parents]
  numbers = np.flatnonzero(members >= 0)
  if not len(numbers):
    raise UserError(
      f'{path} has no images in class sub-folders; put the {", ".join(e[1:] for e in EXTENSIONS)} files of '
      f'each class into a folder named after it.'
    )
  others = np.where(folder_classes >= 0, listing.others, 0)
  if others.any():
    example = os.path.join(path.parent if top else path, listing.folders[others.argmax()])
    count = int(others.sum())
    logging.warning('%s: ignored %d files that are not images, most in %s.', path, count, example)
  return _Part(tuple(classes), numbers, members[numbers])


def _check_classes(part: _Part, known: Sequence[str], where: str, *, complete: bool) -> None:
  """Raises UserError for an unknown class; one without images is an error if `complete`, or a warning."""
  unknown = sorted(set(part.classes) - set(known))
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
    logging.warning('%s has no images of %d classes: %s.', where, len(empty), ', '.join(empty))


def _hold_out(part: _Part, hashes: np.ndarray, fraction: float) -> dict[str, _Part]:
  """Splits 'train' and 'val', by a hash of each path, so that adding files moves no other.

  The image of highest hash of a class is always trained on, so that no class is only held out.
  """
  own = hashes[part.numbers]
  last = np.zeros(len(part.classes), np.uint64)
  np.maximum.at(last, part.members, own)
  held = (own < np.uint64(math.ceil(fraction * 2**64))) & (own != last[part.members])
  split = lambda chosen: _Part(part.classes, part.numbers[chosen], part.members[chosen])
  return {'train': split(~held), 'val': split(held)}
