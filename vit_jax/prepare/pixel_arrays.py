"""Data sets that their authors publish as arrays of pixels: CIFAR-10, CIFAR-100, MNIST and its kin, STL-10, SVHN.

A source is the archive of one of them (`cifar-10-python.tar.gz`, `cifar-100-binary.tar.gz`, `stl10_binary.tar.gz`),
or a folder that holds its files: MNIST's four, packed or not, SVHN's `.mat`, or what an archive unpacks to. The images
of each split are first copied as PNGs into one file in the work folder.
"""

import gzip
import io
import itertools
import pickle
import posixpath
import re
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
from PIL import Image

from vit_jax.foundation.errors import UserError, first_line
from vit_jax.prepare import storage
from vit_jax.prepare.source_image import SourceImage

_LOOKED_AT = 8  # files of a folder, by which it is recognised
_LARGEST = 2**31  # bytes of a file, of which SVHN's extra images take 1.3 GB
_ARCHIVES = r'(cifar-100?-(python|binary)|stl10_binary)\.(tar\.gz|tgz|tar)'
_SAFE = {
  ('numpy.core.multiarray', '_reconstruct'),
  ('numpy._core.multiarray', '_reconstruct'),
  ('numpy', 'ndarray'),
  ('numpy', 'dtype'),
  ('_codecs', 'encode'),
}


class _Content(NamedTuple):
  """What a file has: images and labels, or one of the two where they lie in separate files, or names alone."""

  images: np.ndarray | None = None  # uint8 (N, H, W, 3) or (N, H, W)
  labels: np.ndarray | None = None  # (N,), from 0
  names: tuple[str, ...] = ()  # of the classes


class _Unpickler(pickle.Unpickler):
  """Reads CIFAR's pickles, which have arrays, lists, numbers and text: anything else is refused."""

  def find_class(self, module: str, name: str) -> Any:
    if (module, name) not in _SAFE:
      raise UserError(f'A pickle of the source asks for {module}.{name}, which is no array; it is not read.')
    return super().find_class(module, name)


def _pickled(content: bytes) -> _Content:
  values = _Unpickler(io.BytesIO(content), encoding='bytes').load()
  names = values.get(b'fine_label_names') or values.get(b'label_names') or ()
  if b'data' not in values:
    return _Content(names=tuple(name.decode() for name in names))
  labels = values.get(b'fine_labels', values.get(b'labels'))
  return _Content(_channels_last(values[b'data'], 32), np.asarray(labels))


def _binary(labels: int) -> Callable[[bytes], _Content]:
  """A reader of rows that are `labels` bytes of labels, of which the last counts, and 3,072 bytes of pixels."""

  def read(content: bytes) -> _Content:
    rows = np.frombuffer(content, np.uint8).reshape(-1, labels + 3072)
    return _Content(_channels_last(rows[:, labels:], 32), rows[:, labels - 1])

  return read


def _names(content: bytes) -> _Content:
  return _Content(names=tuple(content.decode().split()))


def _idx(content: bytes) -> _Content:
  """Reads the format of http://yann.lecun.com/exdb/mnist: the number of dimensions, the dimensions, and the bytes."""
  dimensions = content[3]
  shape = np.frombuffer(content, '>i4', dimensions, offset=4)
  values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
  return _Content(images=values) if dimensions > 1 else _Content(labels=values)


def _stl_images(content: bytes) -> _Content:
  columns_first = np.frombuffer(content, np.uint8).reshape(-1, 3, 96, 96)
  return _Content(images=columns_first.transpose(0, 3, 2, 1))


def _stl_labels(content: bytes) -> _Content:
  return _Content(labels=np.frombuffer(content, np.uint8).astype(int) - 1)


def _mat(content: bytes) -> _Content:
  import scipy.io

  values = scipy.io.loadmat(io.BytesIO(content), variable_names=('X', 'y'))
  labels = values['y'].ravel().astype(int) % 10  # 10 is the digit 0
  return _Content(values['X'].transpose(3, 0, 1, 2), labels)


def _channels_last(rows: np.ndarray, side: int) -> np.ndarray:
  return rows.reshape(-1, 3, side, side).transpose(0, 2, 3, 1)


class _Reader(NamedTuple):
  """What reads a file."""

  ending: str  # of its path, a regex
  of: str  # the data set that has it, in one of its forms; '': several
  read: Callable[[bytes], _Content]


_READERS = (
  _Reader(r'(data_batch_\d|test_batch|batches\.meta)', 'CIFAR-10 for Python', _pickled),
  _Reader(r'cifar-100-python/(train|test|meta)', 'CIFAR-100 for Python', _pickled),
  _Reader(r'(data_batch_\d|test_batch)\.bin', 'CIFAR-10 for C', _binary(1)),
  _Reader(r'cifar-100-binary/(train|test)\.bin', 'CIFAR-100 for C', _binary(2)),
  _Reader(r'(batches\.meta|fine_label_names|class_names)\.txt', '', _names),
  _Reader(r'(train|t10k|test)-(images[.-]idx3|labels[.-]idx1)-ubyte(\.gz)?', 'MNIST', _idx),
  _Reader(r'(train|test)_X\.bin', 'STL-10', _stl_images),
  _Reader(r'(train|test)_y\.bin', 'STL-10', _stl_labels),
  _Reader(r'(train|test|extra)_32x32\.mat', 'SVHN', _mat),
)


