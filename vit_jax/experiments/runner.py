"""Does the runs of a study or a transfer: those that have ended are not done again, the others begin or go on."""

import dataclasses
import math
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent import futures

from vit_jax.config import Config
from vit_jax.foundation import signals
from vit_jax.foundation.errors import Preempted, UserError
from vit_jax.training import preprocessing, results
from vit_jax.training.metrics import read_metrics, training_seconds
from vit_jax.training.results import Result

_REPORT_SECONDS = 60.0  # between two estimates of the time that is left

Results = dict[str, Result]  # title of a job -> how its run ended


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """A run to be done."""

  title: str  # its folder below the command's workdir, such as 'plain/seed_0'; those in one folder are alike
  config: Config  # the run
  folder: pathlib.Path  # its workdir
  needed: frozenset[pathlib.Path] = frozenset()  # workdirs of the jobs that end before this one begins

  def result(self) -> Result | None:
    """How the run has ended; None if it has not; UserError as of `results.read`."""
    if not results.has_ended(self.folder):
      return None
    return results.read(preprocessing.resolved(self.config, self.folder), self.folder)


class Process:
  """A command of one core, which has a pipe as its stdin for as long as this process lives."""

  def __init__(self, module: str, *arguments: str):
    # NPROC: the threads of XLA's CPU devices. A study's models are small, so they are trained on CPUs unless
    # the person says otherwise.
    environment = {'JAX_PLATFORMS': 'cpu', **os.environ, 'NPROC': '1', 'OMP_NUM_THREADS': '1'}
    self._process = subprocess.Popen(
      [sys.executable, '-m', module, *arguments],
      env=environment,
      stdin=subprocess.PIPE,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      text=True,
      errors='backslashreplace',
      process_group=0,  # so that a Ctrl-C of the terminal reaches this process alone, which asks them to stop
    )

  def error(self) -> str:
    """Waits for its end; '' or the sentence of its error."""
    assert self._process.stderr is not None
    lines = self._process.stderr.read().strip().splitlines()
    code = self._process.wait()
    return '' if code == 0 else lines[-1] if lines else f'Its process ended with exit code {code}.'

  def stop(self) -> None:
    """Asks it to save and end."""
    self._process.terminate()


def in_turn(
  jobs: Sequence[Job], execute: Callable[[Job], Result], *, say: Callable[[str], None]
) -> list[Result]:
  """Does all jobs that have not ended, each on all devices of this process; how each ended, now or before.

  Raises UserError where a run of another config is in the folder of a job, or one that began from what a checkpoint
  does not hold any more; or as `execute`.
  """
  done = _ended_before(jobs, 1, say)
  for job in jobs:
    if job.title not in done:
      say(_begins(job))
      done[job.title] = execute(job)
      say(_ends(job, done[job.title]))
      say(progress(jobs, done, 1))
  for job in jobs:
    job.result()  # all began from what is there now
  return [done[job.title] for job in jobs]


def side_by_side(
  jobs: Sequence[Job],
  start: Callable[[Job], Process],
  *,
  at_a_time: int,
  say: Callable[[str], None],
  ended: Callable[[Results], None],
) -> None:
  """Does all jobs that have not ended, so many at a time, each in a process of its own, which `start` begins.

  A job that another needs comes before it. `ended` is called with the results so far whenever a job has ended, and once
  at first. Raises UserError where some jobs failed, or a run of another config is in the folder of one; Preempted at
  Ctrl-C or SIGTERM, when the running ones have saved.
  """
  done = _ended_before(jobs, at_a_time, say)
  ended(done)
  left = [job for job in jobs if job.title not in done]
  running: dict[futures.Future[str], tuple[Job, Process]] = {}
  failed: dict[pathlib.Path, str] = {}  # folder -> the job and its error

  def fail(job: Job, error: str) -> None:
    failed[job.folder] = f'{job.title}: {error}'
    say(f'{job.title}: failed. {error}')

  pool = futures.ThreadPoolExecutor(at_a_time)
  try:
    while left or running:
      unfinished = {job.folder for job in (*left, *(job for job, _ in running.values()))}
      for job in list(left):
        if failed.keys() & job.needed:
          left.remove(job)
          fail(job, 'The run that it starts or learns from failed.')
        elif len(running) < at_a_time and not unfinished & job.needed:
          left.remove(job)
          say(_begins(job))
          process = start(job)
          running[pool.submit(process.error)] = job, process
      with signals.raise_at_interrupt():
        complete, _ = futures.wait(running, _REPORT_SECONDS, futures.FIRST_COMPLETED)
      for future in complete:
        (job, _), error = running.pop(future), future.result()
        result = None if error else job.result()
        if result is None:
          fail(job, error)
          continue
        done[job.title] = result
        say(_ends(job, result))
        ended(done)
      say(progress(jobs, done, at_a_time))
  except KeyboardInterrupt:
    raise Preempted('Interrupted; the runs that were going on have saved.') from None
  finally:
    for _, process in running.values():
      process.stop()
    pool.shutdown()
  if failed:
    raise UserError(f'{len(failed)} of {len(jobs)} runs failed; the first is {next(iter(failed.values()))}')


def _ended_before(jobs: Sequence[Job], at_a_time: int, say: Callable[[str], None]) -> Results:
  """The results of the jobs that have ended already."""
  done = {job.title: result for job in jobs if (result := job.result()) is not None}
  say(f'{len(jobs)} runs, of which {len(done)} were done before; {at_a_time} at a time')
  return done


def _begins(job: Job) -> str:
  return f'{job.title}: {"goes on" if (job.folder / "checkpoints").exists() else "begins"}'


def _ends(job: Job, result: Result) -> str:
  scores = [f'{name} {value:.2%}' for name, value in result.metrics.items() if name.endswith('accuracy')]
  return ', '.join([f'{job.title}: done', *scores])


def progress(jobs: Sequence[Job], done: Results, at_a_time: int) -> str:
  """'3 of 12 runs are done, about 1:20 h left'.

  A run that has logged something says how long all its steps take. One that has not takes as long as those of
  its folder, or as the mean of all. Compiling and evaluations are not counted.
  """
  known: dict[str, tuple[float, float]] = {}  # title of a job -> its seconds in all, and left
  alike: dict[pathlib.Path, list[float]] = {}  # folder of jobs -> seconds in all
  for job in jobs:
    lines = read_metrics(job.folder) if job.folder.exists() else []
    left = next((line['perf/eta_s'] for line in reversed(lines) if 'perf/eta_s' in line), math.nan)
    if math.isfinite(left):
      known[job.title] = training_seconds(lines) + left, left
      alike.setdefault(job.folder.parent, []).append(known[job.title][0])
  text = f'{len(done)} of {len(jobs)} runs are done'
  if not known or len(done) == len(jobs):
    return text
  mean = statistics.fmean(total for total, _ in known.values())
  seconds = 0.0
  for job in jobs:
    if job.title not in done:
      others = alike.get(job.folder.parent, [mean])
      seconds += known[job.title][1] if job.title in known else statistics.fmean(others)
  minutes = round(seconds / at_a_time / 60)
  return f'{text}, about {minutes // 60}:{minutes % 60:02} h left'
