"""What may be prepared, as one listing of named images: folders of classes, tar and zip archives, tables.

- A folder or archive with a folder for each class, below train/, val/ (or validation/) and test/ or without
  these. In an archive, single folders around all that are passed over; a tar in a tar stands for a folder of
  its name, and so does each archive in a folder that has archives and no images.
- A .csv file with the columns image, label and, if there are splits, split. Paths are absolute, addresses, or
  relative to the file.
- A folder with metadata.csv or metadata.jsonl, in it or in its folders of splits (Hugging Face's image
  folder), with the columns file_name and label.

A label is a class's name, or several with ';' or '|' between them (in .jsonl also a list).
"""

import collections
import csv
import io
import json
import logging
import os
import pathlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from vit_jax.data.sources.folder import SPLITS
from vit_jax.data.sources.folder_listing import EXTENSIONS
from vit_jax.errors import UserError
from vit_jax.prepare import archives, storage

_TABLES = ('metadata.csv', 'metadata.jsonl')
_PATH_COLUMNS = ('image', 'file_name')
_LABEL_COLUMNS = ('label', 'labels')

_Folders = tuple[str, ...]


class Image(NamedTuple):
  """An image to prepare."""

  name: str  # its path in the source, with '/': what errors call it, and what the order depends on
  path: str  # the file, or the archive that it is in
  within: int | str | None  # where in an archive (archives.Member)
  size: int | None  # bytes, if known
  split: str = ''
  labels: Sequence[str] = ()  # the names of its classes


class Listing:
  """The images of a source, once listed; can be gone through several times."""

  def __init__(self, source: str, scratch: pathlib.Path, work: str):
    """Lists a source.

    Args:
      source: a path or an address.
      scratch: a local folder for the list.
      work: a folder or an address for a decompressed archive.

    Raises:
      UserError: no such source, one of an unknown kind, without images, or wrongly laid out.
    """
    self._source, self._list = source, scratch / 'listing.jsonl'
    self._other, self._num_others = '', 0  # the first file that is no image
    self._classes_are_folders = not _is_table(source)
    self._layout = _Layout()
    with open(self._list, 'w') as file:
      for image in self._found(source, work):
        file.write(json.dumps(image) + '\n')
    if self._classes_are_folders:
      self._layout.settle(source)
    self._warn()

  def __iter__(self) -> Iterator[Image]:
    """The images, each with its split and labels, in the source's order."""
    with open(self._list) as file:
      for line in file:
        image = Image(*json.loads(line))
        if self._classes_are_folders:
          image = self._layout.placed(image)
        if image is not None:
          yield image

  def sorted_classes(self, names: Iterable[str]) -> list[str]:
    """Folders by name; in a table, classes that are all numbers by number."""
    names = list(names)
    by_number = not self._classes_are_folders and all(re.fullmatch('[0-9]+', name) for name in names)
    return sorted(names, key=lambda name: (int(name) if by_number else 0, name))

  def _warn(self) -> None:
    if self._num_others:
      logging.warning(
        '%s: ignored %d files that are not images, such as %s.', self._source, self._num_others, self._other
      )
    if self._layout.num_misplaced:
      logging.warning('%s: ignored %d images in no class folder.', self._source, self._layout.num_misplaced)

  def _found(self, source: str, work: str) -> Iterator[Image]:
    if not storage.exists(source):
      raise UserError(f'There is no {source}; give a folder, a tar or zip archive, or a .csv file.')
    if not self._classes_are_folders:
      yield from _tabled(source)
    elif storage.is_folder(source):
      self._layout.may_be_wrapped = False
      yield from self._images(_below(source))
    else:
      yield from self._images(_in_archive(archives.decompressed(source, work)))

  def _images(self, files: Iterable[Image]) -> Iterator[Image]:
    """Those of the files that are images, their names tidied."""
    for file in files:
      parts = [part for part in file.name.split('/') if part not in ('', '.')]
      if not parts or any(part.startswith('.') for part in parts):
        continue  # hidden, such as a Mac's ._files
      if not parts[-1].lower().endswith(EXTENSIONS):
        self._other = self._other or file.name
        self._num_others += 1
        continue
      self._layout.folders[tuple(parts[:-1])] += 1
      yield file._replace(name='/'.join(parts))


class _Layout:
  """Which folders are splits, and which classes."""

  def __init__(self):
    self.folders: collections.Counter[_Folders] = collections.Counter()  # how many images each has itself
    self.may_be_wrapped = True
    self._wrapping: _Folders = ()
    self._has_splits = False

  def settle(self, source: str) -> None:
    """Decides, when all folders are known. Raises UserError where there are no classes."""
    while self.may_be_wrapped and (inner := self._only_folder()):
      self._wrapping = (*self._wrapping, inner)
    splits = self._next() & SPLITS.keys()
    self._has_splits = bool(splits)
    if {'val', 'validation'} <= splits:
      raise UserError(f'{source} has both val/ and validation/; remove or rename one of them.')
    if not any(map(self._split_and_class, self.folders)):
      raise UserError(
        f'{source} has no images in class folders; put the {", ".join(e[1:] for e in EXTENSIONS)} files of '
        f'each class into a folder named after it, or list them in a .csv file.'
      )

  @property
  def num_misplaced(self) -> int:
    """How many images are in no class's folder."""
    return sum(count for folders, count in self.folders.items() if not self._split_and_class(folders))

  def placed(self, image: Image) -> Image | None:
    """With split and class, its name without the wrapping; None: it is in no class's folder."""
    parts = image.name.split('/')
    found = self._split_and_class(tuple(parts[:-1]))
    if found is None:
      return None
    split, label = found
    return image._replace(name='/'.join(parts[len(self._wrapping) :]), split=split, labels=(label,))

  def _split_and_class(self, folders: _Folders) -> tuple[str, str] | None:
    depth = len(self._wrapping)
    if folders[:depth] != self._wrapping:
      return None
    match self._has_splits, folders[depth:]:
      case False, (label, *_):
        return 'train', label
      case True, (split, label, *_) if split in SPLITS:
        return SPLITS[split], label
    return None

  def _only_folder(self) -> str | None:
    """The folder around all classes or splits, within those known to wrap them."""
    inner = self._next()
    if len(inner) != 1 or inner & SPLITS.keys():
      return None
    depth = len(self._wrapping) + 1
    return inner.pop() if any(len(folders) > depth for folders in self.folders) else None

  def _next(self) -> set[str]:
    """The names of the folders directly within the wrapping ones."""
    depth = len(self._wrapping)
    return {f[depth] for f in self.folders if len(f) > depth and f[:depth] == self._wrapping}


