"""Tables of images and labels or captions: .csv, .tsv and .jsonl, also Hugging Face's metadata.csv and metadata.jsonl.

A table has a column for the image (a path, absolute or relative to the file, or an address), one for the label or the
caption, and perhaps one for the split. A label is the name of a class, or several with ';' or '|' between them (in
.jsonl a list). Metadata lies in a folder, in those of its splits, or in the same below data/.
"""

import collections
import csv
import dataclasses
import io
import itertools
import json
import os
import posixpath
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vit_jax.data.sources.folder_layout import class_name, split_named, splits_among
from vit_jax.data.sources.folder_listing import EXTENSIONS
from vit_jax.foundation.errors import UserError
from vit_jax.prepare import image_addresses, storage
from vit_jax.prepare.captions import captions_of
from vit_jax.prepare.source_image import SourceImage

_METADATA = ('metadata.csv', 'metadata.jsonl')
_TABLES = ('.csv', '.tsv', '.jsonl')
_IMAGE_COLUMNS = ('image', 'file_name', 'filename', 'file', 'filepath', 'path', 'id')  # the first there
_LABEL_COLUMNS = ('label', 'labels', 'class', 'category', 'target')
_DELIMITERS = (',', ';', '\t')
_LONGEST_LINE = 2**20  # characters
_WHOLE = re.compile(r'[0-9]+\.0+')


@dataclasses.dataclass(frozen=True)
class Columns:
  """Which columns have an image, its label, its labels' weights and its captions; None: one of the usual names.

  Parquet files and the samples of WebDataset have weights; a .csv has none. Captions are read only where named.
  """

  image: str | None = None
  label: str | None = None
  weight: str | None = None
  caption: str | None = None

  @property
  def has_labels(self) -> bool:
    """Whether images need labels: of those with captions only where their column is named."""
    return self.caption is None or self.label is not None


USUAL_COLUMNS = Columns()


def is_table(source: str) -> bool:
  """Whether a source is a table, or a folder with Hugging Face's metadata."""
  return source.lower().endswith(_TABLES) or (storage.is_folder(source) and bool(_metadata_files(source)))


def list_images(source: str, columns: Columns, *, any_address: bool = False) -> Iterator[SourceImage]:
  """Lists the images of a table, or of the metadata files of a folder.

  With `any_address`, images may have addresses that `image_addresses` refuses.

  Raises:
    UserError: a table cannot be read, lacks a column, or has a value that cannot be used.
  """
  if not storage.is_folder(source):
    folder = source.rpartition('/')[0] if storage.is_address(source) else os.path.dirname(source)
    found = _table_images(source, folder, '', columns)
  else:
    tables = ((storage.join(source, table), posixpath.dirname(table)) for table in _metadata_files(source))
    found = (image for table, folder in tables for image in _table_images(table, source, folder, columns))
  for where, image in found:
    if storage.is_address(image.path) and not any_address:
      image_addresses.check(image.path, where)
    yield image


def _metadata_files(folder: str) -> list[str]:
  """The metadata files in a folder, else those in its splits' folders, else these below data/, relative to it."""
  for top in ('', 'data'):
    place = storage.join(folder, top) if top else folder
    there = storage.names(place)
    splits = [] if there.intersection(_METADATA) else sorted(filter(split_named, there))
    names = [*_METADATA, *(f'{split}/{name}' for split in splits for name in _METADATA)]
    if found := [name for name in names if storage.exists(storage.join(place, name))]:
      splits_among({posixpath.dirname(name) for name in found}, place)  # each once
      return [posixpath.join(top, name) for name in found]
  return []


