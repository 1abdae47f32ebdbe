"""TFDS data sets prepared as array_record, read with random access and without TensorFlow."""

import bisect
import difflib
import hashlib
import itertools
import os
import resource
from collections.abc import Sequence
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
import tqdm

from vit_jax import cache
from vit_jax.data.sources.base import Record, bad_split, check_split, label_map
from vit_jax.data.sources.tfds_features import Reading
from vit_jax.errors import UserError

_INFO = 'dataset_info.json'
_SCANNED_TOGETHER = 1000  # records of which a thread reads the labels in a row
_SCAN_THREADS = 16  # more than processors: on a network they wait
_OTHER_FILES = 512  # that a run may have open beside its data


class PreparedSource:
  """One split of a prepared TFDS data set; images stay encoded."""

  def __init__(
    self,
    builder: tfds.core.DatasetBuilder,
    split: str,
    class_names: Sequence[str] | None,
    reading: Reading,
  ):
    """
    Args:
      builder: of prepared data, from `builder_of`.
      split: with TFDS's slices and sums.
      class_names: label -> name; None: the data set's.
      reading: what of a record is the image and what its class.

    Raises:
      UserError: no such split, or data without random access.
    """
    name = builder.info.full_name
    if not any(form.value in ('array_record', 'parquet') for form in builder.info.available_file_formats()):
      raise UserError(
        f'{builder.data_dir} is prepared as {builder.info.file_format.value}, which has no random access; '
        f'convert it, where TensorFlow is installed, with: tfds convert_format '
        f'--dataset_version_dir={builder.data_dir} --out_file_format=array_record'
      )
    check_split(split, builder.info.splits, name)
    # Other images, such as masks, would be decoded for nothing.
    images = [
      key for key, feature in builder.info.features.items() if isinstance(feature, tfds.features.Image)
    ]
    decoders = {key: tfds.decode.SkipDecoding() for key in images}
    try:
      self._records = builder.as_data_source(split=split, decoders=decoders)
    except (ValueError, NotImplementedError) as error:
      raise bad_split(split, name, error) from None
    if not len(self._records):
      raise UserError(f'Split {split!r} of {name} has no records; choose another.')
    self.class_names = tuple(class_names or reading.names)
    self._labels = label_map(reading.names, class_names, name)
    self._reading, self._name = reading, f'{name}/{split} record'
    instructions = builder.info.splits[split].file_instructions
    self._files = [instruction.filename for instruction in instructions]
    self._file_ends = list(itertools.accumulate(instruction.take for instruction in instructions))
    _allow_open_files(len(self._files), name)

  def __len__(self) -> int:
    return len(self._records)

  def __getitem__(self, index: int) -> Record:
    """Raises UserError for a record that cannot be read or has no label (TFDS's -1)."""
    record = self._read(index)
    labels = self._labels[self._numbers(record, index)]
    name = f'{self._name} {index}'
    file = self._reading.file_name(record)
    return Record(
      self._reading.image(record),
      labels if self._reading.lists else int(labels),
      f'{name} ({file})' if file else name,
    )

  def labels(self) -> np.ndarray:
    """As `Source.labels`. The first time it reads all records; the result is kept in the user's cache."""
    key = f'labels/{self._fingerprint()}'
    arrays = cache.load_arrays(key)
    if arrays is None:
      arrays = {'numbers': self._all_numbers()}
      cache.save_arrays(key, arrays)
    numbers = arrays['numbers']
    return np.where(numbers < 0, -1, self._labels[numbers]).astype(np.int32)

  def _read(self, index: int) -> dict[str, Any]:
    try:
      record = self._records[index]
      if self._reading.is_empty(record):
        raise ValueError('it is empty')  # what a file that was cut off gives
      return record
    except Exception as error:  # array_record and protocol buffers name no types
      file = self._files[bisect.bisect_right(self._file_ends, index)]
      reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip('.')
      raise UserError(f'{self._name} {index} cannot be read ({reason}); restore {file}.') from error

  def _numbers(self, record: dict[str, Any], index: int) -> np.ndarray:
    """int64 () or (classes,): the record's classes as the data set numbers them."""
    numbers = np.array(self._reading.label(record), np.int64)
    if (numbers < 0).any():
      raise UserError(f'{self._name} {index} has no label; choose a split with labels.')
    return numbers

  def _all_numbers(self) -> np.ndarray:
    """int32 (records,), or (records, longest list) padded with -1."""

    def scan(start: int) -> np.ndarray:
      span = range(start, min(start + _SCANNED_TOGETHER, len(self)))
      found = [self._numbers(self._read(index), index) for index in span]
      return _padded(found) if self._reading.lists else np.array(found, np.int32)

    starts = range(0, len(self), _SCANNED_TOGETHER)
    with futures.ThreadPoolExecutor(_SCAN_THREADS) as pool:
      title = f'Reading the class of each {self._name}'
      parts = list(tqdm.tqdm(pool.map(scan, starts), title, len(starts), disable=None))
    return _padded(list(itertools.chain(*parts))) if self._reading.lists else np.concatenate(parts)

  def _fingerprint(self) -> str:
    """Another one where another file, or another feature of it, is read, or a file has changed."""
    states = [(file, os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in self._files]
    text = repr((self._name, self._reading.key, states))
    return hashlib.blake2b(text.encode(errors='surrogateescape'), digest_size=16).hexdigest()


def _padded(lists: Sequence[np.ndarray]) -> np.ndarray:
  """int32 (lists, longest): each list's numbers, then -1."""
  padded = np.full((len(lists), max(map(len, lists))), -1, np.int32)
  for row, numbers in zip(padded, lists, strict=True):
    row[: len(numbers)] = numbers
  return padded


def _allow_open_files(count: int, name: str) -> None:
  """Lets this process open so many more: each one read from stays open, and the limit may be as low as 1,024.

  Raises:
    UserError: not even the hard limit suffices.
  """
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  needed = count + _OTHER_FILES
  if hard != resource.RLIM_INFINITY and hard < needed:
    raise UserError(
      f'{name} has {count} files, and a process here may open {hard}; raise that (ulimit -Hn) to {needed}.'
    )
  if soft != resource.RLIM_INFINITY:
    more = soft + count if hard == resource.RLIM_INFINITY else min(soft + count, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))


