"""TFDS data sets prepared as array_record, read with random access and without TensorFlow."""

import bisect
import contextlib
import difflib
import hashlib
import itertools
import logging
import os
import re
import resource
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent import futures
from typing import Any, Self

import numpy as np
import tensorflow_datasets as tfds
import tqdm
from etils import epath

from vit_jax.data.config import DataConfig
from vit_jax.data.sources import missing_data, tfds_bucket
from vit_jax.data.sources.base import NamedSource, Record, bad_split, check_split, label_map
from vit_jax.data.sources.bucket_records import BucketRecords, Span
from vit_jax.data.sources.tfds_checks import check_directory, sums_of
from vit_jax.data.sources.tfds_features import RecordReader, features_of, of_features
from vit_jax.data.sources.tfds_files import INFO
from vit_jax.foundation import buckets, cache
from vit_jax.foundation.errors import UserError, first_line

_CHUNK = 1000  # records whose labels one thread reads in a row
_SCAN_THREADS = 16  # more than processors: on a network they wait
_OTHER_FILES = 512  # that a run may have open beside its data
_SAMPLES, _SAMPLE_BYTES = 8, 1024  # of a shard, which tell that it was replaced
_MANY_RECORDS = 10**6  # of one shard
_RANDOM_ACCESS = ('array_record', 'parquet')
_CONVERT = (
  'convert it, where TensorFlow is installed, with: tfds convert_format --dataset_version_dir={} '
  '--out_file_format=array_record'
)


