"""Data sets of arrays: CIFAR, MNIST, STL-10 and SVHN in the layout of their authors' files, written here by NumPy."""

import gzip
import io
import pathlib
import pickle
import struct
import tarfile

import numpy as np
import pytest
import scipy.io
import tensorflow_datasets as tfds
from PIL import Image

from vit_jax.foundation.errors import UserError
from vit_jax.prepare import run
from vit_jax.prepare.images import Shrinking

NAMES = ['airplane', 'bird', 'cat', 'frog']
SPLITS = {'train': 7, 'test': 3}


def _drawn(split: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
  """(N, *shape) pixels and (N,) labels of a split."""
  rng = np.random.default_rng(SPLITS[split])
  count = SPLITS[split]
  return rng.integers(0, 256, (count, *shape), np.uint8), rng.integers(0, 4, count, np.uint8)


def _rows(pixels: np.ndarray) -> np.ndarray:
  """Red plane, green plane, blue plane: (N, 3 H W)."""
  return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(len(pixels), -1)


def _cifar_python(split: str, pixels: np.ndarray, labels: np.ndarray) -> dict[str, bytes]:
  batch = {b'data': _rows(pixels), b'labels': labels.tolist(), b'filenames': [b'a.png'] * len(labels)}
  name = 'data_batch_1' if split == 'train' else 'test_batch'
  meta = {b'label_names': [name.encode() for name in NAMES]}
  files = {name: pickle.dumps(batch, 2), 'batches.meta': pickle.dumps(meta, 2)}
  return {f'cifar-10-batches-py/{name}': content for name, content in files.items()}


def _cifar_100(split: str, pixels: np.ndarray, labels: np.ndarray) -> dict[str, bytes]:
  rows = np.concatenate([np.full((len(labels), 1), 9, np.uint8), labels[:, None], _rows(pixels)], axis=1)
  folder = 'cifar-100-binary'
  return {
    f'{folder}/{split}.bin': rows.tobytes(),
    f'{folder}/fine_label_names.txt': '\n'.join(NAMES).encode(),
  }


def _mnist(split: str, pixels: np.ndarray, labels: np.ndarray) -> dict[str, bytes]:
  prefix = 'train' if split == 'train' else 't10k'
  images = struct.pack('>4i', 2051, *pixels.shape) + pixels.tobytes()
  return {
    f'{prefix}-images-idx3-ubyte.gz': gzip.compress(images),
    f'{prefix}-labels-idx1-ubyte.gz': gzip.compress(struct.pack('>2i', 2049, len(labels)) + labels.tobytes()),
  }


def _stl(split: str, pixels: np.ndarray, labels: np.ndarray) -> dict[str, bytes]:
  return {
    f'stl10_binary/{split}_X.bin': pixels.transpose(0, 3, 2, 1).tobytes(),  # columns before rows
    f'stl10_binary/{split}_y.bin': (labels + 1).tobytes(),
    'stl10_binary/class_names.txt': '\n'.join(NAMES).encode(),
  }


def _svhn(split: str, pixels: np.ndarray, labels: np.ndarray) -> dict[str, bytes]:
  file = io.BytesIO()
  digits = np.where(labels == 0, 10, labels)[:, None]
  scipy.io.savemat(file, {'X': pixels.transpose(1, 2, 3, 0), 'y': digits})
  return {f'{split}_32x32.mat': file.getvalue()}


def _write(place: pathlib.Path, files: dict[str, bytes]) -> pathlib.Path:
  """A folder, or an archive where the place's name says so."""
  if place.suffix == '.gz':
    with tarfile.open(place, 'w:gz') as archive:
      for name, content in files.items():
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return place
  for name, content in files.items():
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(content)
  return place


@pytest.mark.parametrize(
  'make, place, shape, names',
  [
    (_cifar_python, 'cifar-10-python.tar.gz', (32, 32, 3), NAMES),
    (_cifar_python, 'folder', (32, 32, 3), NAMES),
    (_cifar_100, 'cifar-100-binary.tar.gz', (32, 32, 3), NAMES),
    (_mnist, 'mnist', (28, 28), ['0', '1', '2', '3']),
    (_stl, 'stl10_binary.tar.gz', (96, 96, 3), NAMES),
    (_svhn, 'svhn', (32, 32, 3), ['0', '1', '2', '3']),
  ],
)
def test_pixels_labels_and_names_are_those_that_were_written(tmp_path, make, place, shape, names):
  drawn = {split: _drawn(split, shape) for split in SPLITS}
  files = {}
  for split, arrays in drawn.items():
    files |= make(split, *arrays)
  source = _write(tmp_path / place, files)
  result = run.prepare(str(source), str(tmp_path / 'prepared'), run.Options(Shrinking()))
  assert result.records == SPLITS
  builder = tfds.builder_from_directory(tmp_path / 'prepared')
  assert builder.info.features['label'].names == names
  for split, (pixels, labels) in drawn.items():
    decoders = {'image': tfds.decode.SkipDecoding()}
    records = list(builder.as_data_source(split=split, decoders=decoders))
    found = {
      np.asarray(Image.open(io.BytesIO(record['image']))).tobytes(): int(record['label'])
      for record in records
    }
    assert found == {image.tobytes(): label for image, label in zip(pixels, labels.tolist(), strict=True)}


def test_files_that_lie_packed_and_unpacked_are_read_once_and_two_data_sets_are_refused(tmp_path):
  """As torchvision leaves MNIST, and MNIST beside FashionMNIST: labels 0 to 9 mean other things there."""
  packed = {}
  for split in SPLITS:
    packed |= _mnist(split, *_drawn(split, (28, 28)))
  unpacked = {name.removesuffix('.gz'): gzip.decompress(content) for name, content in packed.items()}
  _write(tmp_path / 'data/MNIST/raw', packed | unpacked)
  result = run.prepare(str(tmp_path / 'data/MNIST/raw'), str(tmp_path / 'prepared'), run.Options(Shrinking()))
  assert result.records == SPLITS
  others = {name: content[:-1] + b'\x03' for name, content in unpacked.items()}
  _write(tmp_path / 'data/FashionMNIST/raw', others)
  with pytest.raises(
    UserError,
    match=r'data has data/FashionMNIST/raw/.*ubyte and data/MNIST/raw/.*ubyte, which are of two data sets',
  ):
    run.prepare(str(tmp_path / 'data'), str(tmp_path / 'both'), run.Options(Shrinking()))


def test_files_that_kaggle_has_twice_are_read_once(tmp_path):
  """MNIST as Kaggle has it: each file as NAME.idx3-ubyte and as NAME-idx3-ubyte/NAME-idx3-ubyte."""
  for split in SPLITS:
    for name, content in _mnist(split, *_drawn(split, (28, 28))).items():
      name, content = name.removesuffix('.gz'), gzip.decompress(content)
      _write(tmp_path / 'data', {name.replace('-idx', '.idx'): content, f'{name}/{name}': content})
  result = run.prepare(str(tmp_path / 'data'), str(tmp_path / 'prepared'), run.Options(Shrinking()))
  assert result.records == SPLITS


@pytest.mark.parametrize('other', [_mnist, _cifar_100])
def test_data_sets_whose_files_have_other_names_are_not_mixed(other, tmp_path):
  shape = (28, 28) if other is _mnist else (32, 32, 3)
  for split in SPLITS:
    _write(
      tmp_path / 'data',
      _cifar_python(split, *_drawn(split, (32, 32, 3))) | other(split, *_drawn(split, shape)),
    )
  with pytest.raises(UserError, match=r'data has data/.* and data/.*, which are of two data sets, or forms'):
    run.prepare(str(tmp_path / 'data'), str(tmp_path / 'prepared'), run.Options(Shrinking()))


def test_a_pickle_with_code_is_not_run(tmp_path):
  class Attack:
    def __reduce__(self):
      return pathlib.Path.touch, (tmp_path / 'ran',)

  files = {'cifar-10-batches-py/data_batch_1': pickle.dumps({b'data': Attack()}, 2)}
  source = _write(tmp_path / 'cifar-10-python.tar.gz', files)
  with pytest.raises(UserError, match='is no array'):
    run.prepare(str(source), str(tmp_path / 'prepared'), run.Options(Shrinking()))
  assert not (tmp_path / 'ran').exists()
