"""Checks of a directory prepared by TFDS, made before TFDS reads it.

TFDS imports whatever module a features.json or dataset_info.json names, so that a data set could run code.
Only the feature classes of TFDS itself are allowed here. Where `vit_jax.prepare` left checksums, the small
files beside the shards are compared with them.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from etils import epath

from vit_jax.data.sources.tfds_files import BAD_IMAGES, CHECKSUMS, DUPLICATES, FEATURES, INFO
from vit_jax.foundation import foreign_files
from vit_jax.foundation.errors import UserError

_PACKAGE = 'tensorflow_datasets.core.features.'
_ALLOWED = frozenset(
  _PACKAGE + name
  for name in (
    'audio_feature.Audio',
    'bounding_boxes.BBoxFeature',
    'class_label_feature.ClassLabel',
    'dataset_feature.Dataset',
    'feature.Tensor',  # as old versions wrote it
    'features_dict.FeaturesDict',
    'image_feature.Image',
    'labeled_image.LabeledImage',
    'scalar.Scalar',
    'sequence_feature.Sequence',
    'tensor_feature.Tensor',
    'text_feature.Text',
    'translation_feature.Translation',
    'translation_feature.TranslationVariableLanguages',
    'video_feature.Video',
  )
)
# The keys of a feature's class: of protocol buffers in JSON, in both of their spellings, and of old versions.
_CLASS_KEYS = ('pythonClassName', 'python_class_name', 'type')

# What a split's files are called after, in both spellings.
_FILE_KEYS = ('name', 'filepathTemplate', 'filepath_template')
_MOST_SHARDS = 100_000
_LONGEST_NAME = 255  # characters, as file systems have it

_CHECKSUM = re.compile(r'([0-9a-f]{64}) [ *]([^/]+)')
# Shards have checksums of their own, and would take long; the lists of bad and equal images nobody reads.
_SHARD = re.compile(r'.+\.array_record-\d+-of-\d+')
_UNREAD = (BAD_IMAGES, DUPLICATES)


def check_directory(folder: epath.Path) -> None:
  """Raises UserError for a feature class that is not TFDS's own, and a file that is not as its checksum says."""
  try:
    _check_features(folder)
  except RecursionError:
    raise UserError(f'The features of {folder} are nested too deeply; prepare it again.') from None
  _check_checksums(folder)


def _check_features(folder: epath.Path) -> None:
  features = _read_json(folder / FEATURES)
  info = _read_json(folder / INFO)
  # Of the other fields, the schema has keys called 'type' that name no class.
  named_in_info = info.get('features') if isinstance(info, dict) else None
  _check_files(folder / INFO, info)
  for file, feature in ((FEATURES, features), (INFO, named_in_info)):
    for name in _class_names(feature):
      if name not in _ALLOWED:
        raise UserError(
          f'{folder / file} names the feature class {name[:100]!r}, which is not one of TFDS itself, and reading '
          f'it would run code from elsewhere; prepare the data again with the features of tfds.features.'
        )


def _check_files(file: epath.Path, info: Any) -> None:
  """Checks that the shards of a dataset_info.json are files of its folder, and not without end."""
  splits = info.get('splits') if isinstance(info, dict) else None
  splits = [split for split in splits if isinstance(split, dict)] if isinstance(splits, list) else []
  parts = [info.get('name')] if isinstance(info, dict) else []
  for split in splits:
    parts += [split.get(key) for key in _FILE_KEYS]
    shards = split.get('shardLengths') or split.get('shard_lengths')
    if isinstance(shards, list) and len(shards) > _MOST_SHARDS:
      raise UserError(f'{file} names {len(shards):,} shards of a split; prepare the data again with fewer.')
  for part in parts:
    if isinstance(part, str) and ('/' in part or not part.isprintable() or len(part) > _LONGEST_NAME):
      raise UserError(
        f'{file} has {part[:100]!r} in the names of its files, which is no file of its folder; prepare it again.'
      )


def _class_names(feature: Any) -> Iterator[str]:
  """The classes that a feature in JSON, and the features in it, name in any way that TFDS reads.

  It passes over nothing that could be a feature, wherever it stands.
  """
  if isinstance(feature, dict):
    for key, value in feature.items():
      if key in _CLASS_KEYS and isinstance(value, str):
        yield value
      else:
        yield from _class_names(value)
  elif isinstance(feature, list):
    for item in feature:
      yield from _class_names(item)
  elif isinstance(feature, str):
    try:
      inner = json.loads(feature)  # some features are JSON in a string
    except ValueError:
      return
    yield from _class_names(inner)


def _read_json(path: epath.Path) -> Any:
  """The content of a JSON file; None if it is not there, of which TFDS says more."""
  content = _read(path)
  if content is None:
    return None
  try:
    return json.loads(content)
  except ValueError as error:
    raise UserError(
      f'{path.parent} cannot be opened as a TFDS directory ({path.name}: {error}); check or prepare it again.'
    ) from error


def _read(path: epath.Path) -> bytes | None:
  try:
    if not path.exists():
      return None
    if '://' in os.fspath(path):
      return path.read_bytes()
    return foreign_files.read_bytes(path, foreign_files.LARGEST_TEXT)
  except OSError as error:
    raise UserError(
      f'{path} cannot be read ({error.strerror}); restore it or check its permissions.'
    ) from error


def sums_of(folder: str | os.PathLike[str], shards: Iterable[str]) -> str:
  """A digest of the checksums that a data set's list has of these shards; '' where there is none."""
  names = {os.path.basename(shard) for shard in shards}
  lines = (_read(epath.Path(folder) / CHECKSUMS) or b'').decode(errors='replace').splitlines()
  own = sorted(line for line in lines if (match := _CHECKSUM.fullmatch(line)) and match[2] in names)
  return f'{CHECKSUMS} {hashlib.sha256("".join(own).encode()).hexdigest()}' if own else ''


def _check_checksums(folder: epath.Path) -> None:
  content = _read(folder / CHECKSUMS)
  if content is None:
    return
  for line in content.decode(errors='replace').splitlines():
    match = _CHECKSUM.fullmatch(line)
    if match is None:
      raise UserError(
        f'{folder / CHECKSUMS} is damaged at {line[:100]!r}; restore it or prepare the data again.'
      )
    digest, name = match[1], match[2]
    if name in _UNREAD or _SHARD.fullmatch(name):
      continue
    file = _read(folder / name)
    if file is None or hashlib.sha256(file).hexdigest() != digest:
      raise UserError(
        f'{folder / name} is not the file whose checksum is in {CHECKSUMS}; restore it or, if it was '
        f'changed on purpose, put its own there (sha256sum {name}).'
      )