class TfdsSource(NamedSource):
  """One split of a prepared TFDS data set; images stay encoded."""

  forms = ('tfds:NAME', 'tfds:/a/prepared/directory', 'tfds:gs://bucket/a/prepared/directory')

  def __init__(
    self,
    builder: tfds.core.DatasetBuilder,
    split: str,
    class_names: Sequence[str] | None,
    reader: RecordReader,
    address: str | None = None,
  ):
    """
    Args:
      builder: of prepared data, from `builder_of`.
      split, class_names: see `NamedSource.open`.
      reader: which features are the image and its class.
      address: of the folder in a bucket that the records are in; None: they are where the builder says.

    Raises:
      UserError: no such split, or data without random access.
    """
    name = builder.info.full_name
    _check_format(builder)
    check_split(split, list(builder.info.splits), name)
    self._records = _records(builder, split, name)
    self.class_names = tuple(class_names or reader.names) if reader.names else ()
    self._label_map = label_map(reader.names, class_names, name)
    self._reader, self._name, self._folder = reader, f'{name}/{split} record', builder.data_dir
    instructions = builder.info.splits[split].file_instructions
    self._files = [instruction.filename for instruction in instructions]
    self._bucket = None
    if address is not None:
      self._bucket = buckets.Bucket(address)
      self._files = [f'{address}/{os.path.basename(file)}' for file in self._files]
      spans = [Span(file, part.skip, part.take) for file, part in zip(self._files, instructions, strict=True)]
      self._records.data_source = BucketRecords(self._bucket, spans)
    _check_claims(self._files, [instruction.take for instruction in instructions])
    self._file_ends = list(itertools.accumulate(instruction.take for instruction in instructions))
    if address is None:
      _allow_open_files(len(self._files), name)

  @classmethod
  def open(cls, place: str, split: str, *, data: DataConfig, class_names: Sequence[str] | None) -> Self:
    builder = builder_of(place)
    reader = of_features(builder.info, lists=data.max_labels is not None, weights=data.label_weights)
    return cls(builder, split, class_names, reader, tfds_bucket.address_of(place))

  @classmethod
  def splits(cls, place: str) -> Collection[str]:
    return tuple(builder_of(place).info.splits)

  def __len__(self) -> int:
    return len(self._records)

  def __getitem__(self, index: int) -> Record:
    """Raises UserError for a record that cannot be read or has no label (TFDS's -1) where others have."""
    record = self._read(index)
    labels, weights = self._label_map[self._own_labels(record, index)], self._reader.weights(record)
    if weights is not None and len(weights) != len(labels):
      raise UserError(
        f'{self._name} {index} has {len(labels)} classes and {len(weights)} weights; restore it.'
      )
    name = f'{self._name} {index}'
    file = self._reader.file_name(record)
    return Record(
      self._reader.image(record),
      labels if self._reader.lists else int(labels),
      f'{name} ({file})' if file else name,
      weights,
      self._reader.captions(record),
    )

  def labels(self) -> np.ndarray:
    """As `Source.labels`. Reads all records the first time; the result is kept in the user's cache."""
    if not self._reader.names:
      return np.full(len(self), -1, np.int32)
    key = f'labels/{self._fingerprint()}'
    arrays = cache.load_arrays(key)
    if arrays is None:
      arrays = {'numbers': self._all_own_labels()}
      cache.save_arrays(key, arrays)
    own = arrays['numbers']
    return self._label_map[own].astype(np.int32)

  def _read(self, index: int) -> dict[str, Any]:
    try:
      record = self._records[index]
      if self._reader.is_empty(record):
        raise ValueError('it is empty')  # as in a truncated file
      return record
    except UserError:  # of a bucket
      raise
    except Exception as error:  # array_record and protocol buffers name no types
      file = self._files[bisect.bisect_right(self._file_ends, index)]
      raise UserError(
        f'{self._name} {index} cannot be read ({first_line(error)[:500]}); restore {file}.'
      ) from error

  def _own_labels(self, record: dict[str, Any], index: int) -> np.ndarray:
    """int64 () or (classes,): the record's labels as the data set numbers them."""
    labels = np.array(self._reader.label(record), np.int64)
    if (labels < 0).any() and self._reader.names:
      raise UserError(f'{self._name} {index} has no label; choose a split with labels.')
    return labels

  def _all_own_labels(self) -> np.ndarray:
    """int32 (records,), or (records, longest list) padded with -1."""

    def read(start: int) -> np.ndarray:
      span = range(start, min(start + _CHUNK, len(self)))
      labels = [self._own_labels(self._read(index), index) for index in span]
      return _padded(labels) if self._reader.lists else np.array(labels, np.int32)

    starts = range(0, len(self), _CHUNK)
    title = f'Reading the class of each {self._name}'
    with futures.ThreadPoolExecutor(_SCAN_THREADS) as pool:
      chunks = list(tqdm.tqdm(pool.map(read, starts), title, len(starts), disable=None))
    return _padded(list(itertools.chain(*chunks))) if self._reader.lists else np.concatenate(chunks)

  @property
  def is_remote(self) -> bool:
    return self._bucket is not None

  def version(self) -> str:
    """As of the contract, by the sizes and samples of the shards: machines may differ in times and inodes."""
    return self._digest(self._bucket.entry if self._bucket else _file_content)

  def sums(self) -> str:
    return sums_of(self._folder, self._files)

  def _fingerprint(self) -> str:
    """A digest that differs for another split or feature, and after any of the files has changed."""
    return self._digest(self._bucket.entry if self._bucket else _file_state)

  def _digest(self, state: Callable[[str], object]) -> str:
    """A digest of what `state` says of each shard, of the split and of the features."""
    with futures.ThreadPoolExecutor(_SCAN_THREADS) as pool:
      states = list(pool.map(state, self._files))
    text = repr((self._name, self._reader.key, states))
    return hashlib.blake2b(text.encode(errors='surrogateescape'), digest_size=16).hexdigest()


def _file_state(path: str) -> tuple[str | int, ...]:
  """What changes with a file, also if another of the same size and time takes its place."""
  try:
    state = os.stat(path)
    sample = _sample(path, state.st_size)
  except OSError as error:
    raise UserError(f'{path} cannot be read ({error.strerror}); restore it.') from error
  return path, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino, sample


def _file_content(path: str) -> tuple[str | int, ...]:
  """The part of a file's state that is the same on every machine."""
  _, size, *_, sample = _file_state(path)
  return os.path.basename(path), size, sample


