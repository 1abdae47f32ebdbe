"""The files that make complete shards a TFDS data set.

TFDS's dataset_info.json, features.json and class names; metadata.json, how the set was prepared, which TFDS
reads as `builder.info.metadata`; bad_images.csv, which images were left out and why; duplicates.csv, which
images are equal; SHA256SUMS, for `sha256sum --check`.
"""

import csv
import hashlib
import pathlib
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow_datasets as tfds
from tensorflow_datasets.core import dataset_info
from tensorflow_datasets.core.splits import SplitDict

from vit_jax.data.sources.tfds_files import BAD_IMAGES, CAPTIONS, CHECKSUMS, DUPLICATES, INFO
from vit_jax.prepare import duplicates, shards, storage
from vit_jax.prepare.shard_plan import Plan


def name_and_version(destination: str) -> tuple[str, str]:
  """The name and version that TFDS has for a data set in a folder.

  '/data/flowers/2.0.0' -> ('flowers', '2.0.0'); '/data/my-flowers' -> ('my_flowers', '1.0.0').
  """
  folder, _, name = destination.rstrip('/').rpartition('/')
  version = '1.0.0'
  if tfds.core.Version.is_valid(name):
    name, version = folder.rpartition('/')[2], name
  name = re.sub(r'\W+', '_', name, flags=re.ASCII).strip('_')
  if not re.match('[A-Za-z]', name):
    name = f'images_{name}'.rstrip('_')
  return name, version


def shard_name(destination: str, split: str, shard: int, count: int) -> str:
  """The file name that TFDS expects of shard number `shard` of the `count` shards of a split."""
  return f'{name_and_version(destination)[0]}-{split}.array_record-{shard:05}-of-{count:05}'


def write(
  destination: str,
  work: str,
  plan: Plan,
  reports: Mapping[str, Sequence[shards.Report]],
  settings: Mapping[str, Any],
  copies: duplicates.Groups,
) -> None:
  """Completes a data set whose shards are written; dataset_info.json, without which it is none, comes last.

  `reports` has those of each split's shards, in order, and `settings` how it was prepared.
  """
  digests = {
    shard_name(destination, split, number, len(parts)): report.sha256
    for split, parts in reports.items()
    for number, report in enumerate(parts)
  }
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    _dataset_info(destination, folder, plan, reports, settings).write_to_directory(folder)
    if any(report.bad for parts in reports.values() for report in parts):
      write_bad_images(folder / BAD_IMAGES, reports)
    if copies:
      duplicates.write_table(folder / DUPLICATES, copies, plan.classes)
    for path in folder.iterdir():
      digests[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    lines = [f'{digest}  {name}\n' for name, digest in sorted(digests.items())]
    (folder / CHECKSUMS).write_text(''.join(lines), encoding='utf-8')
    others = sorted(path.name for path in folder.iterdir() if path.name != INFO)
    for name in [*others, INFO]:
      with storage.atomic_path(storage.join(destination, name), work) as local:
        shutil.copyfile(folder / name, local)


def write_bad_images(path: str | pathlib.Path, reports: Mapping[str, Sequence[shards.Report]]) -> None:
  """Writes a local table of the images that were left out: name, split and reason."""
  rows = sorted(
    (name, split, reason) for split, parts in reports.items() for part in parts for name, reason in part.bad
  )
  with open(path, 'w', newline='', encoding='utf-8', errors='surrogateescape') as file:
    csv.writer(file, lineterminator='\n').writerows([('image', 'split', 'reason'), *rows])


def _dataset_info(
  destination: str,
  folder: pathlib.Path,
  plan: Plan,
  reports: Mapping[str, Sequence[shards.Report]],
  settings: Mapping[str, Any],
) -> tfds.core.DatasetInfo:
  """TFDS's description of the data set, ready to be written to a local folder."""
  name, version = name_and_version(destination)
  what, target = f'of {len(plan.classes)} classes', 'labels' if plan.multi_label else 'label'
  if not plan.classes:
    what, target = 'with captions', CAPTIONS
  identity = dataset_info.DatasetIdentity(
    name=name, version=tfds.core.Version(version), data_dir=str(folder), module_name=''
  )
  info = tfds.core.DatasetInfo(
    builder=identity,
    description=f'Images {what}, prepared by vit_jax.prepare.',
    features=shards.features(plan.classes, plan.multi_label, plan.weighted, plan.captioned),
    supervised_keys=('image', target),
    metadata=tfds.core.MetadataDict(settings),
  )
  info.set_file_format('array_record')
  splits = [
    tfds.core.SplitInfo(
      name=split,
      shard_lengths=[report.records for report in parts],
      num_bytes=sum(report.record_bytes for report in parts),
    )
    for split, parts in reports.items()
  ]
  info.set_splits(SplitDict(splits))
  return info
