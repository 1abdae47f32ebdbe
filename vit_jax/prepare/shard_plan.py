"""The plan of a preparation: which image goes into which shard, decided once and kept in the work folder.

The records of a split are ordered by a hash of their names, as those of `folder:` are, so that a slice has
images of all classes. Each shard holds an equal share of them. So the content of a shard depends on the
source alone, and any process can write any shard.
"""

import array
import bisect
import collections
import dataclasses
import json
import logging
import math
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.data.sources.folder_layout import check_class_names
from vit_jax.data.sources.folder_listing import path_hash
from vit_jax.foundation.errors import UserError
from vit_jax.prepare import storage
from vit_jax.prepare.listing import Listing
from vit_jax.prepare.selection import EVERYTHING, Selection
from vit_jax.prepare.source_image import SourceImage
from vit_jax.prepare.tables import USUAL_COLUMNS, Columns

_log = logging.getLogger(__name__)

MIB = 2**20
# A split has about 128 shards, as long as their sizes are within these bounds (bytes).
_USUAL_SHARDS, _SMALLEST_SHARD, _LARGEST_SHARD = 128, 4 * MIB, 512 * MIB
_UNKNOWN_SIZE = 110_000  # bytes; the mean of ImageNet's files
_BUFFERED_LINES = 100_000


@dataclasses.dataclass(frozen=True)
class Split:
  """The size of a split."""

  images: int
  shards: int


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a preparation writes."""

  splits: dict[str, Split]  # name -> size
  classes: list[str]  # label -> name
  multi_label: bool  # whether an image may have several labels, or none
  weighted: bool = False  # whether labels have weights
  captioned: bool = False  # whether images have captions; there may then be no classes


@dataclasses.dataclass(frozen=True)
class Item:
  """An image of a shard: a `SourceImage` with labels as numbers."""

  name: str
  path: str
  location: int | str | None
  size: int | None
  labels: list[int]
  weights: list[float] = dataclasses.field(default_factory=list)
  captions: list[str] = dataclasses.field(default_factory=list)


def load(work: str) -> Plan | None:
  """The plan in a work folder; None if there is none yet."""
  if not storage.exists(plan_path(work)):
    return None
  content = storage.read_json(plan_path(work))
  splits = {name: Split(**split) for name, split in content.pop('splits').items()}
  return Plan(splits=splits, **content)


def make(
  source: str,
  work: str,
  shard_bytes: int | None,
  *,
  columns: Columns = USUAL_COLUMNS,
  selection: Selection = EVERYTHING,
  lists: bool = False,
  allow_cut: bool = False,
  listed: Callable[[int], None] | None = None,
) -> Plan:
  """Lists a source, and writes the plan and the list of each shard's images.

  Args:
    shard_bytes: about the size of a shard; None: it follows from the size of the split.
    lists: whether every image has a list of labels, also if none has several.
    source, work, columns, selection, allow_cut, listed: see `Listing`.

  Raises:
    UserError: the source cannot be listed, its labels cannot be used, or images have no captions and not `allow_cut`.
  """
  with tempfile.TemporaryDirectory() as folder:
    scratch = pathlib.Path(folder)
    listing = Listing(
      source, scratch, work, columns=columns, selection=selection, allow_cut=allow_cut, listed=listed
    )
    census = _Census(listing, source, selection, columns.caption, allow_missing=allow_cut)
    plan = census.plan(shard_bytes, lists=lists)
    _write_lists(listing, census.labels, plan, census.boundaries(plan), scratch / 'lists', work)
  storage.write_json(plan_path(work), dataclasses.asdict(plan), work)  # last: with it the plan is complete
  return plan


def items(work: str, split: str, shard: int, *, merged: bool = False) -> list[Item]:
  """The images of a shard, in the order of its records; several may have the same name.

  With `merged`, the shard's file of merges says which images are left out, and the labels and captions of others.
  """
  with storage.open_file(_list_path(work, split, shard)) as file:
    found = [Item(*json.loads(line)) for line in file]
  found.sort(key=lambda item: (path_hash(item.name), item.name))
  if not merged:
    return found
  changes: dict[str, dict[str, Any] | None] = storage.read_json(merges_path(work, split, shard))
  merged_into = [changes.get(str(row), {}) for row in range(len(found))]
  return [
    dataclasses.replace(item, **own) for item, own in zip(found, merged_into, strict=True) if own is not None
  ]


def plan_path(work: str) -> str:
  """The file of the plan in a work folder."""
  return storage.join(work, 'plan.json')


def merges_path(work: str, split: str, shard: int) -> str:
  """The file of a shard's merges: row of an image in `items` -> its labels and captions; null: another one has them."""
  return storage.join(work, 'merges', f'{split}-{shard}.json')


