"""Preparations that were interrupted, taken over, or run out of disk, and what survives a power failure."""

import fcntl
import os
import shutil

import pytest
from prepared_sets import files, interrupted_after, prepared

from vit_jax.data.sources import tfds_files
from vit_jax.foundation.errors import UserError
from vit_jax.prepare import metadata, shard_plan, storage
from vit_jax.prepare.images import Shrinking

pytestmark = pytest.mark.usefixtures('in_this_process')


def test_other_settings_are_refused_once_a_shard_is_complete(pets, copy_of_pets, tmp_path, monkeypatch):
  with monkeypatch.context() as patches, pytest.raises(KeyboardInterrupt):
    interrupted_after(1, patches)
    prepared(pets, tmp_path / 'set')
  before = files(tmp_path / 'set')
  with pytest.raises(UserError, match='set was prepared with quality 95, not with quality 90'):
    prepared(pets, tmp_path / 'set', shrinking=Shrinking(quality=90))
  with pytest.raises(UserError, match=r'set was prepared with source .*, not with source .*; choose'):
    prepared(copy_of_pets, tmp_path / 'set')
  assert files(tmp_path / 'set') == before
  prepared(pets, tmp_path / 'set')


@pytest.mark.parametrize('stage', ['no plan', 'planned', 'shard without a report', 'all images bad'])
def test_new_source_takes_the_folder_over_before_a_shard_is_complete(
  pets, pets_tar, copy_of_pets, tmp_path, monkeypatch, caplog, stage
):
  wrong = tmp_path / 'wrong'
  wrong.mkdir()
  if stage != 'no plan':
    shutil.copytree(copy_of_pets / 'train/cat', wrong / 'train/cat')  # other shards than of all pets
  if stage == 'all images bad':
    for image in wrong.rglob('*.jpg'):
      image.write_bytes(b'')
  with monkeypatch.context() as patches, pytest.raises((UserError, KeyboardInterrupt)):
    if stage == 'planned':
      interrupted_after(0, patches)
    if stage == 'shard without a report':
      interrupted_after(1, patches)
    prepared(wrong, tmp_path / 'set')
  if stage == 'shard without a report':
    for report in (tmp_path / 'set/.unfinished/reports').iterdir():
      report.unlink()
  assert (tmp_path / 'set/.unfinished/settings.json').exists()
  prepared(pets_tar, tmp_path / 'set')
  assert f'set was begun with source {wrong}, and no file of that is complete' in caplog.text
  assert f'it starts anew with source {pets_tar}' in caplog.text
  prepared(pets_tar, tmp_path / 'undisturbed/set')
  assert files(tmp_path / 'set') == files(tmp_path / 'undisturbed/set')


@pytest.mark.slow
def test_killed_takeover_may_be_repeated_with_either_source(pets, pets_tar, tmp_path, monkeypatch):
  prepared(pets, tmp_path / 'undisturbed/set')
  removals = 0
  for source in (pets, pets_tar):
    for stop_at in range(1, 100):
      folder = tmp_path / source.name / str(stop_at) / 'set'
      with monkeypatch.context() as patches, pytest.raises(KeyboardInterrupt):
        interrupted_after(0, patches)
        prepared(pets, folder)
      with monkeypatch.context() as patches:
        count, remove = 0, storage.remove

        def remove_some(path, stop_at=stop_at, remove=remove):
          nonlocal count
          count += 1
          if count == stop_at:
            raise KeyboardInterrupt
          remove(path)

        patches.setattr(storage, 'remove', remove_some)
        interrupted_after(0, patches)
        with pytest.raises(KeyboardInterrupt):
          prepared(pets_tar, folder)
      prepared(source, folder)
      expected = files(tmp_path / 'undisturbed/set')
      assert set(files(folder)) == set(expected)
      assert all(
        content == expected[name]
        for name, content in files(folder).items()
        if name not in ('metadata.json', 'SHA256SUMS')
      )
      removals = max(removals, count)
      if count < stop_at:
        break
  assert removals > 5


def test_everything_is_durable_and_the_metadata_comes_last(pets, tmp_path, monkeypatch):
  """A data set is complete when dataset_info.json is there: by then, nothing else may be only in memory."""
  synced, renamed, complete = set(), [], []
  fsync, replace = os.fsync, os.replace

  def recorded_fsync(descriptor):
    fsync(descriptor)
    path = os.readlink(f'/proc/self/fd/{descriptor}')
    synced.add((path, os.fstat(descriptor).st_ino))
    if os.path.isdir(path):
      renamed[:] = [other for other in renamed if os.path.dirname(other) != path]

  def recorded_replace(source, target):
    assert (str(source), os.stat(source).st_ino) in synced, f'{source} is renamed before it is synced'
    if os.path.basename(target) == tfds_files.INFO:
      complete.append(sorted(os.listdir(os.path.dirname(target))))
      assert not renamed, f'the directory is not synced after {renamed}'
    replace(source, target)
    renamed.append(str(target))

  monkeypatch.setattr(os, 'fsync', recorded_fsync)
  monkeypatch.setattr(os, 'replace', recorded_replace)
  prepared(pets, tmp_path / 'new/folder/set')
  assert not renamed  # also dataset_info.json itself
  everything = sorted([*os.listdir(tmp_path / 'new/folder/set'), '.unfinished'])
  assert complete == [[name for name in everything if name != tfds_files.INFO]]
  inodes = {inode for _, inode in synced}
  assert all(path.stat().st_ino in inodes for path in (tmp_path / 'new/folder/set').iterdir())
  directories = {path for path, _ in synced}
  assert {str(tmp_path), str(tmp_path / 'new'), str(tmp_path / 'new/folder')} <= directories


def test_second_command_on_a_folder_is_refused(pets, tmp_path):
  (tmp_path / 'set/.unfinished').mkdir(parents=True)
  with open(tmp_path / 'set/.unfinished/lock', 'w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(UserError, match=r'Another command is preparing .*set; wait'):
      prepared(pets, tmp_path / 'set')
  prepared(pets, tmp_path / 'set')


def test_full_disk_names_the_shard(pets, tmp_path, monkeypatch):
  monkeypatch.setattr(storage, '_scratch', lambda work: str(tmp_path / 'scratch'))
  (tmp_path / 'scratch').mkdir()
  shard = metadata.shard_name(
    str(tmp_path / 'set'), 'train', 0, shard_plan.make(str(pets), str(tmp_path), 2**20).splits['train'].shards
  )
  (tmp_path / 'scratch' / f'{shard}.{os.getpid()}').symlink_to('/dev/full')
  monkeypatch.setattr(storage, 'clear_unfinished', lambda work: None)
  with pytest.raises(OSError, match='No space left on device') as caught:
    prepared(pets, tmp_path / 'set')
  assert caught.value.filename == str(tmp_path / 'set' / shard)
  assert not (tmp_path / 'set' / shard).exists()
