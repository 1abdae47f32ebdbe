"""TFDS data sets prepared as array_record, read with random access and without TensorFlow."""

import difflib
import os
from collections.abc import Sequence

import tensorflow_datasets as tfds

from vit_jax.data.records import Record, bad_split, check_split, label_map
from vit_jax.errors import UserError

_INFO = 'dataset_info.json'


class PreparedSource:
  """One split of a prepared TFDS data set; images stay encoded."""

  def __init__(self, builder: tfds.core.DatasetBuilder, split: str, class_names: Sequence[str] | None):
    """
    Args:
      builder: of prepared data, from `builder_of`.
      split: with TFDS's slices and sums.
      class_names: label -> name; None: the data set's.

    Raises:
      UserError: no such split, no image or class among the features, or data without random access.
    """
    name, features = builder.info.full_name, builder.info.features
    image = _feature(features, tfds.features.Image, 'image', name)
    label = _feature(features, tfds.features.ClassLabel, 'label', name)
    if not any(form.value in ('array_record', 'parquet') for form in builder.info.available_file_formats()):
      raise UserError(
        f'{builder.data_dir} is prepared as {builder.info.file_format.value}, which has no random access; '
        f'convert it, where TensorFlow is installed, with: tfds convert_format '
        f'--dataset_version_dir={builder.data_dir} --out_file_format=array_record'
      )
    check_split(split, builder.info.splits, name)
    # Other images, such as masks, would be decoded for nothing.
    images = [key for key, feature in features.items() if isinstance(feature, tfds.features.Image)]
    decoders = {key: tfds.decode.SkipDecoding() for key in images}
    try:
      self._records = builder.as_data_source(split=split, decoders=decoders)
    except (ValueError, NotImplementedError) as error:
      raise bad_split(split, name, error) from None
    if not len(self._records):
      raise UserError(f'Split {split!r} of {name} has no records; choose another.')
    names = features[label].names
    self.class_names = tuple(class_names or names)
    self._labels = label_map(names, class_names, name).tolist()
    self._image, self._label, self._name = image, label, f'{name}/{split} record'

  def __len__(self) -> int:
    return len(self._records)

  def __getitem__(self, index: int) -> Record:
    """Raises UserError for a record without a label (TFDS's -1)."""
    record, name = self._records[index], f'{self._name} {index}'
    label = int(record[self._label])
    if label < 0:
      raise UserError(f'{name} has no label; choose a split with labels.')
    return Record(record[self._image], self._labels[label], name)


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


def _feature(features: tfds.features.FeaturesDict, kind: type, usual: str, name: str) -> str:
  """The name of the feature of a kind: the usual one if it is among them.

  Raises:
    UserError: none of that kind, or several and none named as usual.
  """
  found = [key for key, feature in features.items() if isinstance(feature, kind)]
  if usual in found:
    return usual
  if len(found) == 1:
    return found[0]
  raise UserError(
    f'{name} has {len(found)} features of type {kind.__name__}, and one is needed; its features are '
    f'{", ".join(features)}; choose another data set.'
  )