def _sample(path: str, size: int) -> str:
  """A digest of the first, the last and some other bytes of a file."""
  digest = hashlib.blake2b(digest_size=16)
  with open(path, 'rb') as file:
    for number in range(_SAMPLES):
      file.seek(number * max(size - _SAMPLE_BYTES, 0) // (_SAMPLES - 1))
      digest.update(file.read(_SAMPLE_BYTES))
  return digest.hexdigest()


def _padded(lists: Sequence[np.ndarray]) -> np.ndarray:
  """int32 (lists, longest): the numbers of each list, followed by -1."""
  padded = np.full((len(lists), max(map(len, lists))), -1, np.int32)
  for row, numbers in zip(padded, lists, strict=True):
    row[: len(numbers)] = numbers
  return padded


def _records(builder: tfds.core.DatasetBuilder, split: str, name: str) -> Any:
  """The records of a split, which TFDS reads at random; their images stay encoded. Raises as `TfdsSource`."""
  # Other images than a record's own, such as masks, would be decoded for nothing.
  features = features_of(builder.info)
  images = [key for key, feature in features.items() if isinstance(feature, tfds.features.Image)]
  decoders = {key: tfds.decode.SkipDecoding() for key in images}
  try:
    # TFDS wraps it in a decorator that hides its parameters.
    records = builder.as_data_source(split=split, decoders=decoders)  # pyright: ignore[reportCallIssue]
  except (ValueError, NotImplementedError) as error:
    raise bad_split(split, name, error) from None
  except OSError as error:  # Parquet files are opened here
    raise UserError(f'{name} cannot be read ({error.strerror or error}); restore it.') from error
  if not len(records):
    raise UserError(f'Split {split!r} of {name} has no records; choose another.')
  asked = sum(part.take for part in builder.info.splits[split].file_instructions)
  if len(records) != asked:  # TFDS reads whole files of parquet
    raise UserError(
      f'Split {split!r} of {name} has {asked:,} records, and TFDS reads {len(records):,}: of parquet it reads no '
      f'slices; {_CONVERT.format(builder.data_dir)}'
    )
  return records


def _check_format(builder: tfds.core.DatasetBuilder) -> None:
  formats = [file_format.value for file_format in builder.info.available_file_formats()]
  if not set(formats) & set(_RANDOM_ACCESS):
    raise UserError(
      f'{builder.data_dir} is prepared as {", ".join(sorted(formats))}, which has no random access; '
      f'{_CONVERT.format(builder.data_dir)}'
    )


def _check_claims(files: Sequence[str], records: Sequence[int]) -> None:
  """Raises UserError where a shard is said to have more records than bytes; only shards of very many are looked at."""
  for file, count in zip(files, records, strict=True):
    if count > _MANY_RECORDS and '://' not in file and os.path.exists(file) and count > os.path.getsize(file):
      raise UserError(f'{file} has less than the {count:,} records that {INFO} says; prepare the data again.')


def _allow_open_files(count: int, name: str) -> None:
  """Raises this process's limit of open files, which may be 1,024: each shard that was read stays open."""
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
    name: a data set as TFDS writes it ('cifar10', 'imagenet2012', 'name/config:1.0.0'), in $TFDS_DATA_DIR or
      ~/tensorflow_datasets; or the path of a prepared directory, which starts with '/', '~' or '.', or its
      address in a bucket, whose small files are copied into the cache.

  Raises:
    UserError: no such data set, one that is not prepared, or one that `check_directory` refuses.
  """
  address = tfds_bucket.address_of(name)
  if address is not None:
    name = str(tfds_bucket.local_folder(buckets.Bucket(address), address))
  if name[0] in '/~.':
    return _builder_from_directory(name)
  data_dir = os.environ.get('TFDS_DATA_DIR', '~/tensorflow_datasets')
  folder = epath.Path(data_dir).expanduser()
  prepared = _prepared(folder)
  plain = _plain(re.split('[/:]', name)[0])
  same = [path for path in prepared if _plain(path.split('/')[0]) == plain]
  for path in same:
    check_directory(folder / path)
  try:
    with _without_warnings():
      builder = tfds.builder(name, data_dir=str(folder))
      is_prepared = builder.is_prepared()
  except tfds.core.DatasetNotFoundError:
    is_prepared, builder = False, None
  except Exception as error:  # TFDS reads JSON and protocol buffers here; it names no types
    remedy = _folder_of_that_name(name) or 'check its name and config.'
    raise UserError(f'tfds:{name} cannot be opened ({first_line(error)[:500]}); {remedy}') from error
  if builder is None or not is_prepared:
    remedy = _remedy(name, data_dir, same, prepared, is_known=builder is not None)
    raise UserError(f'There is no tfds:{name} in {data_dir} (TFDS_DATA_DIR says where); {remedy}')
  return builder


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
  """Inside, TFDS does not warn of folders that it looked for and that are not there; our errors say it."""
  logger = logging.getLogger('absl')
  before = logger.level
  logger.setLevel(logging.ERROR)
  try:
    yield
  finally:
    logger.setLevel(before)


def _prepared(folder: epath.Path) -> list[str]:
  """The prepared data sets in a data directory: 'name/version' or 'name/config/version'."""
  try:
    return sorted(
      path.parent.relative_to(folder).as_posix()
      for pattern in ('*/*', '*/*/*')
      for path in folder.glob(f'{pattern}/{INFO}')
    )
  except OSError as error:
    raise UserError(
      f'{folder} cannot be read ({error.strerror}); set TFDS_DATA_DIR to where TFDS data sets are prepared.'
    ) from error


def _builder_from_directory(name: str) -> tfds.core.DatasetBuilder:
  folder = epath.Path(name).expanduser()
  try:
    if (folder / INFO).is_file():
      check_directory(folder)
      return tfds.builder_from_directory(folder)
    found = sorted(str(path.parent) for depth in ('*', '*/*') for path in folder.glob(f'{depth}/{INFO}'))
  except UserError:
    raise
  except Exception as error:  # as above
    raise UserError(
      f'{name} cannot be opened as a TFDS directory ({first_line(error)[:500]}); check or prepare it again.'
    ) from error
  hint = f'did you mean tfds:{found[-1]}?' if found else 'give the one with the version as its name.'
  raise UserError(f'{name} is no directory prepared by TFDS, it has no {INFO}; {hint}')


def _plain(name: str) -> str:
  """The same for 'MyFlowers' and 'my_flowers', by either of which TFDS finds my_flowers/."""
  return name.replace('_', '').lower()


def _folder_of_that_name(name: str) -> str:
  """How to read the folder that a name would be; '': there is none."""
  here = os.path.isdir(os.path.expanduser(name))
  return f'to read the folder of that name here, write tfds:./{name}.' if here else ''


def _remedy(name: str, data_dir: str, same: Sequence[str], prepared: Sequence[str], *, is_known: bool) -> str:
  """What to do where a data set is not prepared.

  `same` are those of its name that are `prepared`, and `is_known` whether TFDS has its builder.
  """
  if same:  # written as a name with its version: 'data_set/config:1.0.0'
    return f'prepared there: {", ".join(":".join(path.rsplit("/", 1)) for path in same)}.'
  if advice := missing_data.advice(name):
    return f'{advice}.'
  if folder := _folder_of_that_name(name):
    return folder
  if is_known:
    return (
      f'prepare it, where TensorFlow is installed, with: tfds build {name} --file_format=array_record '
      f'--data_dir={data_dir}'
    )
  names = sorted({path.split('/')[0] for path in prepared})
  near = difflib.get_close_matches(name, names, n=3) or names[:3]
  near = near or difflib.get_close_matches(name, tfds.list_builders(with_community_datasets=False), n=3)
  if not near:
    return 'tensorflow.org/datasets lists those of TFDS.'
  return f'did you mean {" or ".join(f"tfds:{other}" for other in near)}?'
