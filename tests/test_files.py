"""Files that are written whole and durably, or not at all; and read in bounded memory."""

import errno
import json
import os
import pathlib
import tracemalloc

import numpy as np
import pytest

from vit_jax.foundation import files, foreign_files


@pytest.fixture
def system_calls(monkeypatch):
  """Every fsync and rename from here on, as ('fsync', path) and ('rename', from, to)."""
  calls = []
  fsync, replace = os.fsync, os.replace

  def recorded_fsync(descriptor):
    calls.append(('fsync', os.readlink(f'/proc/self/fd/{descriptor}')))
    fsync(descriptor)

  def recorded_replace(source, target):
    calls.append(('rename', os.fspath(source), os.fspath(target)))
    replace(source, target)

  monkeypatch.setattr(os, 'fsync', recorded_fsync)
  monkeypatch.setattr(os, 'replace', recorded_replace)
  return calls


def test_content_is_synced_before_the_rename_and_the_directory_after_it(tmp_path, monkeypatch, system_calls):
  monkeypatch.chdir(tmp_path)  # a relative path has a directory too
  files.write_text('a.txt', 'Blüte ✿')
  assert (tmp_path / 'a.txt').read_bytes() == 'Blüte ✿'.encode()  # in any locale
  partial = str(tmp_path / 'a.txt.partial')
  assert system_calls == [('fsync', partial), ('rename', 'a.txt.partial', 'a.txt'), ('fsync', str(tmp_path))]


def test_all_content_has_left_the_process_when_it_is_synced(tmp_path, monkeypatch):
  sizes = []
  monkeypatch.setattr(os, 'fsync', lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
  with files.atomic_write(tmp_path / 'a.txt') as file:
    file.write('x' * 100)
  assert sizes[0] == 100


def test_readers_see_the_old_content_until_the_new_one_is_complete(tmp_path):
  path = tmp_path / 'a.txt'
  files.write_text(path, 'old')
  with files.atomic_write(path) as file:
    file.write('new')
    file.flush()
    assert path.read_text() == 'old'
  assert path.read_text() == 'new'
  assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize('error', [ValueError('wrong'), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_content_and_no_partial_file(tmp_path, error):
  path = tmp_path / 'a.txt'
  path.write_text('old')
  with pytest.raises(type(error)), files.atomic_write(path) as file:
    file.write('half')
    raise error
  assert path.read_text() == 'old'
  assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_names_the_target_and_keeps_it(tmp_path):
  path = tmp_path / 'a.txt'
  path.write_text('old')
  (tmp_path / 'a.txt.partial').symlink_to('/dev/full')
  with pytest.raises(OSError) as caught:
    files.write_text(path, 'new')
  assert caught.value.errno in files.DISK_FULL and caught.value.filename == str(path)
  assert path.read_text() == 'old'
  assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_the_one_in_the_error(tmp_path):
  (tmp_path / 'a.txt').mkdir()
  with pytest.raises(IsADirectoryError) as caught:
    files.write_text(tmp_path / 'a.txt', 'new')
  assert caught.value.filename == str(tmp_path / 'a.txt')
  assert list(tmp_path.iterdir()) == [tmp_path / 'a.txt']
  (tmp_path / 'file').write_text('')
  with pytest.raises(OSError) as caught:
    files.write_text(tmp_path / 'file/a.txt', 'new')
  assert caught.value.errno in files.UNWRITABLE


def test_json_has_numpy_scalars_as_numbers_and_null_for_what_json_lacks(tmp_path):
  content = {
    'accuracy': np.float32(0.5),
    'steps': np.int64(7),
    'done': np.bool_(True),
    'loss': np.float64('nan'),
    'rates': [1.5, float('inf'), (-float('inf'), {'inner': float('nan')})],
    'name': 'Blüte',
    'none': None,
  }
  files.write_json(tmp_path / 'a.json', content)
  text = (tmp_path / 'a.json').read_text()

  def refuse(constant):
    raise AssertionError(f'{constant} is not JSON')

  assert json.loads(text, parse_constant=refuse) == {
    'accuracy': 0.5,
    'steps': 7,
    'done': True,
    'loss': None,
    'rates': [1.5, None, [None, {'inner': None}]],
    'name': 'Blüte',
    'none': None,
  }
  assert text.startswith('{\n  "accuracy": 0.5,\n') and text.endswith('}\n')
  with pytest.raises(TypeError):
    files.write_json(tmp_path / 'b.json', {'array': object()})
  assert list(tmp_path.iterdir()) == [tmp_path / 'a.json']


def test_new_directories_are_synced_in_those_above_them(tmp_path, system_calls):
  files.make_directories(tmp_path / 'a/b')
  assert (tmp_path / 'a/b').is_dir()
  assert {path for _, path in system_calls} == {str(tmp_path), str(tmp_path / 'a')}
  system_calls.clear()
  files.make_directories(tmp_path / 'a/b')
  assert not system_calls


def test_a_file_system_that_cannot_sync_directories_is_no_error(tmp_path, monkeypatch):
  codes = iter([errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EIO])

  def fail(descriptor):
    raise OSError(next(codes), 'as the system says')

  monkeypatch.setattr(os, 'fsync', fail)
  for _ in range(3):
    files.fsync_directory(tmp_path)
  with pytest.raises(OSError) as caught:
    files.fsync_directory(tmp_path)
  assert caught.value.errno == errno.EIO


def test_reading_a_foreign_file_takes_as_much_memory_as_it_has_bytes_whatever_it_may_have(tmp_path):
  (tmp_path / 'x').write_bytes(b'x' * 1000)
  tracemalloc.start()
  try:
    assert foreign_files.read_bytes(tmp_path / 'x', 2**40) == b'x' * 1000
    assert tracemalloc.get_traced_memory()[1] < 2**20
  finally:
    tracemalloc.stop()


@pytest.mark.skipif(not pathlib.Path('/proc/self/limits').exists(), reason='has no /proc')
def test_foreign_file_that_tells_no_size_is_read_to_its_end():
  path = pathlib.Path('/proc/self/limits')
  assert path.stat().st_size == 0
  assert foreign_files.read_bytes(path, 2**20) == path.read_bytes()
  with pytest.raises(OSError, match='more than 0 MiB'):
    foreign_files.read_bytes(path, 10)