def builder_of(name: str) -> tfds.core.DatasetBuilder:
  """The builder of prepared data.

  Args:
    name: a data set, as TFDS writes it ('cifar10', 'imagenet2012', 'name/config:1.0.0'), in TFDS_DATA_DIR or
      ~/tensorflow_datasets; or the path (with a '/' or '~' first) of a prepared directory.

  Raises:
    UserError: no such data set, or not prepared.
  """
  if name[0] in '/~.' or '://' in name:
    return _builder_from_directory(name)
  data_dir = os.environ.get('TFDS_DATA_DIR', '~/tensorflow_datasets')
  folder = tfds.core.Path(data_dir).expanduser()
  prepared = sorted(
    path.parent.relative_to(folder).as_posix()
    for pattern in ('*/*', '*/*/*')
    for path in folder.glob(f'{pattern}/{_INFO}')
  )
  try:
    builder = tfds.builder(name, data_dir=str(folder))
  except tfds.core.DatasetNotFoundError:
    raise _unknown(name, data_dir, prepared) from None
  except (AssertionError, ValueError, ImportError, OSError) as error:
    reason = str(error).strip().splitlines()[0].rstrip('.')
    raise UserError(f'tfds:{name} cannot be opened ({reason}); check its name and config.') from error
  if not builder.is_prepared():
    # Written as a name with its version: 'data_set/config:1.0.0'.
    versions = [':'.join(p.rsplit('/', 1)) for p in prepared if p.split('/')[0] == builder.name]
    hint = f'; prepared there: {", ".join(versions)}' if versions else ''
    raise UserError(
      f'tfds:{name} is not prepared in {data_dir}{hint}; set TFDS_DATA_DIR to where it is, or prepare it, '
      f'where TensorFlow is installed, with: tfds build {name} --file_format=array_record '
      f'--data_dir={data_dir}'
    )
  return builder


def _builder_from_directory(name: str) -> tfds.core.DatasetBuilder:
  folder = tfds.core.Path(name).expanduser()
  try:
    if (folder / _INFO).is_file():
      return tfds.builder_from_directory(folder)
    found = sorted(str(path.parent) for depth in ('*', '*/*') for path in folder.glob(f'{depth}/{_INFO}'))
  except Exception as error:  # TFDS reads JSON and protocol buffers here, perhaps remote; it names no types
    reason = str(error).strip().splitlines()[0].rstrip('.')
    raise UserError(
      f'{name} cannot be opened as a TFDS directory ({reason}); check or prepare it again.'
    ) from error
  hint = f'did you mean tfds:{found[-1]}?' if found else 'give the one with the version as its name.'
  raise UserError(f'{name} is no directory prepared by TFDS, it has no {_INFO}; {hint}')


def _unknown(name: str, data_dir: str, prepared: Sequence[str]) -> UserError:
  """The error for a name that neither TFDS nor the data directory knows."""
  names = sorted({path.split('/')[0] for path in prepared})
  near = difflib.get_close_matches(name, names, n=3) or names[:3]
  if near:
    return UserError(f'There is no data set tfds:{name}; prepared in {data_dir}: {", ".join(near)}.')
  near = difflib.get_close_matches(name, tfds.list_builders(with_community_datasets=False), n=3)
  hint = f'TFDS knows {", ".join(near)}' if near else 'tensorflow.org/datasets lists those of TFDS'
  return UserError(f'There is no data set tfds:{name}, and none is prepared in {data_dir}; {hint}.')
