"""Kills processes of a run, goes on with fewer of them on other meshes, and compares with an undisturbed run.

  python tests/lose_and_resume.py --steps=600 --width=192 --depth=6

The run begins with four processes, of which process 2 is killed (-9). It goes on with two, of which process 0
is killed, and then with a single one, whose mesh splits parameters and layers. After each kill, the processes
that are left must end with one sentence and exit code 75. Every row of every batch must have the same bits,
at the same step and place, as in the undisturbed run. Every step must be in metrics.jsonl once, with a loss
that differs by rounding only. Dropout and augmentation are on.
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

from processes import wait_until, xla_flags

ROOT = pathlib.Path(__file__).parents[1]
DEVICES = 4  # of a run, whatever its number of processes
CONFIG = """
from vit_jax.config import *

def get_config():
  return to_config_dict(Config(
    total='{steps} steps',
    batch_size=32,
    model=ViTConfig(
      variant='custom', patch=2, width={width}, mlp_dim={width}, depth={depth}, heads=4,
      dropout=0.1, stochastic_depth=0.2,
    ),
    data=DataConfig(source='digits', image_size=(8, 8), channels=1, crop='inception', flip=True, mixup=0.2),
    optimizer=OptimizerConfig(weight_decay=0.1, clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=1e-3, warmup='10%'),
    ema=0.99,
    mesh=MeshConfig(min_shard_size=64),
    checkpoint=CheckpointConfig(every='10 steps'),
    log_every='1 steps',
  ))
"""
# Runs vit_jax.main, and writes a line for each batch: its step, and a digest of each row that this process
# has.
RECORDED = """
import contextlib, hashlib, json, os, sys
import numpy as np
from vit_jax import cli, main
from vit_jax.data.pipeline import TrainPipeline

stream, path = TrainPipeline.stream, sys.argv.pop(1)

@contextlib.contextmanager
def recorded(self, first_step, total):
  def records(batches):
    for step, batch in enumerate(batches, first_step + 1):
      rows = {}
      for image, label in zip(batch['image'].addressable_shards, batch['label'].addressable_shards):
        first = image.index[0].start or 0
        for row, values in enumerate(zip(np.asarray(image.data), np.asarray(label.data)), first):
          rows[row] = hashlib.sha256(b''.join(value.tobytes() for value in values)).hexdigest()
      print(json.dumps([step, rows]), file=file, flush=True)
      yield batch
  with open(path, 'a') as file, stream(self, first_step, total) as batches:
    yield records(batches)

