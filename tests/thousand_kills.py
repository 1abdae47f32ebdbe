"""Kills runs of one to four processes until there were `--total` kills; every run must end in the same bits.

  python tests/thousand_kills.py --total=1000 --folder=/tmp/kills    # the same command goes on after a kill of its own
  python tests/kills_in_a_bucket.py --total=100 --folder=/tmp/kills_in_a_bucket

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
DEVICES = {1: 2, 2: 2, 3: 3, 4: 4}  # of a run of so many processes
CONFIG = (
  kill_and_resume.CONFIG.replace("'240 steps'", "'120 steps'")
  .replace('batch_size=32', 'batch_size=48')  # for two, three and four devices and two microbatches
  .replace("every='30 steps'", "every='6 steps'")
)
MOMENTS = ('while saving', 'around an evaluation', 'while starting', 'at any moment')


class Harness:
  """Runs in a folder, killed and compared.

  Attributes:
    processes: of the rounds, in turn.
    most_lines: that a run logs anew, at most, before a moment is waited for that is not during start-up; so
      it goes on from kill to kill where saving takes long.
  """

  processes = (1, 1, 2, 1, 3, 1, 2, 1, 4)
  most_lines = 0

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self.config = folder / 'config.py'
    self.config.write_text(CONFIG)

  def start(self, workdir: pathlib.Path, processes: int) -> list[Command]:
    """Starts, or resumes, the run in a workdir."""
    return kill_and_resume.start(self.config, workdir, processes, DEVICES[processes])

  def lines(self, workdir: pathlib.Path) -> list[str]:
    """What the run has logged so far."""
    return kill_and_resume.lines(workdir)

  def is_saving(self, workdir: pathlib.Path) -> bool:
    """Whether a checkpoint is being written."""
    return any((workdir / 'checkpoints').glob('*.orbax-checkpoint-tmp*'))

  def after_kill(self, workdir: pathlib.Path) -> None:
    """What else is lost with the processes: nothing."""

  def result(self, workdir: pathlib.Path) -> pathlib.Path:
    """The folder that holds what a finished run has left."""
    return workdir

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
      self.after_kill(workdir)
    else:
      run = self.start(workdir, processes)
    self.finish(run, workdir)
    arrays, lines = kill_and_resume.compare(expected, self.result(workdir))
    for path in self.folder.glob(f'killed_{seed}*'):
      shutil.rmtree(path) if path.is_dir() else path.unlink()
    return {'seed': seed, 'processes': processes, 'kills': dict(moments), 'arrays': arrays, 'lines': lines}

  def _wait_for(self, moment: str, run: list[Command], workdir: pathlib.Path, rng: random.Random) -> bool:
    """Waits until a moment of a run; False if one of its processes ended before."""
    end = time.monotonic() + rng.uniform(0, 4) if moment == 'while starting' else None
    before = len(self.lines(workdir)) + rng.randint(0, self.most_lines)
    deadline = time.monotonic() + 3600  # at the lowest priority, beside other work
    while all(process.poll() is None for process in run):
      assert time.monotonic() < deadline, f'{workdir} makes no progress'
      if end is not None:
        if time.monotonic() >= end:
          return True
      elif moment == 'while saving':
        if len(self.lines(workdir)) >= before and self.is_saving(workdir):
          end = time.monotonic() + rng.uniform(0, 0.05)
      elif len(lines := self.lines(workdir)) > before and (
        moment == 'at any moment' or json.loads(lines[-1])['step'] % 6 == 3
      ):
        end = time.monotonic() + rng.uniform(0, 0.3)
      time.sleep(0.002)
    return False


def main() -> None:
  """Kills runs in a folder."""
  args = arguments(__doc__)
  kill(Harness(args.folder), args.total, args.first_seed)


def arguments(description: str | None) -> argparse.Namespace:
  """Reads the flags of a harness, makes its folder and sets the variables of its runs."""
  parser = argparse.ArgumentParser(
    description=description, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--total', type=int, default=1000)
  parser.add_argument('--folder', type=pathlib.Path, required=True)
  parser.add_argument(
    '--first_seed', type=int, default=0, help='of the first round, for a second harness beside this one'
  )
  args = parser.parse_args()
  args.folder.mkdir(parents=True, exist_ok=True)
  os.environ |= {'JAX_PLATFORMS': 'cpu', 'TESTS_COMPILED': str(args.folder / 'compiled')}
  return args


def kill(harness: Harness, total: int, first_seed: int) -> None:
  """Runs rounds until there were so many kills; prints the totals."""
  log = harness.folder / 'rounds.jsonl'
  rounds = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
  while (done := _total(rounds).total()) < total:
    seed = first_seed + len(rounds)
    processes = harness.processes[seed % len(harness.processes)]
    rounds.append(harness.round(seed, processes, min(ROUND, total - done)))
    with log.open('a') as file:
      file.write(json.dumps(rounds[-1]) + '\n')
    print(json.dumps(rounds[-1]), f'{_total(rounds).total()} of {total}', flush=True)
  print(f'{_total(rounds).total()} kills of {len(rounds)} runs, no bit differs: {dict(_total(rounds))}')


def _total(rounds: list[dict]) -> collections.Counter:
  """Kills by their moments."""
  return sum((collections.Counter(item['kills']) for item in rounds), collections.Counter())


if __name__ == '__main__':
  main()
