"""What goes into which shard, decided once for a preparation and kept in its folder.

The records of a split are ordered by a hash of their names, as those of `folder:` are, so that a slice has
all classes; each shard has an equal share of them. So a shard's content depends on the source alone, and any
process can write any shard.
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
from collections.abc import Sequence

import numpy as np

from vit_jax.data.sources.folder_listing import path_hash
from vit_jax.errors import UserError
from vit_jax.prepare import storage
from vit_jax.prepare.inputs import Image, Listing

MIB = 2**20
# A split has about 128 shards, within these sizes.
_USUAL_SHARDS, _SMALLEST, _LARGEST = 128, 4 * MIB, 512 * MIB
_UNKNOWN_SIZE = 110_000  # bytes: ImageNet's mean
_BUFFERED = 100_000  # lines


@dataclasses.dataclass(frozen=True)
class Split:
  """A split's size."""

  images: int
  shards: int


@dataclasses.dataclass(frozen=True)
class Plan:
  """The splits, and the classes that labels are numbers of."""

  splits: dict[str, Split]
  classes: list[str]
  multi_label: bool


@dataclasses.dataclass(frozen=True)
class Item:
  """A line of a shard's list."""

  name: str
  path: str
  within: int | str | None
  size: int | None
  labels: list[int]


def load(work: str) -> Plan | None:
  """The plan in a folder; None: there is none yet."""
  if not storage.exists(_plan_file(work)):
    return None
  with storage.open_file(_plan_file(work)) as file:
    content = json.load(file)
  splits = {name: Split(**split) for name, split in content.pop('splits').items()}
  return Plan(splits=splits, **content)


def make(source: str, work: str, shard_bytes: int | None) -> Plan:
  """Lists a source, and writes what goes into which shard.

  Args:
    source: see `inputs`.
    work: the folder or address for the plan.
    shard_bytes: about how large the shards shall be; None: by the size of the split.

  Raises:
    UserError: the source cannot be listed, or its labels cannot be used.
  """
  with tempfile.TemporaryDirectory() as folder:
    scratch = pathlib.Path(folder)
    listing = Listing(source, scratch, work)
    census = _Census(listing, source)
    plan = census.plan(shard_bytes)
    _write_lists(listing, plan, census.boundaries(plan), scratch / 'lists', work)
  with storage.writing(_plan_file(work), work) as local, open(local, 'w') as file:
    json.dump(dataclasses.asdict(plan), file)
  return plan


def items(work: str, split: str, shard: int) -> list[Item]:
  """What goes into a shard, in order."""
  with storage.open_file(_list_file(work, split, shard)) as file:
    found = [Item(*json.loads(line)) for line in file]
  return sorted(found, key=lambda item: (path_hash(item.name), item.name))


class _Census:
  """What must be known of all images before any is placed. Eight bytes an image."""

  def __init__(self, listing: Listing, source: str):
    self._source = source
    self._hashes: dict[str, array.array] = {}
    self._bytes: collections.Counter[str] = collections.Counter()
    self._most_labels, self._without_label = 0, None
    classes: dict[str, set[str]] = {}
    for image in listing:
      self._hashes.setdefault(image.split, array.array('Q')).append(path_hash(image.name))
      self._bytes[image.split] += _UNKNOWN_SIZE if image.size is None else image.size
      self._most_labels = max(self._most_labels, len(image.labels))
      if not image.labels:
        self._without_label = self._without_label or image.name
      classes.setdefault(image.split, set()).update(image.labels)
    self._classes = listing.sorted_classes(set().union(*classes.values()))
    self._check(classes)

  def plan(self, shard_bytes: int | None) -> Plan:
    splits = {}
    for name in sorted(self._hashes):
      images, total = len(self._hashes[name]), self._bytes[name]
      target = shard_bytes or min(max(total / _USUAL_SHARDS, _SMALLEST), _LARGEST)
      splits[name] = Split(images, min(max(math.ceil(total / target), 1), images))
    return Plan(splits, self._classes, self._most_labels > 1)

  def boundaries(self, plan: Plan) -> dict[str, list[int]]:
    """The hash that each shard but the first of a split begins with."""
    result = {}
    for name, split in plan.splits.items():
      ordered = np.sort(np.frombuffer(self._hashes[name], np.uint64))
      result[name] = ordered[[n * split.images // split.shards for n in range(1, split.shards)]].tolist()
    return result

  def _check(self, classes: dict[str, set[str]]) -> None:
    if not self._classes:
      raise UserError(f'{self._source} lists no labelled images; check it.')
    if self._without_label and self._most_labels == 1:
      raise UserError(f'{self._source} gives {self._without_label} no label; fill it in, or remove the line.')
    for name in self._classes:
      if name != name.strip() or not name.isprintable():
        raise UserError(f'{self._source} has a class called {name!r}; rename it, to print in one line.')
    for split, known in classes.items():
      if lacking := sorted(known - classes.get('train', known)):
        logging.warning(
          '%s has %d classes in %s that train lacks, such as %s.',
          self._source,
          len(lacking),
          split,
          lacking[0],
        )


def _write_lists(
  listing: Listing, plan: Plan, boundaries: dict[str, list[int]], scratch: pathlib.Path, work: str
) -> None:
  """Writes each shard's list, through local files, since some places cannot be appended to."""
  numbers = {name: number for number, name in enumerate(plan.classes)}
  scratch.mkdir()
  lines: dict[pathlib.Path, list[str]] = collections.defaultdict(list)
  for count, image in enumerate(listing, start=1):
    shard = bisect.bisect_right(boundaries[image.split], path_hash(image.name))
    lines[scratch / f'{image.split}-{shard}'].append(_line(image, numbers))
    if count % _BUFFERED == 0:
      _append(lines)
  _append(lines)
  for name, split in plan.splits.items():
    for shard in range(split.shards):
      part = scratch / f'{name}-{shard}'
      part.touch()  # hashes may be alike, and a shard empty
      with storage.writing(_list_file(work, name, shard), work) as local:
        shutil.move(part, local)


def _line(image: Image, numbers: dict[str, int]) -> str:
  labels = sorted(numbers[label] for label in image.labels)
  return json.dumps(dataclasses.astuple(Item(image.name, image.path, image.within, image.size, labels)))


def _append(lines: dict[pathlib.Path, Sequence[str]]) -> None:
  for path, part in lines.items():
    with open(path, 'a') as file:
      file.write(''.join(line + '\n' for line in part))
  lines.clear()


def _plan_file(work: str) -> str:
  return storage.join(work, 'plan.json')


def _list_file(work: str, split: str, shard: int) -> str:
  return storage.join(work, 'lists', f'{split}-{shard}.jsonl')
