"""What a run saved is there after the power failed, on a file system that loses all that was not synced.

A few cuts here, hundreds with `VIT_JAX_NIGHTLY=1`.
"""

import os
import pathlib
import random
import time

import pull_the_plug
import pytest
from pull_the_plug import CASES, Case


@pytest.fixture(autouse=True)
def disks(tmp_path):
  """Skips the tests where this machine does not allow to mount an image of a disk."""
  folder = tmp_path / 'trial'
  folder.mkdir()
  try:
    disk = pull_the_plug.Disk(folder, 'commit=1')
  except OSError as error:
    pytest.skip(f'no disk image can be mounted here: {error}')
  disk.close()


def _cut(case: Case, count: int, folder: pathlib.Path, seed: int) -> None:
  print('seed', seed)
  folder.mkdir()
  seen = list(pull_the_plug.snapshots(case, count, folder, random.Random(seed)))
  assert pull_the_plug.failures(seen) == []


@pytest.mark.nightly(but='one-process')
@pytest.mark.slow
@pytest.mark.parametrize(
  'case',
  [
    Case(every=5, keep=1),
    Case(every=40, keep=1, best=True, mount='commit=1,noauto_da_alloc,data=writeback'),
    Case(every=20, keep=2, keep_every=5, processes=2),
  ],
  ids=['one-process', 'with-the-best', 'two-processes'],
)
def test_newest_saved_checkpoint_survives_a_power_cut(case, tmp_path):
  _cut(case, 3, tmp_path / 'case', seed=0)


def test_data_that_was_not_synced_is_lost(tmp_path):
  """The disk of these tests is a fair one: it keeps what was synced, and nothing else."""
  disk = pull_the_plug.Disk(tmp_path, 'commit=600')
  try:
    with (disk.root / 'synced').open('wb') as file:
      file.write(b'content')
      file.flush()
      os.fsync(file.fileno())
    (disk.root / 'written').write_bytes(b'content')
    disk.copy(tmp_path / 'copy')
  finally:
    disk.close()
  pull_the_plug.mount(tmp_path / 'copy', tmp_path / 'restored', 'noatime')
  try:
    assert (tmp_path / 'restored' / 'synced').read_bytes() == b'content'
    assert not (tmp_path / 'restored' / 'written').exists()
  finally:
    pull_the_plug.unmount(tmp_path / 'restored')


@pytest.mark.nightly
def test_newest_saved_checkpoint_survives_any_power_cut(tmp_path):
  for number, case in enumerate(CASES):
    _cut(case, 20, tmp_path / str(number), seed=time.time_ns())
