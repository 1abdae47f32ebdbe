"""The images of a source, in one list, whatever the source is.

- A folder or archive with a folder for each class, below those of splits (`folder_layout`) or without. In an archive,
  single folders around all others are passed over. A tar within a tar stands for a folder of its name, and so does
  each archive in a folder that has archives and no images.
- A table, or a folder with Hugging Face's metadata (tables.py); shards of WebDataset (webdataset.py); parquet files
  with the images in them (parquet.py); the files of CIFAR, MNIST, STL-10 and SVHN (pixel_arrays.py); ImageNet's
  challenge of 2012 as it is given out (imagenet2012.py).
"""

import json
import logging
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator

from vit_jax.data.sources.folder_layout import is_hidden
from vit_jax.data.sources.folder_listing import EXTENSIONS
from vit_jax.foundation.errors import UserError
from vit_jax.prepare import (
  archives,
  class_archives,
  imagenet2012,
  parquet,
  pixel_arrays,
  sample_labels,
  storage,
  tables,
  webdataset,
)
from vit_jax.prepare.class_archives import ClassArchives
from vit_jax.prepare.layout import Layout
from vit_jax.prepare.selection import EVERYTHING, Selection
from vit_jax.prepare.source_image import SourceImage

_log = logging.getLogger(__name__)

_COUNTED = 1000  # images, after which progress is told


