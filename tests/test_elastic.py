"""A run of several processes, in a folder or a bucket, that loses some and goes on with fewer on other meshes."""

import contextlib
import json
import pathlib
from collections.abc import Callable

import fork_server
import kill_and_resume
import pytest
import run_steps
from bucket_emulators import places
from processes import HUNG, wait_until

STEPS = 60
DEVICES = 4  # of a run, whatever its number of processes
CONFIG = (
  kill_and_resume.CONFIG.replace("'240 steps'", f"'{STEPS} steps'")
  .replace('accumulation=2,', '')
  .replace('flip=True', 'flip=True, mixup=0.2')
  .replace("log_every='3 steps'", "log_every='1 steps', mesh=MeshConfig(min_shard_size=64)")
)
# Runs vit_jax.main, whose lease counts as dead after seconds, and writes a line for each batch: its step, and a digest
# of each row that this process has.
RECORDED = """
import contextlib, hashlib, json, sys
import numpy as np
from vit_jax import cli, main
from vit_jax.checkpoint import bucket_lease
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

bucket_lease._BEAT, bucket_lease._LIMIT = 0.3, 2.0
TrainPipeline.stream = recorded
cli.run(main.main)
"""


def start(folder: pathlib.Path, workdir: str, processes: int, *flags: str) -> list[fork_server.Command]:
  """The processes of a run; their logs and their digests of rows are in the folder."""
  name = workdir.rpartition('/')[2]
  return [
    fork_server.start(
      'recorded',
      f'{name}.{processes}.{index}.rows',
      '--config=config.py',
      f'--workdir={workdir}',
      *flags,
      cwd=folder,
      environment=variables
      | {'VIT_JAX_HEARTBEAT_SECONDS': '20', 'XDG_CACHE_HOME': str(folder / f'{processes}.{index}')},
      log=folder / f'{name}.{index}.log',
    )
    for index, variables in enumerate(kill_and_resume.joined(processes, DEVICES // processes))
  ]


def lose(
  folder: pathlib.Path, run: list[fork_server.Command], victim: int, logged: Callable[[], str], step: int
) -> None:
  """Kills a process once `step` is logged; the others must end with one sentence, to be started again."""
  wait_until(
    lambda: f'"step": {step},' in logged(),
    lambda: all(process.poll() is None for process in run),
    lambda: (folder / 'lost.0.log').read_text()[-3000:],
  )
  run[victim].send_signal(9)
  for index, process in enumerate(run):
    if index != victim:
      code, text = process.wait(HUNG), (folder / f'lost.{index}.log').read_text()
      assert code == 75 and 'Traceback' not in text, text[-3000:]
      assert f'Process {victim} was lost' in text.strip().splitlines()[-1], text[-3000:]


def rows(folder: pathlib.Path, name: str) -> dict[tuple[int, str], set[str]]:
  """Maps (step, row) to the digests that processes have written for it."""
  result: dict[tuple[int, str], set[str]] = {}
  for path in folder.glob(f'{name}.*.rows'):
    for line in path.read_text().splitlines(keepends=True):
      if line.endswith('\n'):  # the last line of a killed process may be cut off
        step, digests = json.loads(line)
        for row, digest in digests.items():
          result.setdefault((step, row), set()).add(digest)
  return result


@pytest.mark.nightly
@pytest.mark.parametrize('workdir', ['lost', 'gs://bucket/runs/lost'])
def test_four_processes_then_two_then_one_see_the_same_rows_and_lose_no_step(tmp_path, workdir):
  """Process 2 of 4 is lost, then process 0 of 2, which serves the others; the last splits parameters and layers."""
  (tmp_path / 'config.py').write_text(CONFIG)
  (tmp_path / 'recorded.py').write_text(RECORDED)
  with places('gs', own=True) if '://' in workdir else contextlib.nullcontext() as place:

    def logged() -> str:
      if place is None:
        return '\n'.join(kill_and_resume.lines(tmp_path / 'lost'))
      name = 'runs/lost/metrics.jsonl'
      return place.get(name).decode() if name in place.names('runs/lost') else ''

    kill_and_resume.finish(start(tmp_path, 'alone', 1), tmp_path / 'alone')
    lose(tmp_path, start(tmp_path, workdir, 4), 2, logged, STEPS // 4)
    lose(tmp_path, start(tmp_path, workdir, 2, '--config.mesh.fsdp=2'), 0, logged, STEPS // 2)
    mesh = ('--config.mesh.data=1', '--config.mesh.fsdp=2', '--config.mesh.tensor=2')
    kill_and_resume.finish(start(tmp_path, workdir, 1, *mesh), tmp_path / 'lost')
    if place is not None:
      place.get_folder('runs/lost', tmp_path / 'lost')

  alone, lost = (run_steps.logged(tmp_path / name) for name in ('alone', 'lost'))
  assert [line['step'] for line in alone] == [line['step'] for line in lost] == list(range(1, STEPS + 1))
  for one, other in zip(alone, lost, strict=True):
    assert one.keys() == other.keys()
    assert one['train/loss'] == pytest.approx(other['train/loss'], abs=1e-3)
  recorded = rows(tmp_path, 'alone')
  assert len(recorded) == 32 * STEPS and recorded == rows(tmp_path, 'lost'), 'a batch differs'
  assert not list((tmp_path / 'lost' / 'checkpoints').glob('*tmp*')), 'an incomplete save is left'
