"""One shard: its images, checked, as an array_record file of TFDS's examples, and a report of it."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator

import tensorflow_datasets as tfds
from array_record.python import array_record_module

from vit_jax.errors import BadImage
from vit_jax.prepare import images, sharding, storage

# Random access to each record. Encoded images cannot be compressed further: zstd takes off less than 1 %.
_OPTIONS = 'group_size:1,uncompressed'


@dataclasses.dataclass(frozen=True)
class Job:
  """A shard to write."""

  path: str
  work: str  # the folder with the plan, and for reports and unfinished files
  split: str
  shard: int
  num_classes: int
  multi_label: bool
  shrinking: images.Shrinking

  @property
  def report_path(self) -> str:
    return storage.join(self.work, 'reports', f'{self.split}-{self.shard}.json')


@dataclasses.dataclass(frozen=True)
class Report:
  """What became of a shard; there is one as soon as the shard is complete."""

  records: int
  record_bytes: int
  sha256: str  # of the file
  bad: list[tuple[str, str]]  # names of images left out, and why


def write(job: Job) -> Report:
  """Writes a shard, then its report; nothing else is shared with other processes.

  Raises:
    OSError: it cannot be written.
    UserError: the place of an image cannot be reached.
  """
  serialized = serializer(features(job.num_classes, job.multi_label))
  records = record_bytes = 0
  bad = []
  with storage.writing(job.path, job.work) as path, _system_errors(job.path):
    writer = array_record_module.ArrayRecordWriter(path, _OPTIONS)
    for item in sharding.items(job.work, job.split, job.shard):
      try:
        image = images.load(item, job.shrinking)
      except BadImage as error:
        bad.append((item.name, _reason(error)))
        continue
      record = serialized(image, item.labels, item.name)
      writer.write(record)
      records, record_bytes = records + 1, record_bytes + len(record)
    writer.close()
    _verify(path, records)
    with open(path, 'rb') as file:
      report = Report(records, record_bytes, hashlib.file_digest(file, 'sha256').hexdigest(), bad)
  with storage.writing(job.report_path, job.work) as path, open(path, 'w') as file:
    json.dump(dataclasses.asdict(report), file)
  return report


def report(job: Job) -> Report:
  """That of a written shard."""
  with storage.open_file(job.report_path) as file:
    return Report(**json.load(file))


def features(classes: int | list[str], multi_label: bool) -> tfds.features.FeaturesDict:
  """What a record is made of: 'image', 'label' or, where an image has several, 'labels', and 'file_name'.

  Args:
    classes: the names, or only how many.
    multi_label: whether an image may have several, or none.
  """
  if isinstance(classes, int):
    label = tfds.features.ClassLabel(num_classes=classes)
  else:
    label = tfds.features.ClassLabel(names=classes)
  labels = {'labels': tfds.features.Sequence(label)} if multi_label else {'label': label}
  image = tfds.features.Image(shape=(None, None, 3))
  return tfds.features.FeaturesDict({'image': image, **labels, 'file_name': tfds.features.Text()})


def serializer(features: tfds.features.FeaturesDict) -> Callable[[bytes, list[int], str], bytes]:
  """(image, labels, name) -> a serialized tf.train.Example, the same bytes in every process."""
  examples = tfds.core.example_serializer.ExampleSerializer(features.get_serialized_info())

  def serialized(image: bytes, labels: list[int], name: str) -> bytes:
    values = {'labels': labels} if 'labels' in features else {'label': labels[0]}
    example = {'image': image, **values, 'file_name': name.encode(errors='surrogateescape')}
    # The order of a protocol buffer's map is otherwise that of a hash seeded by the process.
    return examples.get_tf_example(features.encode_example(example)).SerializeToString(deterministic=True)

  return serialized


@contextlib.contextmanager
def _system_errors(path: str) -> Iterator[None]:
  """Raises OSError for a full disk, of which array_record tells in words only."""
  try:
    yield
  except RuntimeError as error:
    for code in (errno.ENOSPC, errno.EDQUOT):
      if os.strerror(code) in str(error):
        raise OSError(code, os.strerror(code), path) from error
    raise


def _verify(path: str, records: int) -> None:
  """Raises RuntimeError where the file has not all records."""
  reader = array_record_module.ArrayRecordReader(path)
  found = reader.num_records()
  reader.close()
  if found != records:
    raise RuntimeError(f'{path} was written with {found} of {records} records')


def _reason(error: BadImage) -> str:
  """What is wrong with the image, without its name and the remedy."""
  return str(error).removeprefix(f'{error.name} ').rpartition(';')[0]
