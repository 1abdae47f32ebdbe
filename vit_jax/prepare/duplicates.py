"""Finds images that are there more than once, by their bytes, and merges their labels and captions.

A digest has 64 bits: among 14 million different images, one pair is alike by chance once in 190,000 sets.
"""

import base64
import collections
import csv
import hashlib
import itertools
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.prepare import shard_plan, storage

_MERGES = 'merges.json'  # in the work folder


class Copy(NamedTuple):
  """An image of a group of equal ones."""

  # Which others may have too: a table names a file once for each class, a tar holds a member twice.
  name: str
  split: str
  shard: int  # its number in the split
  labels: list[int]  # its classes
  row: int  # its place in the shard, from 0, among all images that the shard's list has
  captions: Sequence[str] = ()


Groups = list[list[Copy]]


def digest(image: bytes) -> int:
  """64 bits that depend on the bytes only."""
  return int.from_bytes(hashlib.blake2b(image, digest_size=8).digest())


def packed(digests: Sequence[int]) -> str:
  """Digests as text for a report."""
  return base64.b64encode(np.array(digests, '<u8').tobytes()).decode()


def unpacked(text: str) -> np.ndarray:
  """uint64 (images,), from `packed`."""
  return np.frombuffer(base64.b64decode(text), '<u8')


def repeated(digests: Sequence[np.ndarray]) -> np.ndarray:
  """The sorted digests that are there more than once, uint64."""
  found, counts = np.unique(np.concatenate(digests), return_counts=True)
  return found[counts > 1]


def groups(work: str, shards: Mapping[tuple[str, int], tuple[str, Collection[int]]]) -> Groups:
  """The images that are equal, group by group, each sorted by split and name.

  Args:
    work: the folder with the plan.
    shards: (split, number) of each shard -> the digests of its images (`packed`), and the rows of those that
      have none since they are bad.
  """
  digests = {shard: unpacked(text) for shard, (text, _) in shards.items()}
  wanted = repeated(list(digests.values()))
  found: dict[int, list[Copy]] = collections.defaultdict(list)
  for (split, number), (_, bad) in shards.items():
    own = digests[split, number]
    places = np.flatnonzero(np.isin(own, wanted))
    if not len(places):
      continue
    good = [(row, item) for row, item in enumerate(shard_plan.items(work, split, number)) if row not in bad]
    for place in places:
      row, item = good[place]
      found[int(own[place])].append(Copy(item.name, split, number, item.labels, row, item.captions))
  return sorted(sorted(group, key=lambda copy: (copy.split, copy.name)) for group in found.values())


def write_table(path: str | pathlib.Path, found: Groups, classes: Sequence[str]) -> None:
  """Writes a local table of the images of each group: its number, name, split and classes."""
  with open(path, 'w', newline='', encoding='utf-8', errors='surrogateescape') as file:
    table = csv.writer(file, lineterminator='\n')
    table.writerow(('group', 'image', 'split', 'classes'))
    for number, group in enumerate(found):
      for copy in group:
        table.writerow((number, copy.name, copy.split, ';'.join(classes[label] for label in copy.labels)))


def save_merges(work: str, found: Groups) -> None:
  """Writes down that the copies within a split become one record with the labels and captions of all."""
  merges: dict[tuple[str, int], dict[int, Any]] = collections.defaultdict(dict)
  for group in found:
    for _, same_split in itertools.groupby(group, key=lambda copy: copy.split):
      first, *others = same_split
      if others:
        copies = (first, *others)
        merges[first.split, first.shard][first.row] = {
          'labels': sorted({label for copy in copies for label in copy.labels}),
          'captions': list(dict.fromkeys(text for copy in copies for text in copy.captions)),
        }
      for copy in others:
        merges[copy.split, copy.shard][copy.row] = None
  for (split, shard), changes in merges.items():
    storage.write_json(shard_plan.merges_path(work, split, shard), changes, work)
  content = {'groups': found, 'shards': sorted(merges)}
  storage.write_json(storage.join(work, _MERGES), content, work)  # last: with it the merges are complete


def load_merges(work: str) -> tuple[Groups, set[tuple[str, int]]] | None:
  """The groups that `save_merges` wrote down and the shards that have some; None: it did not."""
  path = storage.join(work, _MERGES)
  if not storage.exists(path):
    return None
  content = storage.read_json(path)
  found = [[Copy(*copy) for copy in group] for group in content['groups']]
  return found, {(split, shard) for split, shard in content['shards']}