class _Census:
  """What must be known of all images before the first is assigned to a shard. Takes eight bytes an image.

  Attributes:
    labels: what images call a class -> its label.
  """

  def __init__(
    self,
    listing: Listing,
    source: str,
    selection: Selection,
    caption: str | None = None,
    *,
    allow_missing: bool = False,
  ):
    """`caption` is the column of the captions, None: there are none; `allow_missing`: images may lack them.

    Raises UserError where the labels or captions of the images cannot be used.
    """
    self._source, self._captioned = source, caption is not None
    self._hashes: dict[str, array.array] = {}  # split -> uint64
    self._bytes: collections.Counter[str] = collections.Counter()
    self._most_labels, self._weighted = 0, False
    self._unlabelled: str | None = None  # the first image without a label
    without, first_without = 0, ''  # the images without a caption
    classes: dict[str, set[str]] = {}
    for image in listing:
      self._hashes.setdefault(image.split, array.array('Q')).append(path_hash(image.name))
      self._bytes[image.split] += _UNKNOWN_SIZE if image.size is None else image.size
      self._most_labels = max(self._most_labels, len(image.labels))
      self._weighted = self._weighted or bool(image.weights)
      if not image.labels and self._unlabelled is None:
        self._unlabelled = image.name
      if self._captioned and not image.captions:
        without, first_without = without + 1, first_without or image.name
      classes.setdefault(image.split, set()).update(image.labels)
    found = set().union(*classes.values())
    own_names, self._classes = listing.ordered_classes(found)
    self.labels = {name: label for label, name in enumerate(own_names)}
    self._check(classes)
    if without and not allow_missing:
      raise UserError(
        f'{without:,} of {sum(map(len, self._hashes.values())):,} images of {source} have no caption {caption!r}, '
        f'such as {first_without}; correct --caption_column or the captions, or leave these images out with '
        '--bad_images=skip.'
      )
    self._check_chosen(found, selection)

  def plan(self, shard_bytes: int | None, *, lists: bool) -> Plan:
    """The plan for shards of about `shard_bytes`; None: the usual number of shards."""
    splits = {}
    for name in sorted(self._hashes):
      images, total = len(self._hashes[name]), self._bytes[name]
      target = shard_bytes or min(max(total / _USUAL_SHARDS, _SMALLEST_SHARD), _LARGEST_SHARD)
      shards = max(math.ceil(total / target), 1)
      splits[name] = Split(images, min(shards, images))
    if lists and self._weighted:
      raise UserError(f'{self._source} has weights of labels, which are not merged; leave out --duplicates.')
    if lists and self._captioned and self._classes:
      raise UserError(
        f'{self._source} has captions and classes, of which --duplicates=merge makes lists; leave out --label_column.'
      )
    multi_label = bool(self._classes) and (lists or self._weighted or self._most_labels > 1)
    return Plan(splits, self._classes, multi_label, self._weighted, self._captioned)

  def boundaries(self, plan: Plan) -> dict[str, list[int]]:
    """For each split, the hashes at which its shards begin, without the first shard."""
    result = {}
    for name, split in plan.splits.items():
      ordered = np.sort(np.frombuffer(self._hashes[name], np.uint64))
      firsts = [shard * split.images // split.shards for shard in range(1, split.shards)]
      result[name] = ordered[firsts].tolist()
    return result

  def _check(self, classes: Mapping[str, set[str]]) -> None:
    if not self._classes and not (self._captioned and self._hashes):
      raise UserError(f'{self._source} lists no {"" if self._captioned else "labelled "}images; check it.')
    if self._unlabelled is not None and self._most_labels == 1:
      raise UserError(f'{self._source} gives {self._unlabelled} no label; fill it in, or remove the line.')
    check_class_names(self._classes, self._source)
    for split, known in classes.items():
      unknown = sorted(known - classes.get('train', known))
      if unknown:
        _log.warning(
          '%s has %d classes in %s that train lacks, such as %s.',
          self._source,
          len(unknown),
          split,
          unknown[0],
        )

  def _check_chosen(self, found: set[str], selection: Selection) -> None:
    missing = sorted((selection.classes or frozenset()) - found)
    if selection.num_classes not in (None, len(self._classes)):
      raise UserError(
        f'{self._source} has {len(self._classes):,} classes and not {selection.num_classes:,}; check it, or '
        f'prepare it under another name: vit_jax prepare {self._source} /path/to/NAME/1.0.0'
      )
    if missing:
      _log.warning(
        '%s has no images of %d of the chosen classes, such as %s.', self._source, len(missing), missing[0]
      )


def _write_lists(
  listing: Listing,
  labels: Mapping[str, int],
  plan: Plan,
  boundaries: Mapping[str, list[int]],
  scratch: pathlib.Path,
  work: str,
) -> None:
  """Writes each shard's list, by way of local files, since object stores cannot append."""
  scratch.mkdir()
  lines: dict[pathlib.Path, list[str]] = collections.defaultdict(list)
  for count, image in enumerate(listing, start=1):
    shard = bisect.bisect_right(boundaries[image.split], path_hash(image.name))
    lines[scratch / f'{image.split}-{shard}'].append(_line(image, labels))
    if count % _BUFFERED_LINES == 0:
      _append(lines)
      lines.clear()
  _append(lines)
  for name, split in plan.splits.items():
    for shard in range(split.shards):
      part = scratch / f'{name}-{shard}'
      part.touch()  # a shard is empty if hashes are equal
      with storage.atomic_path(_list_path(work, name, shard), work) as local:
        shutil.move(part, local)


def _line(image: SourceImage, numbers: Mapping[str, int]) -> str:
  weights = image.weights or [1.0] * len(image.labels)
  pairs = list(zip((numbers[label] for label in image.labels), weights, strict=True))
  if not image.weights:  # else they stay in the order of the source
    pairs.sort()
  labels, weights = [label for label, _ in pairs], [weight for _, weight in pairs]
  item = [image.name, image.path, image.location, image.size, labels, weights, image.captions]
  return json.dumps(item) + '\n'


def _append(lines: Mapping[pathlib.Path, Sequence[str]]) -> None:
  for path, part in lines.items():
    with open(path, 'a', encoding='utf-8') as file:
      file.writelines(part)


def _list_path(work: str, split: str, shard: int) -> str:
  return storage.join(work, 'lists', f'{split}-{shard}.jsonl')
