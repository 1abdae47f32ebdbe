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
import warnings
from collections.abc import Collection, Iterator, Mapping
from concurrent import futures
from typing import TYPE_CHECKING, Any, cast, get_args, get_type_hints

import filelock
import numpy as np

from vit_jax.evaluation.base import metric_kind
from vit_jax.experiments.runner import Process
from vit_jax.foundation import files, signals
from vit_jax.foundation.errors import Preempted, UserError
from vit_jax.study.definition import Range, Search, Study, StudyRun, Variant, runs, title
from vit_jax.training.metrics import read_metrics

if TYPE_CHECKING:
  import optuna
  from optuna.trial import FrozenTrial

_JOURNAL = 'search.log'
_STUDY = 'search'  # what the journal calls the search: a folder has one, whose trials are its subfolders
_LOCKS = 'locks'  # the folder of the files by which processes keep out of each other's way
_POLL_SECONDS = 2.0  # between two looks at what running trials have measured


def name_of(number: int) -> str:
  """The name of a trial, which is its folder too."""
  return f'trial_{number}'


def trial_run(search: Search, workdir: pathlib.Path, name: str) -> StudyRun:
  """The run of a trial that the journal has, by its name."""
  found = next(trial for trial in opened(search, workdir).trials if name_of(trial.number) == name)
  return _run(search, name, found.params, workdir)


def variant_of(search: Search, params: Mapping[str, Any]) -> Variant:
  """The variant that a trial with these options trains."""
  return dataclasses.replace(search.variant, options={**search.variant.options, **params})


def _run(search: Search, name: str, params: Mapping[str, Any], workdir: pathlib.Path) -> StudyRun:
  (run,) = runs(
    Study(search.title, {name: variant_of(search, params)}, (search.seed,), search.metric), workdir
  )
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
    study_name=_STUDY,
    direction='maximize' if metric_kind(search.metric).higher_is_better else 'minimize',
    pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=search.halving)
    if search.halving
    else optuna.pruners.NopPruner(),
    load_if_exists=True,
  )
  # The order of ranges and whether they are a grid say which combination the n-th trial has.
  is_grid = search.sampler == 'grid'
  described = repr((search.variant, [*search.ranges.items()], search.metric, search.seed, is_grid))
  if study.user_attrs.get('search', described) != described:
    raise UserError(f'{workdir} has another search; choose another --workdir.')
  if 'search' not in study.user_attrs:
    study.set_user_attr('search', described)
  return study


@dataclasses.dataclass
class _Running:
  """A trial at work; its lock `claim` keeps other processes from it, and is free again when this one ends, however."""

  trial: 'FrozenTrial'
  folder: pathlib.Path  # of its run
  process: Process
  claim: filelock.FileLock
  stopped: bool = False  # by successive halving


