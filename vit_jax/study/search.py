"""A search: options drawn from ranges, a training run for each draw, and the best ones by a metric.

Optuna chooses the options and which runs stop early; this module does the runs. All that is known lies in
WORKDIR/search.log, a journal that several machines with a shared folder may use at the same time. The n-th draw depends
on the search's seed and n alone as long as the sampler is 'random' or 'grid', whoever asks for it.
"""

import contextlib
import dataclasses
import itertools
import math
import pathlib
from collections.abc import Collection, Iterator
from concurrent import futures
from typing import TYPE_CHECKING, Any, cast

import filelock

from vit_jax.evaluation.base import metric_kind
from vit_jax.experiments.runner import Process
from vit_jax.foundation import files, signals
from vit_jax.foundation.errors import Preempted, UserError
from vit_jax.study.definition import Range, Search, Study, StudyRun, Variant, runs
from vit_jax.training.metrics import read_metrics

if TYPE_CHECKING:
  import optuna
  from optuna.trial import FrozenTrial

_JOURNAL = 'search.log'
_LOCKS = 'locks'  # the folder of the files by which processes keep out of each other's way
_POLL_SECONDS = 2.0  # between two looks at what running trials have measured


def name_of(number: int) -> str:
  """The name of a trial, which is its folder too."""
  return f'trial_{number}'


def trial_run(search: Search, workdir: pathlib.Path, name: str) -> StudyRun:
  """The run of a trial that the journal has, by its name."""
  found = next(trial for trial in opened(search, workdir).trials if name_of(trial.number) == name)
  return _run(search, found, workdir)


def variant_of(search: Search, trial: 'FrozenTrial') -> Variant:
  """The variant that a trial trains."""
  return dataclasses.replace(search.variant, options={**search.variant.options, **trial.params})


def _run(search: Search, trial: 'FrozenTrial', workdir: pathlib.Path) -> StudyRun:
  variants = {name_of(trial.number): variant_of(search, trial)}
  (run,) = runs(Study(search.title, variants, (search.seed,), search.metric), workdir)
  return run


def opened(search: Search, workdir: pathlib.Path) -> 'optuna.Study':
  """The journal of a search in a workdir, which is made if it is not there.

  Raises UserError where Optuna is not installed, or the folder has another search.
  """
  try:
    import optuna
    from optuna.storages import JournalStorage, journal
  except ModuleNotFoundError as error:
    raise UserError(f"A search needs {error.name}; install it: pip install 'vit_jax[search]'.") from None
  optuna.logging.set_verbosity(optuna.logging.WARNING)
  files.make_directories(workdir / _LOCKS)
  # A lock that ends with its process; Optuna's own is a link, which a killed process leaves behind.
  lock = cast(Any, filelock.FileLock(workdir / _LOCKS / 'journal'))
  backend = journal.JournalFileBackend(str(workdir / _JOURNAL), lock)
  study = optuna.create_study(
    storage=JournalStorage(backend),
    study_name=search.title,
    direction='maximize' if metric_kind(search.metric).higher_is_better else 'minimize',
    pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=search.halving)
    if search.halving
    else optuna.pruners.NopPruner(),
    load_if_exists=True,
  )
  described = repr((search.variant, sorted(search.ranges.items()), search.metric, search.seed))
  if study.user_attrs.get('search', described) != described:
    raise UserError(f'{workdir} has another search of this title; choose another --workdir or title.')
  if 'search' not in study.user_attrs:
    study.set_user_attr('search', described)
  return study


@dataclasses.dataclass
class _Running:
  """A trial at work: `claim` keeps other searches from it; it is dropped when this process ends, however it ends."""

  trial: 'FrozenTrial'
  run: StudyRun
  process: Process
  claim: filelock.FileLock
  stopped: bool = False  # by successive halving


