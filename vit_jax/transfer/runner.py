"""From one checkpoint to its table: sweeps, final runs and probes, one after the other."""

import functools
import math
import pathlib
import statistics
from collections.abc import Callable
from typing import NamedTuple

from vit_jax.config import DataConfig
from vit_jax.data import sources
from vit_jax.errors import UserError
from vit_jax.evaluation.fewshot import metric_prefix
from vit_jax.evaluation.real_labels import RealLabels
from vit_jax.training import results
from vit_jax.transfer import runs, suites
from vit_jax.transfer.configs import PROBES, Configs, Settings
from vit_jax.transfer.suites import Row


class Accuracies(NamedTuple):
  """Accuracies, from 0 to 1, of the runs of one data set by one recipe, or of the draws of one probe.

  Attributes:
    mean: over the runs or draws.
    deviation: of one of them (n - 1); None if there is but one.
    each: of each run; None for probes, which give mean and deviation only.
  """

  mean: float
  deviation: float | None
  each: list[float] | None

  @classmethod
  def of(cls, each: list[float]) -> 'Accuracies':
    """Those of one or more runs."""
    return cls(statistics.fmean(each), statistics.stdev(each) if len(each) > 1 else None, each)


class Line(NamedTuple):
  """A line of the table.

  Attributes:
    name: of the data set, and of the probe.
    ours: from the checkpoint; None where the data is missing.
    scratch: the same model from scratch, where asked for.
    rate: the learning rates chosen, from the checkpoint and from scratch; None for probes.
    sweep: rate -> accuracy on the held-out part of the training split, from the checkpoint and from scratch.
    missing: why nothing was run.
    prepare: the command that prepares missing data.
    notes: what a reader should know.
  """

  name: str
  ours: Accuracies | None = None
  scratch: Accuracies | None = None
  rate: tuple[float | None, float | None] = (None, None)
  sweep: tuple[dict[float, float], dict[float, float]] = ({}, {})
  missing: str = ''
  prepare: str = ''
  notes: tuple[str, ...] = ()


class Compute(NamedTuple):
  """What all runs took: sweeps, final runs and probes."""

  runs: int
  flops: float
  device_seconds: float
  device: str


class _Finetuned(NamedTuple):
  """Fine-tuning on one data set, from the checkpoint or from scratch.

  Attributes:
    rate: chosen by the sweep.
    sweep: rate -> accuracy on the held-out part of the training split.
    finals: a result for each seed.
  """

  rate: float
  sweep: dict[float, float]
  finals: list[results.Result]

  def accuracies(self, metric: str) -> Accuracies:
    """A metric of the final runs."""
    return Accuracies.of([result.metrics[metric] for result in self.finals])


