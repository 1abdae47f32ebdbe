"""One shard: an array_record file of TFDS examples, written from checked images, and a report of it."""

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]  # C++
from tensorflow_datasets.core import example_serializer

from vit_jax.data.sources.tfds_files import CAPTIONS, WEIGHTS
from vit_jax.foundation import files
from vit_jax.foundation.errors import BadImage
from vit_jax.prepare import duplicates, images, shard_plan, storage

# Groups of one record give random access. Encoded images hardly compress: zstd takes off less than 1 %.
_OPTIONS = 'group_size:1,uncompressed'


@dataclasses.dataclass(frozen=True)
class Job:
  """A shard to write."""

  path: str  # the path or address of its file
  work: str  # the folder with the plan, for reports and for unfinished files
  split: str
  shard: int  # its number in the split
  num_classes: int
  multi_label: bool  # whether an image may have several labels, or none
  shrinking: images.Shrinking  # the size that images are shrunk to
  weighted: bool = False  # whether labels have weights
  captioned: bool = False  # whether images have captions, without which one is bad
  merged: bool = False  # whether copies of an image are merged, by the shard's file of merges

  @property
  def report_path(self) -> str:
    """The path or address of the report, which is there once the shard is complete."""
    return storage.join(reports_folder(self.work), f'{self.split}-{self.shard}.json')


@dataclasses.dataclass(frozen=True)
class Report:
  """What became of a shard's images."""

  records: int  # their number
  record_bytes: int  # their size
  sha256: str  # the digest of the file, in hexadecimal
  bad: list[tuple[str, str]]  # the names of images that were left out, each with the reason
  digests: str = ''  # `duplicates.digest` of each image, in base64
  merged: bool = False  # as of the job
  longest: int = 0  # the most labels that a record has
  captions: int = 0  # of all records
  # Where those of `bad` stand among the job's images, from 0.
  bad_rows: list[int] = dataclasses.field(default_factory=list)


def write(job: Job) -> Report:
  """Writes a shard and then its report, both durably; processes share nothing else.

  OSError where they cannot be written, UserError where the place that an image is in cannot be reached.
  """
  serialize = serializer(features(job.num_classes, job.multi_label, job.weighted, job.captioned))
  records = record_bytes = longest = captions = 0
  bad, bad_rows, digests = [], [], []
  with storage.atomic_path(job.path, job.work) as path, _disk_full_as_oserror(job.path):
    writer = array_record_module.ArrayRecordWriter(path, _OPTIONS)
    for row, item in enumerate(shard_plan.items(job.work, job.split, job.shard, merged=job.merged)):
      try:
        image = images.load(item, job.shrinking)
        if job.captioned and not item.captions:
          raise BadImage(item.name, f'{item.name} has no caption; write one.')
      except BadImage as error:
        bad.append((item.name, _reason(error)))
        bad_rows.append(row)
        continue
      record = serialize(image, item.labels, item.name, item.weights, item.captions)
      digests.append(duplicates.digest(image))
      writer.write(record)
      records += 1
      record_bytes += len(record)
      longest = max(longest, len(item.labels))
      captions += len(item.captions)
    writer.close()
    _verify(path, records)
    with open(path, 'rb') as file:
      digest = hashlib.file_digest(file, 'sha256').hexdigest()
  packed = duplicates.packed(digests)
  report = Report(records, record_bytes, digest, bad, packed, job.merged, longest, captions, bad_rows)
  storage.write_json(job.report_path, dataclasses.asdict(report), job.work)
  return report


def read_report(job: Job) -> Report:
  """The report of a complete shard."""
  return Report(**storage.read_json(job.report_path))


def reports_folder(work: str) -> str:
  """The folder of the reports in a work folder."""
  return storage.join(work, 'reports')


def features(
  classes: int | list[str], multi_label: bool, weighted: bool = False, captioned: bool = False
) -> tfds.features.FeaturesDict:
  """The features of a record: 'image', 'label' (or 'labels', if an image may have several) and 'file_name'.

  If labels have weights, also 'weights', and of images with captions 'captions'; where there are no classes, no label.
  `classes` are the names of the classes, or only their number.
  """
  labels: dict[str, Any] = {}
  if classes:
    names: dict[str, Any] = {'num_classes': classes} if isinstance(classes, int) else {'names': classes}
    label = tfds.features.ClassLabel(**names)
    labels = {'labels': tfds.features.Sequence(label)} if multi_label else {'label': label}
  if captioned:
    labels[CAPTIONS] = tfds.features.Sequence(tfds.features.Text())
  if weighted:
    labels[WEIGHTS] = tfds.features.Sequence(np.float32)
  image = tfds.features.Image(shape=(None, None, 3))
  return tfds.features.FeaturesDict({'image': image, **labels, 'file_name': tfds.features.Text()})


def serializer(features: tfds.features.FeaturesDict) -> Callable[..., bytes]:
  """Makes a function of an encoded image, labels, file name, weights and captions that gives a tf.train.Example.

  Its bytes are the same everywhere.
  """
  specs: Any = features.get_serialized_info()
  examples = example_serializer.ExampleSerializer(specs)

  def serialize(
    image: bytes,
    labels: list[int],
    name: str,
    weights: Sequence[float] = (),
    captions: Sequence[str] = (),
  ) -> bytes:
    values: dict[str, Any] = {'labels': labels} if 'labels' in features else {}
    if 'label' in features:
      values['label'] = labels[0]
    if CAPTIONS in features:
      values[CAPTIONS] = captions
    if WEIGHTS in features:
      values[WEIGHTS] = np.array(weights, np.float32)
    example = {'image': image, **values, 'file_name': name.encode(errors='surrogateescape')}
    # Without `deterministic`, the order of a protocol buffer's map is that of a hash seeded by the process.
    return examples.get_tf_example(features.encode_example(example)).SerializeToString(deterministic=True)

  return serialize


@contextlib.contextmanager
def _disk_full_as_oserror(path: str) -> Iterator[None]:
  """Turns array_record's RuntimeError for a full disk into the OSError that the system had."""
  try:
    yield
  except RuntimeError as error:
    for code in files.DISK_FULL:
      if os.strerror(code) in str(error):
        raise OSError(code, os.strerror(code), path) from error
    raise


def _verify(path: str, records: int) -> None:
  """Raises RuntimeError if the file does not have all records."""
  reader = array_record_module.ArrayRecordReader(path)
  found = reader.num_records()
  reader.close()
  if found != records:
    raise RuntimeError(f'{path} was written with {found} of {records} records')


def _reason(error: BadImage) -> str:
  """The reason in an error's text, without the name before it and the remedy after it."""
  return str(error).removeprefix(f'{error.name} ').rpartition(';')[0]
