"""The order in which a save reaches the disk, as the operating system is asked for it.

What is left after a real power cut is the subject of test_power_loss.py.
"""

import contextlib
import os
import pathlib

import jax.numpy as jnp
import pytest

from vit_jax.checkpoint.config import CheckpointConfig
from vit_jax.checkpoint.manager import Manager
from vit_jax.foundation.errors import UserError

ITEMS = {'params': {'kernel': jnp.ones((8, 8))}, 'opt_state': {'mu': jnp.zeros(8)}}


class Syncs:
  """Notes each fsync."""

  def __init__(self, directory: pathlib.Path):
    self._directory = directory
    self._fsync = os.fsync
    self.last: dict[int, tuple[int, int]] = {}  # inode -> (modification time, size) at its last sync
    # (inode, what lies in the directory of steps) at each sync
    self.listings: list[tuple[int, set[str]]] = []

  def __call__(self, descriptor: int) -> None:
    self._fsync(descriptor)
    status = os.fstat(descriptor)
    self.last[status.st_ino] = (status.st_mtime_ns, status.st_size)
    with contextlib.suppress(FileNotFoundError):
      self.listings.append((status.st_ino, set(os.listdir(self._directory))))


@pytest.fixture
def directory(tmp_path):
  return tmp_path / 'run' / 'checkpoints'


@pytest.fixture
def syncs(directory, monkeypatch):
  noted = Syncs(directory)
  monkeypatch.setattr(os, 'fsync', noted)
  return noted


def test_everything_of_a_step_is_synced_after_it_was_written(directory, syncs):
  with Manager(directory, CheckpointConfig()) as manager:
    for step in (1, 2):
      manager.save(step, ITEMS, {})
      manager.wait()
      paths = [directory / str(step), *(directory / str(step)).rglob('*')]
      assert len(paths) > 20
      for path in paths:
        status = path.stat()
        assert syncs.last.get(status.st_ino) == (status.st_mtime_ns, status.st_size), path


def test_arrays_and_meta_are_synced_before_the_step_is_listed(directory, syncs):
  with Manager(directory, CheckpointConfig()) as manager:
    manager.save(1, ITEMS, {})
  files = {path.stat().st_ino: path for path in (directory / '1').rglob('*') if path.is_file()}
  early = {inode for inode, listing in syncs.listings if '1' not in listing}
  late = {path.name for inode, path in files.items() if inode not in early}
  # Orbax writes these in the moment in which it renames the step; nobody needs them to restore.
  assert late <= {'commit_success.txt'}
  assert not {path.parent.name for inode, path in files.items() if inode not in early} - {'1'}


def test_older_step_goes_after_the_newer_name_is_synced(directory, syncs):
  with Manager(directory, CheckpointConfig(keep=1)) as manager:
    manager.save(1, ITEMS, {})
    manager.save(2, ITEMS, {})
  assert os.listdir(directory) == ['2']
  parent = directory.stat().st_ino
  named = [listing for inode, listing in syncs.listings if inode == parent and '2' in listing]
  assert named == [{'1', '2'}]
  assert all('1' in listing for _, listing in syncs.listings if any(name.startswith('2') for name in listing))


def _failing_sync(directory: pathlib.Path):
  """An fsync that fails for the directory of steps."""
  fsync, parent = os.fsync, directory.stat().st_ino

  def failing(descriptor: int) -> None:
    if os.fstat(descriptor).st_ino == parent:
      raise OSError(5, 'Input/output error')
    fsync(descriptor)

  return failing


def _lost_name(directory: pathlib.Path):
  """A listdir without the newer step, as on a file system that lost the rename without an error."""
  listdir = os.listdir
  return lambda path: [name for name in listdir(path) if name != '2']


@pytest.mark.parametrize(
  ('function', 'broken', 'said'),
  [('fsync', _failing_sync, 'Input/output error'), ('listdir', _lost_name, 'removed from')],
  ids=['a sync fails', 'the name is lost'],
)
def test_older_step_stays_when_the_newer_one_is_not_surely_on_the_disk(
  directory, monkeypatch, function, broken, said
):
  with Manager(directory, CheckpointConfig(keep=1)) as manager:
    manager.save(1, ITEMS, {})
    manager.wait()
    monkeypatch.setattr(os, function, broken(directory))
    with pytest.raises(UserError, match=said):
      manager.save(2, ITEMS, {})
      manager.wait()
    monkeypatch.undo()
    assert (directory / '1').is_dir()
  with Manager(directory, CheckpointConfig(keep=1)) as manager:
    assert 1 in manager.all_steps()
