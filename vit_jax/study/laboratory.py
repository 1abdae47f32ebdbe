"""Does the runs of a study, some at a time; those that have ended are not done again."""

import math
import os
import pathlib
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent import futures

from vit_jax import signals
from vit_jax.errors import Preempted, UserError
from vit_jax.study.definition import StudyRun
from vit_jax.training import preprocessing, results
from vit_jax.training.metrics import read_metrics, training_seconds
from vit_jax.training.results import Result

_REPORT_SECONDS = 60.0  # between two estimates of the time that is left

Results = dict[tuple[str, int], Result]  # (variant, seed) -> how its run ended


class Processes:
  """Runs as processes of one core each. `stop` asks all of them to save and end."""

  def __init__(self, study: str, workdir: pathlib.Path):
    """
    Args:
      study: name of the study's file.
      workdir: the study's.
    """
    self._study, self._workdir = study, workdir
    self._running: set[subprocess.Popen] = set()
    self._lock = threading.Lock()
    self._stopping = False

  def __call__(self, run: StudyRun) -> str:
    """Does a run to its end; '' or the sentence of its error."""
    arguments = [self._study, str(self._workdir), run.variant, str(run.seed)]
    # NPROC: the threads of XLA's CPU devices. A study's models are small, so they are trained on CPUs unless
    # the person says otherwise.
    environment = {'JAX_PLATFORMS': 'cpu', **os.environ, 'NPROC': '1', 'OMP_NUM_THREADS': '1'}
    with self._lock:
      if self._stopping:
        return 'Stopped before it began.'
      process = subprocess.Popen(
        [sys.executable, '-m', 'vit_jax.study.job', *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors='backslashreplace',
        process_group=0,  # so that a Ctrl-C of the terminal reaches the study alone, which asks them to stop
      )
      self._running.add(process)
    assert process.stderr is not None
    errors = process.stderr.read().strip().splitlines()
    code = process.wait()
    with self._lock:
      self._running.discard(process)
    return '' if code == 0 else errors[-1] if errors else f'Its process ended with exit code {code}.'

  def stop(self) -> None:
    """Asks all running processes to save and end, and starts no others."""
    with self._lock:
      self._stopping = True
      for process in self._running:
        process.terminate()


def conduct(
  runs: Sequence[StudyRun],
  execute: Callable[[StudyRun], str],
  *,
  jobs: int,
  say: Callable[[str], None],
  ended: Callable[[Results], None],
) -> None:
  """Does all runs that have not ended.

  Args:
    runs: in their order; one that another starts from comes before it.
    execute: does a run to its end, in some thread; returns '' or the sentence of its error.
    jobs: how many at a time.
    say: prints a line.
    ended: called with the results so far whenever a run has ended, and once at first.

  Raises:
    UserError: some runs failed; a run of another config is in the folder of one; or as `ended`.
    KeyboardInterrupt: Ctrl-C or SIGTERM.
  """
  done: Results = {}
  for run in runs:
    result = _result(run)
    if result is not None:
      done[run.variant, run.seed] = result
  say(f'{len(runs)} runs, of which {len(done)} were done before; {jobs} at a time')
  ended(done)
  left = [run for run in runs if (run.variant, run.seed) not in done]
  running: dict[futures.Future, StudyRun] = {}
  failed: dict[pathlib.Path, str] = {}  # folder -> the run and its error

  def fail(run: StudyRun, error: str) -> None:
    failed[run.folder] = f'{run.title}: {error}'
    say(f'{run.title}: failed. {error}')

  pool = futures.ThreadPoolExecutor(jobs)
  try:
    while left or running:
      unfinished = {run.folder for run in (*left, *running.values())}
      for run in list(left):
        if failed.keys() & run.needed:
          left.remove(run)
          fail(run, 'The run that it starts or learns from failed.')
        elif len(running) < jobs and not unfinished & run.needed:
          left.remove(run)
          say(f'{run.title}: {"goes on" if (run.folder / "checkpoints").exists() else "begins"}')
          running[pool.submit(execute, run)] = run
      with signals.raise_at_interrupt():
        complete, _ = futures.wait(running, _REPORT_SECONDS, futures.FIRST_COMPLETED)
      for future in complete:
        run, error = running.pop(future), future.result()
        result = None if error else _result(run)
        if result is None:
          fail(run, error)
          continue
        done[run.variant, run.seed] = result
        say(f'{run.title}: done')
        ended(done)
      say(progress(runs, done, jobs))
  finally:
    pool.shutdown(wait=False, cancel_futures=True)
  if failed:
    raise UserError(f'{len(failed)} of {len(runs)} runs failed; the first is {next(iter(failed.values()))}')


def progress(runs: Sequence[StudyRun], done: Results, jobs: int) -> str:
  """'3 of 12 runs are done, about 1:20:00 left'.

  A run that has logged something says how long all its steps take. One that has not takes as long as those of
  its variant, or as the mean of all. Compiling and evaluations are not counted.
  """
  known: dict[str, tuple[str, float, float]] = {}  # run -> its variant, seconds in all, and left
  for run in runs:
    lines = read_metrics(run.folder) if run.folder.exists() else []
    if lines:
      left = next((line['perf/eta_s'] for line in reversed(lines) if 'perf/eta_s' in line), math.nan)
      if math.isfinite(left):
        known[run.title] = run.variant, training_seconds(lines) + left, left
  text = f'{len(done)} of {len(runs)} runs are done'
  if not known or len(done) == len(runs):
    return text
  mean = statistics.fmean(total for _, total, _ in known.values())
  seconds = 0.0
  for run in runs:
    if (run.variant, run.seed) in done:
      continue
    same = [total for variant, total, _ in known.values() if variant == run.variant]
    seconds += known[run.title][2] if run.title in known else statistics.fmean(same or [mean])
  minutes = round(seconds / jobs / 60)
  return f'{text}, about {minutes // 60}:{minutes % 60:02} h left'


def _result(run: StudyRun) -> Result | None:
  """How a run has ended; None if it has not."""
  if not results.has_ended(run.folder):
    return None
  return results.read(preprocessing.resolved(run.config, run.folder), run.folder)


def conduct_processes(
  name: str,
  runs: Sequence[StudyRun],
  workdir: pathlib.Path,
  *,
  jobs: int,
  say: Callable[[str], None],
  ended: Callable[[Results], None],
) -> None:
  """`conduct` with a process for each run.

  Raises:
    UserError: as `conduct`.
    Preempted: Ctrl-C or SIGTERM; the running ones have saved.
  """
  processes = Processes(name, workdir)
  try:
    conduct(runs, processes, jobs=jobs, say=say, ended=ended)
  except KeyboardInterrupt:
    processes.stop()  # the pool's threads wait for them at the end of this process
    raise Preempted('Interrupted; the runs that were going on have saved.') from None
  except UserError:  # where it is of the table, runs are going on
    processes.stop()
    raise