class Searcher:
  """Does the trials of a search in a workdir, beside others that do so in the same folder."""

  def __init__(self, search: Search, file: str, workdir: pathlib.Path):
    """`file` names the search, for its processes."""
    _check(search, workdir)
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
          complete, others = futures.wait(running, _POLL_SECONDS, futures.FIRST_COMPLETED)
          for future in others:  # here: with many trials it takes a good part of the time
            self._watch(running[future])
        for future in complete:
          yield self._end(running.pop(future), future.result())
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
      trials = self.study.get_trials(deepcopy=False)
      for trial in trials:
        if trial.state.is_finished() or trial.number in own:
          continue
        if (claim := self._claim(trial.number)) is None:
          continue
        if self._frozen(trial.number).state.is_finished():  # by another process, since `trials` were read
          claim.release()
          continue
        return self._start(trial.number, claim)
      if len(trials) >= self._search.trials:
        return None
      number = self.study.ask().number
      claim = self._claim(number)
      assert claim is not None, number
      return self._start(number, claim)

  def _claim(self, number: int) -> filelock.FileLock | None:
    """The lock of a trial; None where another process has it."""
    lock = filelock.FileLock(self._workdir / _LOCKS / name_of(number))
    with contextlib.suppress(filelock.Timeout):
      lock.acquire(timeout=0)
      return lock
    return None

  def _start(self, number: int, claim: filelock.FileLock) -> _Running:
    trial, name = self._drawn(number), name_of(number)
    process = Process('vit_jax.study.job', self._file, str(self._workdir), name)
    return _Running(trial, self._workdir / title(name, self._search.seed), process, claim)

  def _drawn(self, number: int) -> 'FrozenTrial':
    """A trial with all its options: those that it does not have yet are drawn.

    A trial has none when it is new, and some where its process was killed while it drew them.
    """
    trial = self._trial(number)
    for place, (option, values) in enumerate(self._search.ranges.items()):
      self.study.sampler = self._sampler(number, place)
      trial._suggest(option, _distribution(values))
    return self._frozen(number)

  def _frozen(self, number: int) -> 'FrozenTrial':
    """What the journal has of a trial now."""
    return self.study.get_trials(deepcopy=False)[number]

  def _trial(self, number: int) -> 'optuna.Trial':
    import optuna

    return optuna.Trial(self.study, self._frozen(number)._trial_id)

  def _sampler(self, number: int, place: int) -> 'optuna.samplers.BaseSampler':
    """The sampler of an option of a trial, by a seed of its own: a draw does not depend on who drew those before it."""
    from optuna import samplers

    seed = int(np.random.SeedSequence([self._search.seed, number, place]).generate_state(1)[0])
    if self._search.sampler == 'tpe':
      return samplers.TPESampler(seed=seed)
    independent = samplers.RandomSampler(seed)
    if self._search.sampler == 'random':
      return independent
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # it is experimental, says Optuna
      return samplers.PartialFixedSampler(self._combination(number), independent)

  def _combination(self, number: int) -> dict[str, Any]:
    """The options of a grid's combination by its number, from 0; the last option varies fastest."""
    ranges = self._search.ranges
    every = itertools.product(*(values.values for values in ranges.values()))
    return dict(zip(ranges, next(itertools.islice(every, number, None)), strict=True))

  def _watch(self, running: _Running) -> None:
    """Tells Optuna what a trial has measured, and stops one that it does not find promising."""
    trial = self._trial(running.trial.number)
    known = len(self._frozen(running.trial.number).intermediate_values)
    metric = self._search.metric
    values = [line[metric] for line in read_metrics(running.folder) if metric in line]
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
    run = None if error else _run(self._search, name, running.trial.params, self._workdir)
    result = run and run.result()
    value = math.nan if result is None else result.metrics[metric]
    if not math.isnan(value):
      self._watch(running)
      self.study.tell(number, value)
      text = f'{name}: {metric} {value:.4g}'
    elif running.stopped:
      self.study.tell(number, state=TrialState.PRUNED)
      text = f'{name}: stopped early'
    else:
      self.errors[name] = error or f'Its {metric} is not a number.'
      self.study.tell(number, state=TrialState.FAIL)
      text = f'{name}: failed. {self.errors[name]}'
    running.claim.release()
    return text


def _check(search: Search, workdir: pathlib.Path) -> None:
  """Raises UserError for a search that has no draws, or whose first values make no run with its metric."""
  where, samplers = f'The search {search.title!r}', get_args(get_type_hints(Search)['sampler'])
  if search.sampler not in samplers:
    raise UserError(f'{where} has the sampler {search.sampler!r}; choose from {", ".join(samplers)}.')
  if search.halving < 0 or search.halving == 1:
    raise UserError(f'{where} has the factor halving={search.halving}; give 2 or more, or 0 for none.')
  for option, values in search.ranges.items():
    if not values.values and not (0 if values.log else -math.inf) < values.low < values.high < math.inf:
      raise UserError(
        f'{where} has no values for {option}; give choice(…) at least one, and other ranges a low end below the high '
        'one, which for log(…) is above 0.'
      )
  _check_grid(search)
  first = {
    option: values.values[0] if values.values else values.low for option, values in search.ranges.items()
  }
  _run(search, name_of(0), first, workdir)


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
