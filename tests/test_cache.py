"""The cache of arrays: what is damaged is not there, and what fails leaves nothing behind."""

import io
import logging

import numpy as np
import pytest

from vit_jax.foundation import cache


@pytest.fixture
def path(tmp_path, monkeypatch):
  """Where the arrays of the name 'kind/name' lie."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  return tmp_path / 'vit_jax/kind/name.npz'


def test_arrays_are_found_again(path):
  assert cache.load_arrays('kind/name') is None
  cache.save_arrays('kind/name', {'a': np.arange(3), 'b': np.zeros((2, 2), bool)})
  found = cache.load_arrays('kind/name')
  assert found is not None and found.keys() == {'a', 'b'}
  np.testing.assert_array_equal(found['a'], np.arange(3))


def as_npy(array):
  file = io.BytesIO()
  np.save(file, array)
  return file.getvalue()


@pytest.mark.parametrize(
  'content',
  [b'', b'text', as_npy(np.arange(3)), as_npy(np.array([{}], object)), b'PK\3\4' + bytes(100)],
  ids=['empty', 'text', 'one array', 'pickled objects', 'broken archive'],
)
def test_other_content_is_as_nothing(path, content):
  path.parent.mkdir(parents=True)
  path.write_bytes(content)
  assert cache.load_arrays('kind/name') is None


def test_no_damaged_byte_changes_an_array_unnoticed(path):
  array = np.arange(40, dtype=np.int64)
  cache.save_arrays('kind/name', {'a': array})
  sound = path.read_bytes()
  for place in range(len(sound)):
    path.write_bytes(sound[:place] + bytes([sound[place] ^ 0xFF]) + sound[place + 1 :])
    found = cache.load_arrays('kind/name')
    assert found is None or 'a' not in found or np.array_equal(found['a'], array)


def test_arrays_that_cannot_be_written_are_a_warning_and_leave_no_file(path, monkeypatch, caplog):
  def full(file, **arrays):
    file.write(b'some of it')
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(np, 'savez', full)
  with caplog.at_level(logging.WARNING):
    cache.save_arrays('kind/name', {'a': np.arange(3)})
  assert 'kind/name is not kept for the next run' in caplog.text and 'No space left' in caplog.text
  assert not list(path.parent.iterdir())