def is_arrays(source: str) -> bool:
  """Whether a source is one of these data sets, by the name of an archive or the first files of a folder."""
  if not storage.is_folder(source):
    return re.fullmatch(_ARCHIVES, posixpath.basename(source)) is not None
  folder = posixpath.basename(source.rstrip('/'))
  first = itertools.islice(storage.list_files(source), _LOOKED_AT)
  return any(_reader(f'{folder}/{name}') for name, _ in first if not name.endswith('.txt'))


def list_images(
  source: str, work: str, *, limit: int | None
) -> tuple[tuple[str, ...], Iterator[SourceImage]]:
  """Copies the images of all splits, at most `limit` of each, into the work folder.

  Returns:
    The names of the classes, () where the source has none; and the images.

  Raises:
    UserError: a file is damaged, images and labels differ in number, or there are two data sets.
    OSError: the copy cannot be written.
  """
  index = storage.join(work, 'unpacked', 'arrays.json')
  if not storage.exists(index):
    storage.write_json(index, _unpack(source, _contents(source), work, limit), work)
  found = storage.read_json(index)
  return tuple(found['names']), (SourceImage(*image) for image in found['images'])


def _contents(source: str) -> dict[str, list[_Content]]:
  """Split -> what its files have; a file that is there twice, as in Kaggle's MNIST, counts once. As `list_images`."""
  contents: dict[str, list[_Content]] = defaultdict(list)
  first: dict[str, tuple[str, _Content]] = {}
  data_sets: dict[str, str] = {}
  for name, file in _files(source):
    reader = _reader(name)
    if reader is None:
      continue
    content = _read(reader.read, name, file)
    base = posixpath.basename(name.removesuffix('.gz')).replace('.idx', '-idx')
    other, there = first.setdefault(base, (name, content))
    data_sets.setdefault(reader.of, name)
    several = [data_sets[of] for of in data_sets if of][:2]
    if there is content:
      contents[_split(name)].append(content)
    elif not _are_equal(there, content):
      several = [other, name]
    if len(several) > 1:
      raise UserError(
        f'{source} has {several[0]} and {several[1]}, which are of two data sets, or forms of one; give the folder of '
        'one of them.'
      )
  return contents


def _are_equal(one: _Content, other: _Content) -> bool:
  """Whether two files have the same arrays and names."""
  return all(
    np.array_equal(a, b) if a is not None and b is not None else a is b
    for a, b in zip(one, other, strict=True)
  )


def _unpack(
  source: str, contents: dict[str, list[_Content]], work: str, limit: int | None
) -> dict[str, list[Any]]:
  """Writes a file for each split; returns the names of the classes, and a `SourceImage` of each image."""
  names = next((part.names for parts in contents.values() for part in parts if part.names), ())
  listed = []
  for split, parts in sorted(contents.items()):
    images = [image for part in parts if part.images is not None for image in part.images]
    labels = [label for part in parts if part.labels is not None for label in part.labels.tolist()]
    if len(images) != len(labels):
      raise UserError(
        f'{source} has {len(images):,} images and {len(labels):,} labels of {split}; restore its files.'
      )
    if not images:
      continue
    copy = storage.join(work, 'unpacked', f'{split}.images')
    offset = 0
    with storage.atomic_path(copy, work) as local, open(local, 'wb') as file:
      for number, (pixels, label) in enumerate(itertools.islice(zip(images, labels, strict=True), limit)):
        png = io.BytesIO()
        Image.fromarray(pixels).save(png, 'PNG')
        size = file.write(png.getvalue())
        listed.append(SourceImage(f'{split}/{number:06}', copy, offset, size, split, [str(label)]))
        offset += size
  return {'names': list(names), 'images': listed}


def _files(source: str) -> Iterator[tuple[str, BinaryIO]]:
  """The path of each file within the source, and its open content."""
  if storage.is_folder(source):
    folder = posixpath.basename(source.rstrip('/'))
    for name, _ in storage.list_files(source):
      with storage.open_file(storage.join(source, name)) as file:
        yield f'{folder}/{name}', file
    return
  with storage.open_file(source) as packed, tarfile.open(fileobj=packed, mode='r|*') as archive:
    for member in archive:
      file = archive.extractfile(member) if member.isfile() else None
      if file is not None:
        yield member.name, cast(BinaryIO, file)


def _reader(name: str) -> _Reader | None:
  """What reads a file, by the end of its path."""
  return next((reader for reader in _READERS if re.search(rf'(^|/){reader.ending}$', name)), None)


def _split(name: str) -> str:
  file = posixpath.basename(name)
  if file.startswith(('test', 't10k')):
    return 'test'
  return 'extra' if file.startswith('extra') else 'train'


def _read(reader: Callable[[bytes], _Content], name: str, file: BinaryIO) -> _Content:
  try:
    content = (gzip.GzipFile(fileobj=file) if name.endswith('.gz') else file).read(_LARGEST + 1)
    if len(content) > _LARGEST:
      raise UserError(f'{name} has more than {_LARGEST // 2**30} GiB; check what it is.')
    return reader(content)
  except UserError:
    raise
  except Exception as error:  # NumPy, pickle, SciPy and gzip raise many types for a damaged file
    raise UserError(f'{name} cannot be read ({first_line(error)}); restore it.') from error
