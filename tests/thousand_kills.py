"""Kills runs of one to four processes until there were `--total` kills; every run must end in the same bits.

  python tests/thousand_kills.py --total=1000 --folder=/tmp/kills    # the same command goes on after a kill of its own

A round is a run that is killed again and again until it ends by itself. Its kills take turns: while a checkpoint
is written, around an evaluation (which is most of the time between two lines of metrics), during start-up, at any
moment. A round is then compared with a run of as many devices that was left alone, and added to `rounds.jsonl` in
the folder with its seed. Processes are forked (`fork_server`), so that a start does not import everything again.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import time

import kill_and_resume
from fork_server import Command

ROUND = 20  # kills of one run at most
PROCESSES = (1, 1, 2, 1, 3, 1, 2, 1, 4)  # of the rounds, in turn
DEVICES = {1: 2, 2: 2, 3: 3, 4: 4}  # of a run of so many processes
CONFIG = (
  kill_and_resume.CONFIG.replace("'240 steps'", "'120 steps'")
  .replace('batch_size=32', 'batch_size=48')  # for two, three and four devices and two microbatches
  .replace("every='30 steps'", "every='6 steps'")
)
MOMENTS = ('while saving', 'around an evaluation', 'while starting', 'at any moment')


class Harness:
  """Runs in a folder, killed and compared."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self._config = folder / 'config.py'
    self._config.write_text(CONFIG)

  def start(self, workdir: pathlib.Path, processes: int) -> list[Command]:
    """Starts, or resumes, the run in a workdir."""
    return kill_and_resume.start(self._config, workdir, processes, DEVICES[processes])

  def reference(self, processes: int) -> pathlib.Path:
    """The workdir of a run of so many processes that is left alone."""
    workdir = self.folder / f'alone_{processes}'
    if not (self.folder / f'alone_{processes}.done').exists():
      shutil.rmtree(workdir, ignore_errors=True)
      self.finish(self.start(workdir, processes), workdir)
      (self.folder / f'alone_{processes}.done').touch()
    return workdir

  def finish(self, run: list[Command], workdir: pathlib.Path) -> None:
    """Waits for the end of a run, which must be a good one."""
    codes = [process.wait() for process in run]
    assert codes == [0] * len(codes), f'{codes}, see {workdir}.0.log'

  def round(self, seed: int, processes: int, kills: int) -> dict:
    """Kills one run up to so many times and compares it; what happened, for `rounds.jsonl`."""
    expected = self.reference(processes)
    rng, moments = random.Random(seed), collections.Counter()
    workdir = self.folder / f'killed_{seed}'
    shutil.rmtree(workdir, ignore_errors=True)
    while moments.total() < kills:
      run = self.start(workdir, processes)
      moment = MOMENTS[moments.total() % len(MOMENTS)]
      if not self._wait_for(moment, run, workdir, rng):
        break  # it has come to its end
      for process in run:
        process.send_signal(signal.SIGKILL)
      if [process.wait() for process in run] == [-signal.SIGKILL] * processes:
        moments[moment] += 1
    else:
      run = self.start(workdir, processes)
    self.finish(run, workdir)
    arrays, lines = kill_and_resume.compare(expected, workdir)
    for path in self.folder.glob(f'killed_{seed}*'):
      shutil.rmtree(path) if path.is_dir() else path.unlink()
    return {'seed': seed, 'processes': processes, 'kills': dict(moments), 'arrays': arrays, 'lines': lines}

  def _wait_for(self, moment: str, run: list[Command], workdir: pathlib.Path, rng: random.Random) -> bool:
    """Waits until a moment of a run; False if one of its processes ended before."""
    end = time.monotonic() + rng.uniform(0, 4) if moment == 'while starting' else None
    before = len(kill_and_resume.lines(workdir))
    deadline = time.monotonic() + 3600  # at the lowest priority, beside other work
    while all(process.poll() is None for process in run):
      assert time.monotonic() < deadline, f'{workdir} makes no progress'
      if end is not None:
        if time.monotonic() >= end:
          return True
      elif moment == 'while saving':
        if list((workdir / 'checkpoints').glob('*.orbax-checkpoint-tmp*')):
          end = time.monotonic() + rng.uniform(0, 0.05)
      elif len(lines := kill_and_resume.lines(workdir)) > before and (
        moment == 'at any moment' or json.loads(lines[-1])['step'] % 6 == 3
      ):
        end = time.monotonic() + rng.uniform(0, 0.3)
      time.sleep(0.002)
    return False


def main() -> None:
  """Runs rounds until there were so many kills; prints the totals."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--total', type=int, default=1000)
  parser.add_argument('--folder', type=pathlib.Path, required=True)
  args = parser.parse_args()
  args.folder.mkdir(parents=True, exist_ok=True)
  log = args.folder / 'rounds.jsonl'
  rounds = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
  os.environ |= {'JAX_PLATFORMS': 'cpu', 'TESTS_COMPILED': str(args.folder / 'compiled')}
  harness = Harness(args.folder)
  while (done := _total(rounds).total()) < args.total:
    seed = len(rounds)
    rounds.append(harness.round(seed, PROCESSES[seed % len(PROCESSES)], min(ROUND, args.total - done)))
    with log.open('a') as file:
      file.write(json.dumps(rounds[-1]) + '\n')
    print(json.dumps(rounds[-1]), f'{_total(rounds).total()} of {args.total}', flush=True)
  print(f'{_total(rounds).total()} kills of {len(rounds)} runs, no bit differs: {dict(_total(rounds))}')


def _total(rounds: list[dict]) -> collections.Counter:
  """Kills by their moments."""
  return sum((collections.Counter(item['kills']) for item in rounds), collections.Counter())


if __name__ == '__main__':
  main()