def _table_images(
  table: str, root: str, folder_of_table: str, columns: Columns
) -> Iterator[tuple[str, SourceImage]]:
  """Lists the images of one table, named relative to `root`, each after the line that names it.

  Metadata names those in `folder_of_table`, such as that of a split.
  """
  is_metadata = posixpath.basename(table) in _METADATA
  folder = folder_of_table if is_metadata else None  # below the root, in which the images are
  spelled: dict[str, str] = {}
  for line, row in _rows(table, columns):
    where = f'{table} line {line}'
    head = where if table.endswith('.jsonl') else table  # where a column would be named
    path = row[column(row, columns.image, _IMAGE_COLUMNS, 'image', head)]
    if not isinstance(path, str) or not path or '\0' in path:
      raise UserError(f'{where} has no path of an image; fill it in, or remove the line.')
    if is_metadata:
      _check_inside(path, where)
    if folder is None:
      folder = _image_folder(path, root)
    name = path if storage.is_address(path) else posixpath.join(folder, posixpath.normpath(path))
    name, place = _located(name, root)
    labels, captions = (), ()
    if columns.has_labels:
      labels = tuple(_labels(row[column(row, columns.label, _LABEL_COLUMNS, 'label', head)], where))
    if columns.caption:
      captions = captions_of(row[column(row, columns.caption, (), 'caption', head)], where)
    split = _split(row, _below(root, name), where, spelled)
    yield where, SourceImage(name, place, None, storage.size(place), split, labels, captions=captions)


def _check_inside(path: str, where: str) -> None:
  """Checks that metadata, which comes with a download, names no other file of this machine."""
  if storage.is_address(path) or os.path.isabs(path) or '..' in path.split('/'):
    raise UserError(f'{where} names {path}, which is not below its folder; remove the line.')


def _image_folder(path: str, root: str) -> str:
  """The folder in the root in which a table's first image is, if there is just one; else '', the root itself.

  Kaggle's tables name files of the folder beside them, and not that folder.
  """
  if storage.is_address(path) or storage.is_address(root) or _exists(path, root):
    return ''
  folders = [entry.name for entry in os.scandir(root or '.') if entry.is_dir()]
  found = [name for name in folders if _exists(f'{name}/{path}', root)]
  return found[0] if len(found) == 1 else ''


def _exists(path: str, root: str) -> bool:
  return os.path.exists(_located(posixpath.normpath(path), root)[1])


def _located(name: str, root: str) -> tuple[str, str]:
  """An image's name and its path or address, as the file is called.

  Kaggle's `id` columns leave out the ending; an Apple computer writes accents apart from their letters (NFD).
  """
  absolute = storage.is_address(name) or os.path.isabs(name)
  place = name if absolute else storage.join(root, name)
  is_usual = name.isascii() and name.lower().endswith(EXTENSIONS)
  if storage.is_address(place) or is_usual or os.path.exists(place):
    return name, place
  if not name.isascii():
    for form in ('NFC', 'NFD'):
      other = unicodedata.normalize(form, name)
      if os.path.exists(found := os.path.join(root, other)):
        return other, found
  if not name.lower().endswith(EXTENSIONS):
    for extension in EXTENSIONS:
      if os.path.exists(place + extension):
        return name + extension, place + extension
  return name, place


def _split(row: dict[str, Any], name: str, where: str, spelled: dict[str, str]) -> str:
  """The split that the column 'split' names, else that of the outermost folder called like one, else 'train'.

  `spelled` is filled: split -> what the lines so far call it.
  """
  split = row.get('split')
  if not split:
    return _split_of_folders(name)
  if isinstance(split, str) and (usual := split_named(split.strip())):
    if (other := spelled.setdefault(usual, split)).lower() != split.lower():
      raise UserError(
        f'{where} has the split {split!r}, and a line above {other!r}, which are one; write one of them.'
      )
    return usual
  if not isinstance(split, str) or not re.fullmatch(r'[A-Za-z]\w*', split) or split == 'all':
    raise UserError(
      f'{where} has the split {repr(split)[:100]}; write train, val, test or another single word.'
    )
  return split


def _below(root: str, name: str) -> str:
  """A name relative to the root, where it is an absolute path below it, as pandas writes them."""
  if storage.is_address(root) or not os.path.isabs(name):
    return name
  relative = posixpath.relpath(name, os.path.abspath(root))
  return name if relative.startswith('..') else relative


def _split_of_folders(name: str) -> str:
  """The split of an image by the folders in its name; what is around the table, or elsewhere, says nothing."""
  if storage.is_address(name) or os.path.isabs(name):
    return 'train'
  return next(filter(None, map(split_named, name.split('/')[:-1])), 'train')