class Transfer:
  """Makes the lines of a table. Runs that have ended are not done again."""

  def __init__(self, settings: Settings, workdir: pathlib.Path, say: Callable[[str], None]):
    """
    Args:
      settings: what to do.
      workdir: each run has a folder of its own below it.
      say: prints a line.

    Raises:
      UserError: the checkpoint is not there.
    """
    self._settings, self._workdir, self._say = settings, workdir, say
    self._configs = Configs(settings)
    self._results: list[results.Result] = []

  def lines(self, name: str) -> list[Line]:
    """The lines of one of `suites.names`. Of a data set that is not there, a line that says so."""
    try:
      row = suites.row(name)
      _open_splits(row)
    except UserError as error:
      self._say(f'{name}: left out. {error}')
      return [Line(name, missing=str(error), prepare=suites.prepare_command(name))]
    if row.fewshot:
      return self._probe_lines(row)
    if row.has_real_labels and self._settings.real_labels:
      # Before hours of training: the labels may have to be downloaded.
      names = sources.open_source(row.source, row.test, data=DataConfig()).class_names
      RealLabels(self._settings.real_labels, names, names)
    return self._finetuning_lines(row)

  def compute(self) -> Compute:
    """What the runs of all lines so far took."""
    return Compute(
      len(self._results),
      sum(result.flops for result in self._results),
      sum(result.seconds * result.devices for result in self._results),
      ', '.join(sorted({result.device for result in self._results})),
    )

  def _finetuning_lines(self, row: Row) -> list[Line]:
    ours = self._finetuned(row, scratch=False)
    scratch = self._finetuned(row, scratch=True) if self._settings.scratch else None

    def line(name: str, metric: str) -> Line:
      return Line(name, ours.accuracies(metric), scratch.accuracies(metric) if scratch else None)

    test = line(row.name, 'test/accuracy')._replace(
      rate=(ours.rate, scratch.rate if scratch else None),
      sweep=(ours.sweep, scratch.sweep if scratch else {}),
    )
    if 'test/real_accuracy' not in ours.finals[0].metrics:
      return [test]
    return [test, line(f'{row.name} (ReaL)', 'test/real_accuracy')]

  def _finetuned(self, row: Row, *, scratch: bool) -> _Finetuned:
    """The final runs, with the rate that is best on the held-out part of the training split."""
    rates, sweep = self._configs.rates(row, scratch=scratch), {}
    best = rates[0]
    if len(rates) > 1:
      metrics = {rate: self._sweep_metrics(row, rate, scratch=scratch) for rate in rates}
      best = max(rates, key=lambda rate: _score(metrics[rate]))
      sweep = {rate: metrics[rate]['test/accuracy'] for rate in rates}
    finals = [self._final(row, best, seed, scratch=scratch) for seed in range(self._settings.seeds)]
    return _Finetuned(best, sweep, finals)

  def _sweep_metrics(self, row: Row, rate: float, *, scratch: bool) -> dict[str, float]:
    config = self._configs.sweep(row, rate, scratch=scratch)
    place = _place(row, f'rate_{rate:g}', scratch=scratch)
    return self._run(place, functools.partial(results.train, config, keep=False)).metrics

  def _final(self, row: Row, rate: float, seed: int, *, scratch: bool) -> results.Result:
    config = self._configs.final(row, rate, seed, scratch=scratch)
    place = _place(row, f'seed_{seed}', scratch=scratch)
    return self._run(place, functools.partial(results.train, config, keep=True))

  def _probe_lines(self, row: Row) -> list[Line]:
    ours = self._probed(row, scratch=False)
    scratch = self._probed(row, scratch=True) if self._settings.scratch else None
    data, lines = row.name.removeprefix(suites.FEWSHOT), []
    for shots in self._settings.shots:
      for probe in PROBES:
        title = f'{data} {f"{shots}-shot" if shots else "all images"} {probe}'
        prefix = metric_prefix(probe, shots)
        lines.append(
          Line(
            title,
            _probe_accuracies(ours, prefix),
            _probe_accuracies(scratch, prefix) if scratch else None,
            notes=tuple(ours.notes),
          )
        )
    return lines

  def _probed(self, row: Row, *, scratch: bool) -> results.Result:
    config = self._configs.probe(row, scratch=scratch)
    return self._run(_place(row, 'probe', scratch=scratch), functools.partial(runs.probe, config))

  def _run(self, place: pathlib.Path, run: Callable[[pathlib.Path], results.Result]) -> results.Result:
    """Does a run unless it is done, and says so; `place` is its folder below the workdir."""
    workdir = self._workdir / place
    done = results.has_ended(workdir)
    if not done:
      self._say(f'{place}: {"goes on" if (workdir / "checkpoints").exists() else "begins"}')
    result = run(workdir)
    scores = [f'{name} {value:.2%}' for name, value in result.metrics.items() if name.endswith('accuracy')]
    self._say(f'{place}: {"was done" if done else "done"}, {", ".join(scores)}')
    self._results.append(result)
    return result


def _score(metrics: dict[str, float]) -> tuple[float, float]:
  """Sorts rates: by accuracy, and of equal ones by the loss; a loss that is not finite is the worst."""
  loss = metrics['test/loss']
  return metrics['test/accuracy'], -loss if math.isfinite(loss) else -math.inf


def _probe_accuracies(result: results.Result, prefix: str) -> Accuracies:
  metrics = result.metrics
  return Accuracies(metrics[f'{prefix}/accuracy'], metrics.get(f'{prefix}/deviation'), None)


def _place(row: Row, run: str, *, scratch: bool) -> pathlib.Path:
  """The folder of a run below the workdir: 'cifar10/checkpoint/seed_0'."""
  return pathlib.Path(suites.folder_name(row.name), 'scratch' if scratch else 'checkpoint', run)


def _open_splits(row: Row) -> None:
  """Raises UserError where a split that a run would take is not there."""
  splits = [row.train, row.test]
  if not row.fewshot:
    splits += [row.sweep_train, row.sweep_test]
  for split in splits:
    sources.open_source(row.source, split, data=DataConfig())