def _below(folder: str) -> Iterator[Image]:
  """The files below a folder; if it has no images but archives, what is in these."""
  packed, has_images = [], False
  for name, size in storage.files(folder):
    has_images |= name.lower().endswith(EXTENSIONS)
    packed += [name] if archives.is_archive(name) else []
    yield Image(name, storage.join(folder, name), None, size)
  for name in [] if has_images else packed:
    yield from _in_archive(storage.join(folder, name), archives.stem(name) + '/')


def _in_archive(path: str, prefix: str = '') -> Iterator[Image]:
  for member in archives.members(path):
    yield Image(prefix + member.name, path, member.within, member.size)


def _is_table(source: str) -> bool:
  return source.lower().endswith('.csv') or bool(storage.is_folder(source) and list(_tables(source)))


def _tables(folder: str) -> Iterator[str]:
  """Paths of the metadata files of a folder, or those of its splits, relative to it."""
  for prefixes in (('',), [f'{name}/' for name in SPLITS]):
    found = [
      p + table for p in prefixes for table in _TABLES if storage.exists(storage.join(folder, p + table))
    ]
    yield from found
    if found:
      return


def _tabled(source: str) -> Iterator[Image]:
  """The images that a .csv file, or the metadata of a folder, lists."""
  if not storage.is_folder(source):
    folder = source.rpartition('/')[0] if storage.is_address(source) else os.path.dirname(source)
    yield from _listed(source, folder, '')
    return
  for table in _tables(source):
    yield from _listed(storage.join(source, table), source, posixpath.dirname(table))


def _listed(table: str, root: str, below: str) -> Iterator[Image]:
  """The images of one table.

  Args:
    table: its path.
    root: the folder that names are relative to.
    below: the folder of a split within it that the table is in, or ''.
  """
  for line, row in _rows(table):
    where = f'{table} line {line}'
    path = _column(row, _PATH_COLUMNS, where)
    if not isinstance(path, str) or not path:
      raise UserError(f'{where} has no path of an image; fill it in, or remove the line.')
    if not table.endswith('.csv') or posixpath.basename(table) in _TABLES:
      _check_inside(path, where)
    name = posixpath.join(below, posixpath.normpath(path)) if not storage.is_address(path) else path
    absolute = storage.is_address(name) or os.path.isabs(name)
    place = name if absolute else storage.join(root, name)
    labels = tuple(_labels(_column(row, _LABEL_COLUMNS, where), where))
    yield Image(name, place, None, storage.size(place), _split(row, name, where), labels)


def _check_inside(path: str, where: str) -> None:
  """Metadata comes with its images, from anyone."""
  if storage.is_address(path) or os.path.isabs(path) or '..' in path.split('/'):
    raise UserError(f'{where} names {path}, which is not below its folder; remove the line.')


def _split(row: dict[str, Any], name: str, where: str) -> str:
  """The column 'split', or the first folder, if it is called so; else 'train'."""
  split = row.get('split') or SPLITS.get(name.split('/')[0], 'train')
  if not isinstance(split, str) or not re.fullmatch(r'[A-Za-z]\w*', split) or split == 'all':
    raise UserError(f'{where} has the split {split!r}; write train, val, test or another single word.')
  return SPLITS.get(split, split)


def _labels(value: Any, where: str) -> list[str]:
  """The class names that a cell gives, each once, in order."""
  match value:
    case None:
      values = []
    case str():
      values = re.split('[;|]', value)
    case list():
      values = value
    case _:
      values = [value]
  if not all(isinstance(value, str | int) for value in values):
    raise UserError(f'{where} has the label {value!r}; write a name, a number, or a list of these.')
  return list(dict.fromkeys(name for value in values if (name := str(value).strip())))


def _column(row: dict[str, Any], names: Iterable[str], where: str) -> Any:
  for name in names:
    if name in row:
      return row[name]
  raise UserError(
    f'{where} has no column {" or ".join(map(repr, names))}, but {", ".join(map(str, row)) or "none"}; '
    f'rename one of them.'
  )


def _rows(table: str) -> Iterator[tuple[int, dict[str, Any]]]:
  """Line numbers and rows of a .csv or .jsonl file."""
  line = 1
  try:
    with io.TextIOWrapper(storage.open_file(table), 'utf-8-sig', newline='') as file:
      if table.endswith('.jsonl'):
        for line, text in enumerate(file, start=1):
          row = json.loads(text)
          if not isinstance(row, dict):
            raise ValueError('it is not an object')
          yield line, row
        return
      reader = csv.DictReader(file)
      for row in reader:
        line = reader.line_num
        yield line, row
  except (csv.Error, ValueError) as error:  # of JSON and of UTF-8 too
    raise UserError(f'{table} cannot be read near line {line} ({error}); correct it.') from error