def _labels(value: Any, where: str) -> list[str]:
  """The class names in a cell, each once, in order."""
  match value:
    case None:
      values = []
    case str():
      values = re.split('[;|]', value)
    case list():
      values = value
    case _:
      values = [value]
  names = [_label(value, where) for value in values]
  return list(dict.fromkeys(name for name in names if name))


def _label(value: Any, where: str) -> str:
  """The name of a class; a whole number without the '.0' that a column of floats gives it, as of parquet."""
  if not isinstance(value, str | int) and not (isinstance(value, float) and value.is_integer()):
    raise UserError(f'{where} has the label {value!r}; write a name, a number, or a list of these.')
  text = class_name(str(int(value) if isinstance(value, float) else value).strip())
  return text.partition('.')[0] if _WHOLE.fullmatch(text) else text


def column(there: Iterable[Any], chosen: str | None, usual: Sequence[str], what: str, where: str) -> str:
  """The column `chosen`, or the first of the `usual` ones, of those that are there; UserError where none is.

  `what` and `where` are for the error: --WHAT_column says which is meant.
  """
  names = list(there)
  wanted = usual if chosen is None else (chosen,)
  for name in wanted:
    if name in names:
      return name
  remedy = f'name the right one with --{what}_column'
  if what == 'label':
    remedy += ', or that of captions with --caption_column'
  if any(str(name).lower().endswith(EXTENSIONS) for name in names):  # the first line is of an image
    remedy = 'write the names of its columns above, image,label'
  found = ', '.join(map(str, names)) or 'none'
  raise UserError(f'{where} has no column {" or ".join(map(repr, wanted))}, but {found}; {remedy}.')


def _rows(table: str, columns: Columns) -> Iterator[tuple[int, dict[str, Any]]]:
  """Line numbers and rows of a .csv, .tsv or .jsonl file."""
  line = 1
  try:
    with io.TextIOWrapper(storage.open_file(table), 'utf-8-sig', newline='') as file:
      if table.endswith('.jsonl'):
        for line, text in enumerate(_lines(file), start=1):
          row = json.loads(text)
          if not isinstance(row, dict):
            raise ValueError('it is not an object')
          json.dumps(row, ensure_ascii=False).encode()  # JSON may escape half of a character: a ValueError
          yield line, row
        return
      lines = _lines(file)
      header = next(lines, '')
      delimiter = _delimiter(header, columns)
      reader = csv.DictReader(itertools.chain([header], lines), delimiter=delimiter, strict=True)
      for name, count in collections.Counter(filter(None, reader.fieldnames or ())).items():
        if count > 1:
          raise ValueError(f'it has {name!r} twice')
      for row in reader:
        line = reader.line_num
        if any(map(str.strip, more := row.pop(None, ()))):  # DictReader's key for what has no column
          fields = len(row) + len(more)
          raise ValueError(
            f'it has {fields} fields and the header {len(row)}; quote a field with {delimiter!r} in it'
          )
        yield line, row
  except (csv.Error, ValueError, RecursionError) as error:  # ValueError: also JSON's and UTF-8's
    remedy = 'save it as UTF-8' if isinstance(error, UnicodeDecodeError) else 'correct it'
    raise UserError(f'{table} cannot be read near line {line} ({error}); {remedy}.') from error
  except OSError as error:
    reason = error.strerror or error
    raise UserError(f'{table} cannot be read ({reason}); give a table that can.') from error


def _lines(file: io.TextIOWrapper) -> Iterator[str]:
  """The lines of a table; ValueError where one is longer than any table's, so that the file is something else."""
  while line := file.readline(_LONGEST_LINE + 1):
    if len(line) > _LONGEST_LINE:
      raise ValueError(f'it has a line of more than {_LONGEST_LINE:,} characters')
    yield line


def _delimiter(header: str, columns: Columns) -> str:
  """The delimiter with which the first line of a table has a column of images; a comma if none has."""
  wanted = _IMAGE_COLUMNS if columns.image is None else (columns.image,)
  for delimiter in _DELIMITERS:
    found = next(csv.reader([header], delimiter=delimiter), [])
    if any(name in found for name in wanted):
      return delimiter
  return ','
