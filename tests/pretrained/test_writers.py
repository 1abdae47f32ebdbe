"""Writers of checkpoints where there is no place for one: what the error names, and what is left behind."""

import numpy as np
import pytest
from small_disks import mounted

from vit_jax.foundation import files
from vit_jax.pretrained import npz_archive, safetensors_files

# The first fits into the buffer of a file, the second does not.
ARRAYS = [{'a': np.ones(10, np.float32)}, {'a': np.ones(10, np.float32), 'b': np.ones(100_000, np.float32)}]


@pytest.mark.parametrize('arrays', ARRAYS, ids=['small', 'large'])
def test_npz_on_a_full_disk_is_named_and_leaves_nothing(tmp_path, arrays):
  (tmp_path / 'x.npz.partial').symlink_to('/dev/full')
  with pytest.raises(OSError) as caught:
    npz_archive.write(tmp_path / 'x.npz', arrays)
  assert caught.value.errno in files.DISK_FULL and caught.value.filename == str(tmp_path / 'x.npz')
  assert not list(tmp_path.iterdir())


def test_npz_of_an_error_of_the_callers_leaves_nothing_and_keeps_the_old_one(tmp_path):
  npz_archive.write(tmp_path / 'x.npz', ARRAYS[0])
  with pytest.raises(ValueError, match='inhomogeneous'):
    npz_archive.write(tmp_path / 'x.npz', {'b': np.ones(3, np.float32), 'c': [[1], [1, 2]]})
  assert list(tmp_path.iterdir()) == [tmp_path / 'x.npz']
  assert list(np.load(tmp_path / 'x.npz')) == ['a']


def test_npz_where_a_folder_is_names_the_folder_and_leaves_nothing(tmp_path):
  (tmp_path / 'x.npz').mkdir()
  with pytest.raises(IsADirectoryError) as caught:
    npz_archive.write(tmp_path / 'x.npz', ARRAYS[0])
  assert caught.value.filename == str(tmp_path / 'x.npz')
  assert list(tmp_path.iterdir()) == [tmp_path / 'x.npz']


@pytest.fixture
def small_disk(tmp_path):
  with mounted(tmp_path, 'size=64k') as disk:
    yield disk


def test_safetensors_on_a_full_disk_are_named_and_leave_nothing(small_disk):
  with pytest.raises(OSError) as caught:
    safetensors_files.write(small_disk, ARRAYS[1], {'config.json': '{}'})
  assert caught.value.errno in files.DISK_FULL
  assert caught.value.filename == str(small_disk / 'model.safetensors')
  assert not list(small_disk.iterdir())
