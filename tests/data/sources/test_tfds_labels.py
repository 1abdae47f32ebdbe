"""The labels of a prepared data set are read once, kept, and read again when a file changes."""

import os
import shutil

import numpy as np
import pytest

from vit_jax.data.config import DataConfig
from vit_jax.data.sources import open_source, tfds


@pytest.fixture
def scans(shades_dir, tmp_path, monkeypatch):
  """A list that grows by one each time the labels of a prepared data set are read from its records."""
  monkeypatch.setenv('TFDS_DATA_DIR', str(shades_dir))
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(tfds, '_CHUNK', 3)
  calls = []
  read = tfds.TfdsSource._all_own_labels

  def counted(self):
    calls.append(self)
    return read(self)

  monkeypatch.setattr(tfds.TfdsSource, '_all_own_labels', counted)
  return calls


@pytest.fixture
def folder(shades_dir, tmp_path):
  """A copy of the prepared data set `shades`."""
  shutil.copytree(shades_dir / 'shades/1.2.0', tmp_path / 'shades/1.2.0')
  return tmp_path / 'shades/1.2.0'


def labels_of(folder, split='train'):
  return open_source(f'tfds:{folder}', split, data=DataConfig()).labels().tolist()


@pytest.mark.parametrize(
  ('spec', 'data'),
  [('tfds:shades', DataConfig()), ('tfds:lists', DataConfig(max_labels=4)), ('digits', DataConfig())],
)
def test_labels_are_those_of_the_records(scans, spec, data):
  source = open_source(spec, 'train', data=data)
  for row, i in zip(source.labels(), range(len(source)), strict=True):
    assert row[row >= 0].tolist() == np.ravel(source[i].label).tolist()
  names = source.class_names[::-1]
  reverse = open_source(spec, 'train', data=data, class_names=names).labels()
  labels = source.labels()
  np.testing.assert_array_equal(reverse, np.where(labels < 0, -1, len(names) - 1 - labels))
  assert len(scans) == spec.startswith('tfds')


def test_labels_are_kept_per_split_and_read_again_after_a_change(scans, folder):
  whole = labels_of(folder)
  assert labels_of(folder) == whole and len(scans) == 1
  assert labels_of(folder, 'train[3:7]') == whole[3:7] and len(labels_of(folder, 'test')) == 4
  assert len(scans) == 3
  (file,) = folder.glob('*train*')
  os.utime(file, (0, 0))
  assert labels_of(folder) == whole and len(scans) == 4


def test_shard_replaced_by_one_of_equal_size_and_time_is_noticed(scans, folder):
  source = open_source(f'tfds:{folder}', 'train', data=DataConfig())
  before = source._fingerprint()
  (file,) = folder.glob('*train*')
  state = file.stat()
  replacement = file.with_name('replacement')
  replacement.write_bytes(file.read_bytes())
  os.utime(replacement, ns=(state.st_atime_ns, state.st_mtime_ns))
  replacement.rename(file)
  now = file.stat()
  assert (now.st_size, now.st_mtime_ns) == (state.st_size, state.st_mtime_ns)
  assert source._fingerprint() != before


@pytest.mark.parametrize('place', [0, 100, -1])
def test_shard_is_told_apart_by_a_sample_of_its_bytes(folder, place):
  """Where a file system keeps neither times nor inodes."""
  (file,) = folder.glob('*train*')
  size = file.stat().st_size
  before = tfds._sample(str(file), size)
  content = bytearray(file.read_bytes())
  content[place] ^= 1
  file.write_bytes(content)
  assert tfds._sample(str(file), size) != before
