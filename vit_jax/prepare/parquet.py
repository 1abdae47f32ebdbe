"""Parquet files with the images in them, as Hugging Face and img2dataset write them.

A column holds the images: bytes, or a struct of bytes and path. A row of parquet cannot be read without its
whole row group, and records are written in another order. So the images of each file are first copied into a
file in the work folder, which takes as much disk as the source. A killed command goes on with the next file.
"""

import hashlib
import json
import os
import posixpath
from collections.abc import Iterator
from typing import Any, NamedTuple

from vit_jax.foundation.errors import UserError, first_line
from vit_jax.prepare import archives, sample_labels, storage
from vit_jax.prepare.captions import captions_of
from vit_jax.prepare.source_image import SourceImage
from vit_jax.prepare.tables import Columns, column

_IMAGES = ('image', 'jpg', 'img', 'png', 'webp')  # 'jpg': img2dataset
_ROWS = 64  # in memory at once, beside the row group


class _Chosen(NamedTuple):
  """The columns of a file: of images, and of labels, weights and captions if there are any."""

  image: str
  label: str | None
  weight: str | None
  caption: str | None


def is_parquet(source: str) -> bool:
  """Whether a source is a parquet file, or a folder whose first file of data is one."""
  return archives.first_data(source).lower().endswith('.parquet')


def list_images(source: str, work: str, columns: Columns, *, limit: int | None) -> Iterator[SourceImage]:
  """Copies the images of all files, of each at most `limit` rows, into the work folder, and lists them.

  Raises:
    UserError: a file cannot be read, lacks a column, or has a value that cannot be used.
    OSError: the copy cannot be written.
  """
  for name, place in archives.data_files(source, '.parquet'):
    # Not by its place in the listing, where files may have come or gone since a command that was stopped.
    key = hashlib.blake2b(f'{name} {storage.size(place)}'.encode(), digest_size=16).hexdigest()
    index = storage.join(work, 'unpacked', f'{key}.jsonl')
    if not storage.exists(index):
      _unpack(name, place, index, work, columns, limit)
    with storage.open_file(index) as lines:
      for line in lines:
        yield SourceImage(*json.loads(line))


def class_names(source: str, columns: Columns) -> tuple[str, ...] | None:
  """The names of the classes that Hugging Face's metadata has; None if there are none.

  Raises UserError where files have other names, as those of a repository's other configuration: numbers would be mixed.
  """
  names, first = None, ''
  for _, place in archives.data_files(source, '.parquet'):
    own = _names_in(place, columns)
    if names is not None and own is not None and own != names:
      raise UserError(
        f'{place} has other classes than {first}, or in another order; give the files of one of the two.'
      )
    if names is None:
      names, first = own, place
  return names


def _names_in(place: str, columns: Columns) -> tuple[str, ...] | None:
  """As `class_names`, of a file."""
  with storage.open_file(place) as file:
    schema = _opened(file, place).schema_arrow
  try:
    features = json.loads((schema.metadata or {})[b'huggingface'])['info']['features']
    feature = features[_columns(schema, columns, place).label]
    while feature.get('_type') != 'ClassLabel':  # in a list of them
      feature = feature['feature']
    return tuple(map(str, feature['names']))
  except (KeyError, TypeError, AttributeError, ValueError):
    return None


def _unpack(name: str, place: str, index: str, work: str, columns: Columns, limit: int | None) -> None:
  """Writes the images of a file one after the other, and then the index, a `SourceImage` a line."""
  images = index.removesuffix('.jsonl') + '.images'
  stem, split = os.path.splitext(name)[0], sample_labels.split_of(name)
  offset = 0
  with (
    storage.atomic_path(index, work) as local_index,
    open(local_index, 'w', encoding='utf-8') as lines,
    storage.atomic_path(images, work) as local_images,  # in its place before the index is
    open(local_images, 'wb') as copy,
  ):
    for row, fields in enumerate(_rows(place, columns, limit)):
      where = f'{place} row {row}'
      content, path = _content(fields.pop('image'), where)
      labels, weights = sample_labels.labels_and_weights(fields, columns, where)
      title = '-'.join(filter(None, (f'{row:07}', posixpath.basename(path))))
      captions = captions_of(fields.get(columns.caption or ''), where)
      name = f'{stem}/{title}'
      image = SourceImage(name, images, offset, len(content), split, labels, weights, captions)
      lines.write(json.dumps(image) + '\n')
      copy.write(content)
      offset += len(content)


def _rows(place: str, columns: Columns, limit: int | None) -> Iterator[dict[str, Any]]:
  """The rows of a file: 'image', and the label and weights under the names of their columns."""
  left = float('inf') if limit is None else limit
  with storage.open_file(place) as file:
    table = _opened(file, place)
    chosen = _columns(table.schema_arrow, columns, place)
    names = [name for name in chosen if name is not None]
    try:
      for batch in table.iter_batches(_ROWS, columns=names):
        for row in batch.to_pylist():
          if left <= 0:
            return
          left -= 1
          yield {'image': row.pop(chosen.image), **row}
    except Exception as error:  # of pyarrow, or of the network's library
      raise UserError(
        f'{place} cannot be read ({first_line(error)}); restore it, or check the network.'
      ) from error


def _opened(file: Any, place: str) -> Any:
  """A pyarrow.parquet.ParquetFile."""
  import pyarrow.parquet

  try:
    table = pyarrow.parquet.ParquetFile(file)
    str(table.schema_arrow)  # decodes the names of the columns
    return table
  except Exception as error:  # of pyarrow, or of the network's library
    raise UserError(
      f'{place} cannot be read as parquet ({first_line(error)}); restore it, or check the network.'
    ) from error


def _columns(schema: Any, columns: Columns, place: str) -> _Chosen:
  """Chooses the columns of a file; UserError where there is none of images, labels or captions that are needed."""
  names = schema.names
  if columns.image is None and 'url' in names and not set(_IMAGES) & set(names):
    raise UserError(
      f'{place} has addresses of images and no images; download them first (img2dataset does, with '
      f'--save_additional_columns for the labels) and prepare what it writes.'
    )
  image = column(names, columns.image, _IMAGES, 'image', place)
  kind = str(schema.field(image).type)
  if 'binary' not in kind:
    raise UserError(
      f'{place} has no images in its column {image!r}, which is of type {kind}; name the column of the bytes '
      f'with --image_column.'
    )
  label = weight = caption = None
  if columns.has_labels:
    label = column(names, columns.label, sample_labels.LABELS, 'label', place)
    weight = sample_labels.weight_column(names, columns, place)
  if columns.caption:
    caption = column(names, columns.caption, (), 'caption', place)
  for name in (image, label, weight, caption):
    if names.count(name) > 1:
      raise UserError(f'{place} has the column {name!r} twice; rename or remove one of them.')
  return _Chosen(image, label, weight, caption)


def _content(value: Any, where: str) -> tuple[bytes, str]:
  """The bytes of an image and the path that it had, or ''. No bytes are a bad image, found later."""
  if isinstance(value, dict):
    if value.get('bytes') is None and value.get('path'):
      raise UserError(f'{where} has the path {value["path"]} and no bytes; embed the images in the file.')
    return value.get('bytes') or b'', value.get('path') or ''
  return value or b'', ''