class Listing:
  """The images of a source, listed once into a local file; can be iterated over several times."""

  def __init__(
    self,
    source: str,
    scratch: pathlib.Path,
    work: str,
    *,
    columns: tables.Columns = tables.USUAL_COLUMNS,
    selection: Selection = EVERYTHING,
    allow_cut: bool = False,
    listed: Callable[[int], None] | None = None,
  ):
    """
    Args:
      source: its path or address.
      scratch: a local folder for the list.
      work: a folder or address for a decompressed archive, or for what is copied out of parquet files.
      columns: which columns of a table to read.
      selection: which images to list, and what their split and classes are called.
      allow_cut: whether a tar that was cut short is only warned of.
      listed: called with the number of images that were listed since the last call.

    Raises:
      UserError: there is no such source, it is of an unknown kind, has no images, or its layout is wrong.
    """
    self._source, self._list = source, scratch / 'listing.jsonl'
    self._selection, self._allow_cut = selection, allow_cut
    self._ignored, self._num_ignored = '', 0  # the first file that is no image; the number of them
    self._layout, self._archives = Layout(), ClassArchives(source)
    check_exists(source)
    if not columns.has_labels and (selection.classes or selection.class_names):
      raise UserError(
        '--caption_column prepares no classes; leave out --classes and --class_names, or add --label_column.'
      )
    self._is_table = tables.is_table(source)
    self._has_labels = True  # else they follow from the layout, once all images are known
    self._class_names = selection.class_names
    self._keeps_numbers = False  # of classes that are numbers
    images = self._images(work, columns)
    with open(self._list, 'w', encoding='utf-8') as file:
      count = 0
      for count, image in enumerate(images, start=1):
        file.write(json.dumps(image) + '\n')
        if listed and count % _COUNTED == 0:
          listed(_COUNTED)
      if listed:
        listed(count % _COUNTED)
    if not self._has_labels:
      self._layout.settle(source, self._archives.folders)
      self._archives.check(self._layout.is_class)
    self._warn()

  def __iter__(self) -> Iterator[SourceImage]:
    """The images, with split and labels, in the order of the source."""
    with open(self._list, encoding='utf-8') as file:
      for line in file:
        image = SourceImage(*json.loads(line))
        placed = image if self._has_labels else self._layout.placed(image)
        if placed is not None and (selected := self._selection.of(placed)):
          yield selected

  def ordered_classes(self, names: Iterable[str]) -> tuple[list[str], list[str]]:
    """The classes in the order of their labels: by name, or by number if those of a table are all numbers.

    Arguments, result and errors as of `sample_labels.ordered_classes`.
    """
    names = list(names)
    if self._keeps_numbers:
      return sample_labels.ordered_classes(names, self._class_names)
    if self._class_names is not None:
      raise UserError(f'{self._source} has names for its classes; leave out --class_names.')
    if self._is_table and all(re.fullmatch('[0-9]+', name) for name in names):
      ordered = sorted(names, key=lambda name: (int(name), name))
    else:
      ordered = sorted(names)
    return ordered, ordered

  def _images(self, work: str, columns: tables.Columns) -> Iterator[SourceImage]:
    """The images of any source; sets what is known of their labels."""
    source, limit = self._source, self._selection.limit
    if self._is_table:
      if columns.weight or limit:
        raise UserError(f'{source} is a table; leave out --weight_column and --limit.')
      return tables.list_images(source, columns, any_address=self._selection.any_address)
    if parquet.is_parquet(source):
      self._keeps_numbers = True
      self._class_names = self._class_names or parquet.class_names(source, columns)
      return parquet.list_images(source, work, columns, limit=limit)
    if not columns.label and not columns.caption and pixel_arrays.is_arrays(source):
      self._keeps_numbers = True
      names, images = pixel_arrays.list_images(source, work, limit=limit)
      self._class_names = self._class_names or names or None
      return images
    if webdataset.is_shards(source, columns):
      self._keeps_numbers = True
      return webdataset.list_images(source, columns, allow_cut=self._allow_cut, limit=limit)
    if columns != tables.USUAL_COLUMNS:
      raise UserError(
        f'{source} is not a table; leave out --image_column, --label_column and --caption_column.'
      )
    if imagenet2012.is_challenge(source):
      return imagenet2012.list_images(source, allow_cut=self._allow_cut, limit=limit)
    self._has_labels = False
    return self._found(work)

  def _warn(self) -> None:
    if self._num_ignored:
      _log.warning(
        '%s: ignored %d files that are not images, such as %s.',
        self._source,
        self._num_ignored,
        self._ignored,
      )
    if self._layout.num_misplaced:
      _log.warning('%s: ignored %d images in no class folder.', self._source, self._layout.num_misplaced)

  def _found(self, work: str) -> Iterator[SourceImage]:
    """The images of a folder or archive, not yet with split and labels."""
    if storage.is_folder(self._source):
      self._layout.is_archive = False
      yield from self._in_folder()
    else:
      yield from self._in_archive(archives.decompressed(self._source, work), '', self._source)

  def _in_folder(self) -> Iterator[SourceImage]:
    """The images in a folder; if it has none, those in its archives."""
    packed, has_images = [], False
    for name, size in storage.list_files(self._source):
      if archives.is_archive(name):
        packed.append(name)
      elif image := self._image(SourceImage(name, storage.join(self._source, name), None, size)):
        has_images = True
        yield image
    if has_images:
      self._ignore_archives(packed)
      return
    for name in packed:
      if archives.is_compressed(name):
        raise UserError(
          f'{self._source} holds {name}, which has no random access; give that archive itself, or unpack it.'
        )
      path = storage.join(self._source, name)
      yield from self._in_archive(path, archives.stem(name), path)

  def _ignore_archives(self, names: list[str]) -> None:
    """Counts archives beside images as files that are not images, unless they are a series of parts."""
    numbered = [name for name in names if class_archives.is_numbered(archives.stem(name))]
    if len(numbered) > 1:
      class_archives.refuse_numbered(self._source, archives.stem(numbered[0]))
    for name in names:
      self._ignore(name)

  def _in_archive(self, path: str, folder: str, title: str) -> Iterator[SourceImage]:
    """The images in an archive, which stands for `folder` ('' for the source itself); errors call it `title`."""
    limit = self._selection.limit
    for member in archives.members(path, name=title, allow_cut=self._allow_cut, limit=limit):
      file = SourceImage(f'{folder}/{member.name}', path, member.location, member.size)
      if image := self._image(file, f'{folder}/{member.folder}'):
        yield image

  def _image(self, file: SourceImage, archive: str = '') -> SourceImage | None:
    """A file with a tidy name, if it is an image; otherwise it is counted. `archive`: the folders of one, or ''."""
    parts = _parts(file.name)
    if not parts or any(map(is_hidden, parts)):
      return None
    name = '/'.join(parts)
    class_archives.refuse_records(self._source, name)
    is_image = name.lower().endswith(EXTENSIONS)
    if folders := _parts(archive):
      self._archives.add(folders, name, is_image=is_image)
    if not is_image:
      self._ignore(name)
      return None
    limit = self._selection.limit
    if limit is not None and self._layout.folders[parts[:-1]] >= limit:
      return None
    self._layout.folders[parts[:-1]] += 1
    return file._replace(name=name)

  def _ignore(self, name: str) -> None:
    self._ignored = self._ignored or name
    self._num_ignored += 1
    self._layout.ignore(_parts(name))


def check_exists(source: str) -> None:
  """Raises UserError if there is no such source."""
  if not storage.exists(source):
    raise UserError(f'There is no {source}; give a folder, a tar or zip archive, or a file .csv or .parquet.')


def _parts(path: str) -> tuple[str, ...]:
  """The folders and the file of a path, without those that mean nothing ('a/./b//c')."""
  return tuple(part for part in path.split('/') if part not in ('', '.'))
