"""From one checkpoint to the lines of its table: sweeps, final runs and probes, one after the other."""

import functools
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from vit_jax.config import Config, DataConfig
from vit_jax.data import sources
from vit_jax.evaluation.fewshot import metric_prefix
from vit_jax.evaluation.real_labels import RealLabels
from vit_jax.experiments import runner
from vit_jax.experiments.report import Summary
from vit_jax.experiments.runner import Job
from vit_jax.foundation.errors import UserError
from vit_jax.training import results
from vit_jax.training.results import Result
from vit_jax.transfer import runs, suites
from vit_jax.transfer.configs import PROBES, Configs, Settings
from vit_jax.transfer.suites import Row

Execute = Callable[[Config, pathlib.Path], Result]  # does a run, in its workdir


class Line(NamedTuple):
  """A line of the table."""

  name: str  # of the data set, and of the probe
  ours: Summary | None = None  # accuracies, from 0 to 1, from the checkpoint; None where the data is missing
  scratch: Summary | None = None  # the same model from scratch, where asked for
  # The learning rates chosen, from the checkpoint and from scratch; None for probes.
  rate: tuple[float | None, float | None] = (None, None)
  # Rate -> accuracy on the held-out part of the training split, from the checkpoint and from scratch.
  sweep: tuple[dict[float, float], dict[float, float]] = ({}, {})
  missing: str = ''  # why nothing was run
  prepare: str = ''  # the command that prepares missing data
  notes: tuple[str, ...] = ()  # what a reader should know


class Compute(NamedTuple):
  """What all runs took: sweeps, final runs and probes."""

  runs: int
  flops: float
  device_seconds: float
  device: str


class _Finetuned(NamedTuple):
  """Fine-tuning on one data set, from the checkpoint or from scratch."""

  rate: float  # chosen by the sweep
  sweep: dict[float, float]  # rate -> accuracy on the held-out part of the training split
  finals: list[Result]  # a result for each seed

  def summary(self, metric: str) -> Summary:
    """A metric of the final runs."""
    return Summary.of([result.metrics[metric] for result in self.finals])


class Transfer:
  """Makes the lines of a table. Runs that have ended are not done again."""

  def __init__(self, settings: Settings, workdir: pathlib.Path, say: Callable[[str], None]):
    """Each run has a folder of its own below `workdir`. Raises UserError where the checkpoint is not there."""
    self._settings, self._workdir, self._say = settings, workdir, say
    self._configs = Configs(settings)
    self._results: list[Result] = []

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
      return Line(name, ours.summary(metric), scratch.summary(metric) if scratch else None)

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
      tried = {f'rate_{rate:g}': self._configs.sweep(row, rate, scratch=scratch) for rate in rates}
      train = functools.partial(results.train, keep=False, may_diverge=True)
      ended = self._done(row, tried, train, scratch=scratch)
      metrics = {rate: result.metrics for rate, result in zip(rates, ended, strict=True)}
      best = max(rates, key=lambda rate: _score(metrics[rate]))
      sweep = {rate: metrics[rate]['test/accuracy'] for rate in rates}
    seeds = range(self._settings.seeds)
    finals = {f'seed_{seed}': self._configs.final(row, best, seed, scratch=scratch) for seed in seeds}
    ended = self._done(row, finals, functools.partial(results.train, keep=True), scratch=scratch)
    return _Finetuned(best, sweep, ended)

  def _probe_lines(self, row: Row) -> list[Line]:
    ours = self._probed(row, scratch=False)
    scratch = self._probed(row, scratch=True) if self._settings.scratch else None
    data, lines = row.name.removeprefix(suites.FEWSHOT), []
    for shots in self._settings.shots:
      for probe in PROBES:
        title = f'{data} {f"{shots}-shot" if shots else "all images"} {probe}'
        mine, other = (
          result and _probe_summary(result, metric_prefix(probe, shots)) for result in (ours, scratch)
        )
        lines.append(Line(title, mine, other, notes=tuple(ours.notes)))
    return lines

  def _probed(self, row: Row, *, scratch: bool) -> Result:
    config = self._configs.probe(row, scratch=scratch)
    return self._done(row, {'probe': config}, runs.probe, scratch=scratch)[0]

  def _done(
    self, row: Row, configs: Mapping[str, Config], execute: Execute, *, scratch: bool
  ) -> list[Result]:
    """How the runs of a row ended: name, which is that of its folder too, -> config."""
    place = f'{suites.folder_name(row.name)}/{"scratch" if scratch else "checkpoint"}'
    jobs = [
      Job(title=f'{place}/{name}', config=config, folder=self._workdir / place / name)
      for name, config in configs.items()
    ]
    ended = runner.in_turn(jobs, lambda job: execute(job.config, job.folder), say=self._say)
    self._results += ended
    return ended


def _score(metrics: dict[str, float]) -> tuple[float, float]:
  """Sorts rates: by accuracy, and of equal ones by the loss; what is not finite is the worst."""
  accuracy, loss = metrics['test/accuracy'], -metrics['test/loss']
  return accuracy if math.isfinite(accuracy) else -math.inf, loss if math.isfinite(loss) else -math.inf


def _probe_summary(result: Result, prefix: str) -> Summary:
  metrics = result.metrics
  return Summary(metrics[f'{prefix}/accuracy'], metrics.get(f'{prefix}/deviation'), None)


def _open_splits(row: Row) -> None:
  """Raises UserError where a split that a run would take is not there."""
  splits = [row.train, row.test]
  if not row.fewshot:
    splits += [row.sweep_train, row.sweep_test]
  for split in splits:
    sources.open_source(row.source, split, data=DataConfig())
