"""Cuts the power of a disk while checkpoints are saved to it, and restores what is left.

The checkpoints are saved to an ext4 file system in an image file. At random moments the saving processes are
stopped and the image is copied. The copy holds what was synced and what the kernel wrote of its own accord;
the rest is lost, as when the power fails. Each copy is mounted, which replays its journal. It must hold a
sound checkpoint that is not older than the last one reported as saved, and the run must go on from it.

This needs root, loop devices and mkfs.ext4.
"""

import dataclasses
import itertools
import os
import pathlib
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence

import jax
import ml_dtypes
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from processes import finish, start

from vit_jax.checkpoint.config import CheckpointConfig
from vit_jax.checkpoint.manager import Manager
from vit_jax.foundation.errors import UserError

DISK_MEBIBYTES = 64
STEP_SECONDS = 0.004
METRIC = 'val/accuracy'


@dataclasses.dataclass(frozen=True)
class Case:
  """A run to save, and how the file system that it is saved to is mounted."""

  every: int = 5  # steps between two saves
  keep: int = 1
  best: bool = False
  keep_every: int | None = None  # every so many saves
  processes: int = 1
  # ext4 writes names after a second (commit=1), and data that is not synced half a minute later. So it is
  # likely that a file has a name and no content. With data=writeback nothing at all orders the two.
  mount: str = 'commit=1,noauto_da_alloc'

  def manager(self, directory: pathlib.Path) -> Manager:
    checkpoint = CheckpointConfig(keep=self.keep, best=METRIC if self.best else None)
    return Manager(directory, checkpoint, keep_every_steps=self.keep_every and self.keep_every * self.every)


@dataclasses.dataclass(frozen=True)
class Snapshot:
  """A moment at which the power was cut."""

  case: Case
  step: int  # that the run had reached
  started: int  # the last step whose save was started
  saved: int  # the last step that was reported as saved; 0 before the first
  restored: int | None  # the step that was found on the disk
  error: str  # why nothing was restored


# The saving process.


def values(step: int) -> dict[str, dict[str, np.ndarray]]:
  """The items of a step."""
  kernel = np.random.default_rng(step).standard_normal((64, 64), np.float32)
  return {
    'params': {'kernel': kernel, 'bias': kernel[0].astype(ml_dtypes.bfloat16)},
    'opt_state': {'count': np.asarray(step, np.int32), 'mu': kernel * 2, 'nu': kernel * kernel},
  }


def accuracy(step: int) -> float:
  return float(np.random.default_rng(step).random())


