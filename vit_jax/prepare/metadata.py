"""What makes written shards a TFDS data set, and says where they come from.

TFDS's dataset_info.json, features.json and class names; metadata.json (how the set was prepared, as
`builder.info.metadata`); bad_images.csv (what was left out and why); SHA256SUMS (for `sha256sum --check`).
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

from vit_jax.prepare import shards, storage
from vit_jax.prepare.sharding import Plan

INFO = 'dataset_info.json'
METADATA = 'metadata.json'
BAD_IMAGES = 'bad_images.csv'
_CHECKSUMS = 'SHA256SUMS'


def name_and_version(destination: str) -> tuple[str, str]:
  """'/data/flowers/2.0.0' -> ('flowers', '2.0.0'); '/data/my-flowers' -> ('my_flowers', '1.0.0')."""
  folder, _, last = destination.rstrip('/').rpartition('/')
  name, version = (folder.rpartition('/')[2], last) if tfds.core.Version.is_valid(last) else (last, '1.0.0')
  name = re.sub(r'\W+', '_', name, flags=re.ASCII).strip('_')
  return name if re.match('[A-Za-z]', name) else f'images_{name}'.rstrip('_'), version


def shard_name(destination: str, split: str, shard: int, count: int) -> str:
  """As TFDS calls it."""
  return f'{name_and_version(destination)[0]}-{split}.array_record-{shard:05}-of-{count:05}'


def write(
  destination: str,
  work: str,
  plan: Plan,
  reports: Mapping[str, Sequence[shards.Report]],
  settings: Mapping[str, Any],
) -> None:
  """Completes a data set whose shards are written.

  Args:
    destination: its folder or address.
    work: the folder for unfinished files.
    plan: its splits and classes.
    reports: of each split's shards, in order.
    settings: how it was prepared.
  """
  sums = {
    shard_name(destination, split, number, len(parts)): report.sha256
    for split, parts in reports.items()
    for number, report in enumerate(parts)
  }
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    _info(name_and_version(destination), folder, plan, reports, settings).write_to_directory(folder)
    if any(report.bad for parts in reports.values() for report in parts):
      write_bad_images(folder / BAD_IMAGES, reports)
    for path in folder.iterdir():
      sums[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    text = ''.join(f'{digest}  {name}\n' for name, digest in sorted(sums.items()))
    (folder / _CHECKSUMS).write_text(text)
    # With the last one, the data set can be read.
    for path in sorted(folder.iterdir(), key=lambda path: (path.name == INFO, path.name)):
      with storage.writing(storage.join(destination, path.name), work) as local:
        shutil.copyfile(path, local)


def write_bad_images(path: str | pathlib.Path, reports: Mapping[str, Sequence[shards.Report]]) -> None:
  """Writes a table of the images left out, and why."""
  rows = sorted(
    (name, split, reason) for split, parts in reports.items() for part in parts for name, reason in part.bad
  )
  with open(path, 'w', newline='', errors='surrogateescape') as file:
    csv.writer(file, lineterminator='\n').writerows([('image', 'split', 'reason'), *rows])


def _info(
  name_and_version: tuple[str, str],
  folder: pathlib.Path,
  plan: Plan,
  reports: Mapping[str, Sequence[shards.Report]],
  settings: Mapping[str, Any],
) -> tfds.core.DatasetInfo:
  name, version = name_and_version
  identity = tfds.core.dataset_info.DatasetIdentity(
    name=name, version=tfds.core.Version(version), data_dir=str(folder), module_name=''
  )
  features = shards.features(plan.classes, plan.multi_label)
  splits = [
    tfds.core.SplitInfo(
      name=split,
      shard_lengths=[report.records for report in parts],
      num_bytes=sum(report.record_bytes for report in parts),
    )
    for split, parts in reports.items()
  ]
  info = tfds.core.DatasetInfo(
    builder=identity,
    description=f'Images of {len(plan.classes)} classes, prepared by vit_jax.prepare.',
    features=features,
    supervised_keys=('image', 'labels' if plan.multi_label else 'label'),
    metadata=tfds.core.MetadataDict(settings),
  )
  info.set_file_format('array_record')
  info.set_splits(tfds.core.splits.SplitDict(splits))
  return info