TrainPipeline.stream = recorded
cli.run(main.main)
"""


class Run:
  """The processes of one start; their logs and their digests of rows are in `scratch`."""

  def __init__(self, scratch: pathlib.Path, name: str, processes: int, silence: float, *flags: str):
    self.workdir, self._scratch, self._name = scratch / name, scratch, name
    with socket.socket() as free:
      free.bind(('localhost', 0))
      address = f'localhost:{free.getsockname()[1]}'
    self.processes, self.logs = [], []
    for index in range(processes):
      environment = dict(
        os.environ,
        JAX_PLATFORMS='cpu',
        XLA_FLAGS=xla_flags(DEVICES // processes),
        JAX_ENABLE_COMPILATION_CACHE='false',
        VIT_JAX_HEARTBEAT_SECONDS=str(silence),
      )
      if processes > 1:
        environment |= {
          'JAX_COORDINATOR_ADDRESS': address,
          'JAX_PROCESS_ID': str(index),
          'JAX_PROCESS_COUNT': str(processes),
        }
      rows = scratch / f'{name}.{processes}.{index}.rows'
      command = [sys.executable, '-c', RECORDED, str(rows)]
      command += [f'--config={scratch / "config.py"}', f'--workdir={self.workdir}', *flags]
      self.logs.append(scratch / f'{name}.{processes}.{index}.log')
      with self.logs[-1].open('w') as log:
        self.processes.append(
          subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        )

  def __enter__(self) -> 'Run':
    return self

  def __exit__(self, *_) -> None:
    for process in self.processes:
      process.kill()
      process.wait()

  def lose(self, victim: int, step: int) -> dict[int, float]:
    """Kills a process once `step` is logged; returns the seconds until each of the others ended as it
    should."""
    wait_until(
      lambda: len(lines(self.workdir)) >= step,
      lambda: all(process.poll() is None for process in self.processes),
      lambda: self.logs[0].read_text()[-3000:],
    )
    self.processes[victim].kill()
    begin, ended = time.monotonic(), {}
    left = [index for index in range(len(self.processes)) if index != victim]
    while len(ended) < len(left):
      assert time.monotonic() < begin + 200, f'only {ended} have ended'
      for index in left:
        if index not in ended and self.processes[index].poll() is not None:
          ended[index] = time.monotonic() - begin
      time.sleep(0.01)
    for index in left:
      text = self.logs[index].read_text()
      assert self.processes[index].returncode == 75, text[-3000:]
      assert f'Process {victim} was lost' in text.strip().splitlines()[-1], text[-3000:]
      assert 'Traceback' not in text, text
    return ended

  def finish(self) -> None:
    for process, log in zip(self.processes, self.logs, strict=True):
      assert process.wait(600) == 0, log.read_text()[-3000:]


def lines(workdir: pathlib.Path) -> list[dict[str, float]]:
  """The complete lines of metrics.jsonl."""
  path = workdir / 'metrics.jsonl'
  text = path.read_text() if path.exists() else ''
  return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith('\n')]


def rows(scratch: pathlib.Path, name: str) -> dict[tuple[int, str], set[str]]:
  """Maps (step, row) to the digests that processes have written for it."""
  result: dict[tuple[int, str], set[str]] = {}
  for path in scratch.glob(f'{name}.*.rows'):
    for line in path.read_text().splitlines(keepends=True):
      if line.endswith('\n'):  # the last line of a killed process may be cut off
        step, digests = json.loads(line)
        for row, digest in digests.items():
          result.setdefault((step, row), set()).add(digest)
  return result


def check(scratch: pathlib.Path, *, steps: int, width: int, depth: int, silence: float) -> str:
  """Runs everything; raises AssertionError if something differs. Returns the figures as text."""
  (scratch / 'config.py').write_text(CONFIG.format(steps=steps, width=width, depth=depth))
  with Run(scratch, 'alone', 1, silence) as run:
    run.finish()
  with Run(scratch, 'lost', 4, silence) as run:
    first = run.lose(2, steps // 4)
  with Run(scratch, 'lost', 2, silence, '--config.mesh.fsdp=2') as run:
    second = run.lose(0, steps // 2)
  mesh = ('--config.mesh.data=1', '--config.mesh.fsdp=2', '--config.mesh.tensor=2')
  with Run(scratch, 'lost', 1, silence, *mesh) as run:
    run.finish()

  alone, lost = lines(scratch / 'alone'), lines(scratch / 'lost')
  expected = list(range(1, steps + 1))
  assert [line['step'] for line in alone] == [line['step'] for line in lost] == expected
  assert [line.keys() for line in alone] == [line.keys() for line in lost]
  recorded, again = rows(scratch, 'alone'), rows(scratch, 'lost')
  assert len(recorded) == 32 * steps and recorded == again, 'a batch differs'
  deviation = max(abs(a['train/loss'] - b['train/loss']) for a, b in zip(alone, lost, strict=True))
  assert deviation < 1e-3
  assert not list((scratch / 'lost' / 'checkpoints').glob('*tmp*')), 'an incomplete save is left'
  return (
    f'silence {silence:g} s; process 2 of 4 killed: {as_text(first)}; '
    f'process 0 of 2 killed: {as_text(second)}; '
    f'{len(recorded)} rows of {steps} batches bit-identical; largest deviation of train/loss {deviation:.1e} '
    f'(of {alone[0]["train/loss"]:.3f} … {alone[-1]["train/loss"]:.3f})'
  )


def as_text(ended: dict[int, float]) -> str:
  return ', '.join(f'process {index} {after:.1f} s' for index, after in ended.items())


if __name__ == '__main__':
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--steps', type=int, default=200)
  parser.add_argument('--width', type=int, default=32)
  parser.add_argument('--depth', type=int, default=2)
  parser.add_argument('--silence', type=float, default=60)
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    print(check(pathlib.Path(folder), **vars(args)))