def save_for_ever(directory: str, progress: str, case: Case) -> None:
  """Saves a step after the other, and notes in the file `progress` how far it is."""
  if case.processes > 1:
    from vit_jax.parallel import distributed

    distributed.initialize()
  mesh = jax.make_mesh((jax.device_count(),), ('data',))

  def place(value: np.ndarray) -> jax.Array:
    sharding = NamedSharding(mesh, P('data') if value.shape[:1] == (64,) else P())
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

  descriptor = os.open(progress, os.O_WRONLY)
  started = saved = 0
  with case.manager(pathlib.Path(directory)) as manager:
    for step in itertools.count(1):
      time.sleep(STEP_SECONDS)
      if step % case.every == 0:
        items = jax.tree.map(place, values(step))
        assert manager.save(step, items, {'step': step}, {METRIC: accuracy(step)})
        started, saved = step, started  # a save starts when the one before has ended
        if (step // case.every) % 2:
          note(descriptor, step, started, saved)
          manager.wait()
          saved = step
      note(descriptor, step, started, saved)


def note(descriptor: int, step: int, started: int, saved: int) -> None:
  if jax.process_index() == 0:
    os.pwrite(descriptor, np.asarray([step, started, saved], np.int64).tobytes(), 0)


# The disk.


class Disk:
  """An ext4 file system in an image file, mounted by a loop device.

  Raises:
    OSError: this machine does not allow it.
  """

  def __init__(self, folder: pathlib.Path, options: str):
    self.image = folder / 'image'
    self.root = folder / 'disk'
    self.root.mkdir()
    with self.image.open('wb') as file:
      file.truncate(DISK_MEBIBYTES * 2**20)
    _run('mkfs.ext4', '-q', '-E', 'lazy_itable_init=0,lazy_journal_init=0', self.image)
    mount(self.image, self.root, options)
    source = _run('findmnt', '-n', '-o', 'SOURCE', self.root).strip()
    self._writes = pathlib.Path('/sys/block', pathlib.Path(source).name, 'stat')

  def close(self) -> None:
    unmount(self.root)

  def copy(self, target: pathlib.Path) -> None:
    """Copies what the device holds; nothing is synced before."""
    while True:
      before = self._writes.read_text().split()
      _run('cp', '--sparse=always', self.image, target)
      after = self._writes.read_text().split()
      # Writes completed, and requests in flight: the kernel was not writing while the image was copied.
      if before[4] == after[4] and before[8] == after[8] == '0':
        return


def mount(image: pathlib.Path, root: pathlib.Path, options: str) -> None:
  root.mkdir(exist_ok=True)
  _run('mount', '-t', 'ext4', '-o', f'loop,{options}', image, root)


def unmount(root: pathlib.Path) -> None:
  _run('umount', '-l', root)


def _run(*command: str | os.PathLike[str]) -> str:
  """What a command prints.

  Raises:
    OSError: the command is not there or fails.
  """
  done = subprocess.run(command, capture_output=True, text=True)
  if done.returncode:
    raise OSError(f'{command[0]}: {done.stderr.strip()}')
  return done.stdout


# The snapshots.


def snapshots(case: Case, count: int, folder: pathlib.Path, rng: random.Random) -> Iterator[Snapshot]:
  """Saves a run and cuts its power: `count` times after the first save, and a few times before.

  Raises:
    OSError: this machine does not allow it.
  """
  disk = Disk(folder, case.mount)
  progress = folder / 'progress'
  progress.write_bytes(np.zeros(3, np.int64).tobytes())
  run = f'save_for_ever({str(disk.root / "run")!r}, {str(progress)!r}, {case})'
  tests = str(pathlib.Path(__file__).parent)
  script = f'import sys\nsys.path.append({tests!r})\nfrom pull_the_plug import *\n{run}'
  processes = start(script, case.processes, devices=1)
  try:
    while not list(disk.root.iterdir())[1:]:  # besides lost+found
      _must_run(processes)
      time.sleep(0.01)
    while count:
      time.sleep(rng.uniform(0, 2 * STEP_SECONDS * case.every + 0.5))
      _must_run(processes)
      stop(processes)
      step, started, saved = np.frombuffer(progress.read_bytes(), np.int64).tolist()
      disk.copy(folder / 'copy')
      for process in processes:
        process.send_signal(signal.SIGCONT)
      yield Snapshot(case, step, started, saved, *restore(case, folder / 'copy', folder / 'restored'))
      if saved:
        count -= 1
  finally:
    for process in processes:
      process.kill()
    finish(processes)
    disk.close()


def _must_run(processes: Sequence[subprocess.Popen]) -> None:
  for process in processes:
    assert process.poll() is None, process.communicate()[0]


def stop(processes: Sequence[subprocess.Popen]) -> None:
  """Stops all threads of the processes; a thread that is syncing stops when the sync has ended."""
  for process in processes:
    process.send_signal(signal.SIGSTOP)
  for process in processes:
    for thread in pathlib.Path(f'/proc/{process.pid}/task').iterdir():
      while (thread / 'stat').read_text().rpartition(')')[2].split()[0] != 'T':
        time.sleep(0.001)


def restore(case: Case, image: pathlib.Path, root: pathlib.Path) -> tuple[int | None, str]:
  """Restores from a copy of the disk, and goes on from there.

  Returns:
    (the step or None, why nothing was restored)
  """
  mount(image, root, 'noatime')
  try:
    with case.manager(root / 'run') as manager:
      zero = values(0)
      found = manager.restore_newest(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), zero))
      if found is None:
        return None, 'there is none'
      step, items, meta = found
      assert meta == {'step': step}
      for array, expected in zip(jax.tree.leaves(items), jax.tree.leaves(values(step)), strict=True):
        assert np.asarray(array).tobytes() == expected.tobytes()
      assert manager.save(step + 1, items, {}, {METRIC: 0.0})
    assert manager.latest_step() == step + 1
    return step, ''
  except UserError as error:
    return None, str(error)
  finally:
    unmount(root)


def failures(seen: Sequence[Snapshot]) -> list[Snapshot]:
  """The snapshots in which what was reported as saved is not there, or that lost more than one save."""
  return [
    snapshot
    for snapshot in seen
    if snapshot.saved
    and (
      snapshot.restored is None
      or snapshot.restored < snapshot.saved
      or snapshot.started - snapshot.restored > snapshot.case.every
    )
  ]


CASES = [
  Case(every, processes=processes, mount=mount, **retention)
  for every in (5, 40, 200, 600)
  for retention, mount in (
    ({'keep': 1}, 'commit=1,noauto_da_alloc'),
    ({'keep': 2}, 'commit=1,noauto_da_alloc,data=writeback'),
    ({'keep': 1, 'best': True}, 'commit=1,noauto_da_alloc'),
    ({'keep': 1, 'keep_every': 10}, 'commit=1,noauto_da_alloc,data=writeback'),
  )
  for processes in (1, 2)
]