class Searcher:
  """Does the trials of a search in a workdir, beside others that do so in the same folder."""

  def __init__(self, search: Search, file: str, workdir: pathlib.Path):
    """`file` names the search, for its processes."""
    _check_grid(search)
    self.study = opened(search, workdir)
    self._search, self._file, self._workdir = search, file, workdir
    self.errors: dict[str, str] = {}  # trial -> why it failed

  def run(self, at_a_time: int) -> Iterator[str]:
    """Does trials, so many at a time, until none is left for this process; a sentence whenever one begins or ends.

    Raises Preempted at Ctrl-C or SIGTERM, when the running ones have saved.
    """
    running: dict[futures.Future[str], _Running] = {}
    pool = futures.ThreadPoolExecutor(at_a_time)
    try:
      while True:
        while (
          len(running) < at_a_time
          and (begun := self._begin({each.trial.number for each in running.values()})) is not None
        ):
          running[pool.submit(begun.process.error)] = begun
          options = [f'{option}={option_text(value)}' for option, value in begun.trial.params.items()]
          yield f'{name_of(begun.trial.number)} begins: {", ".join(options)}'
        if not running:
          return
        with signals.raise_at_interrupt():
          complete, _ = futures.wait(running, _POLL_SECONDS, futures.FIRST_COMPLETED)
        for future in complete:
          yield self._end(running.pop(future), future.result())
        for trial in running.values():
          self._watch(trial)
    except KeyboardInterrupt:
      raise Preempted('Interrupted; the trials that were going on have saved.') from None
    finally:
      for trial in running.values():
        trial.process.stop()
      pool.shutdown()

  def _begin(self, own: Collection[int]) -> _Running | None:
    """Goes on with a trial that nobody is at work on, or draws a new one; None: the budget is spent.

    `own`: the numbers of the trials that this process is at work on.
    """
    with filelock.FileLock(self._workdir / _LOCKS / 'draws'):
      for trial in self.study.trials:
        if trial.state.is_finished() or trial.number in own:
          continue
        if (claim := self._claim(trial.number)) is not None:
          return self._start(trial, claim)
      drawn = len(self.study.trials)
      if drawn >= self._search.trials:
        return None
      if self._search.sampler == 'grid':
        self.study.enqueue_trial(self._combination(drawn))
      self.study.sampler = self._sampler(drawn)
      distributions = {option: _distribution(values) for option, values in self._search.ranges.items()}
      number = self.study.ask(distributions).number
      claim = self._claim(number)
      assert claim is not None, number
      return self._start(self.study.trials[number], claim)

  def _claim(self, number: int) -> filelock.FileLock | None:
    """The lock of a trial; None where another process has it."""
    lock = filelock.FileLock(self._workdir / _LOCKS / name_of(number))
    with contextlib.suppress(filelock.Timeout):
      lock.acquire(timeout=0)
      return lock
    return None

  def _start(self, trial: 'FrozenTrial', claim: filelock.FileLock) -> _Running:
    run = _run(self._search, trial, self._workdir)
    process = Process('vit_jax.study.job', self._file, str(self._workdir), name_of(trial.number))
    return _Running(trial, run, process, claim)

  def _sampler(self, drawn: int) -> 'optuna.samplers.BaseSampler':
    from optuna import samplers

    seed = self._search.seed + drawn  # so that a draw does not depend on who drew those before it
    return samplers.TPESampler(seed=seed) if self._search.sampler == 'tpe' else samplers.RandomSampler(seed)

  def _combination(self, number: int) -> dict[str, Any]:
    """That of a grid; the last option varies fastest."""
    ranges = self._search.ranges
    every = itertools.product(*(values.values for values in ranges.values()))
    return dict(zip(ranges, next(itertools.islice(every, number, None)), strict=True))

  def _watch(self, running: _Running) -> None:
    """Tells Optuna what a trial has measured, and stops one that it does not find promising."""
    import optuna

    trial = optuna.Trial(self.study, running.trial._trial_id)
    known = len(self.study.trials[running.trial.number].intermediate_values)
    metric = self._search.metric
    values = [line[metric] for line in read_metrics(running.run.folder) if metric in line]
    for count, value in enumerate(values[known:], start=known + 1):
      trial.report(value, count)
      if not running.stopped and trial.should_prune():
        running.stopped = True
        running.process.stop()
        return

  def _end(self, running: _Running, error: str) -> str:
    """Tells Optuna how a trial has ended; the sentence about it."""
    from optuna.trial import TrialState

    name, number, metric = name_of(running.trial.number), running.trial.number, self._search.metric
    result = None if error else running.run.result()
    if result is not None:
      self._watch(running)
      self.study.tell(number, result.metrics[metric])
      text = f'{name}: {metric} {result.metrics[metric]:.4g}'
    elif running.stopped:
      self.study.tell(number, state=TrialState.PRUNED)
      text = f'{name}: stopped early'
    else:
      self.errors[name] = error
      self.study.tell(number, state=TrialState.FAIL)
      text = f'{name}: failed. {error}'
    running.claim.release()
    return text


def _check_grid(search: Search) -> None:
  """Raises UserError for a grid with a range that is no choice, or with more trials than it has combinations."""
  if search.sampler != 'grid':
    return
  count = math.prod(len(values.values) for values in search.ranges.values())
  if not count:
    raise UserError(f'The search {search.title!r} is a grid; write all its ranges with choice(…).')
  if search.trials > count:
    raise UserError(
      f'The search {search.title!r} has {count} combinations; ask for no more trials than that.'
    )


def _distribution(values: Range) -> 'optuna.distributions.BaseDistribution':
  """What Optuna calls a range."""
  from optuna import distributions

  if values.values:
    return distributions.CategoricalDistribution(values.values)
  if values.integer:
    return distributions.IntDistribution(int(values.low), int(values.high))
  return distributions.FloatDistribution(values.low, values.high, log=values.log)


def option_text(value: Any) -> str:
  """The value of an option, with four digits."""
  return f'{value:.4g}' if isinstance(value, float) else str(value)
