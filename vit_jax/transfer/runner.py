"""From one checkpoint to its table: sweeps, final runs and probes, one after the other."""

import pathlib
import statistics
from collections.abc import Callable
from typing import NamedTuple

from vit_jax import config as config_lib
from vit_jax.data import sources
from vit_jax.errors import UserError
from vit_jax.evaluation.real_labels import RealLabels
from vit_jax.transfer import runs, suites
from vit_jax.transfer.configs import PROBES, Configs, Settings
from vit_jax.transfer.suites import Row


class Accuracies(NamedTuple):
  """Of the runs of one data set by one recipe, or of the draws of one probe."""

  mean: float
  deviation: float | None  # of one run (n - 1); None: there is but one
  each: list[float] | None  # None: of probes, whose runs give mean and deviation


class Line(NamedTuple):
  """A line of the table.

  Attributes:
    name: of the data set, and of the probe.
    ours: from the checkpoint; None where the data is missing.
    scratch: the same model from scratch, where asked for.
    rate: the learning rates chosen, from the checkpoint and from scratch; None for probes.
    sweep: rate -> accuracy on what was held out of the training split, of each.
    missing: why nothing was run, and the command that prepares the data.
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


class Button:
  """Runs what is not done yet, and keeps count."""

  def __init__(self, settings: Settings, workdir: pathlib.Path, say: Callable[[str], None]):
    """
    Args:
      settings: what to do.
      workdir: of the transfer; each run has a folder of its own below.
      say: prints a line.

    Raises:
      UserError: the checkpoint is not there.
    """
    self._settings, self._workdir, self._say = settings, workdir, say
    self._configs = Configs(settings)
    self._results: list[runs.Result] = []

  def lines(self, name: str) -> list[Line]:
    """The lines of one of `suites.names`; a data set that is not there gives one that says so."""
    try:
      row = suites.row(name)
      _open(row)
    except UserError as error:
      self._say(f'{name}: left out. {error}')
      return [Line(name, missing=str(error), prepare=suites.prepare_command(name))]
    if row.fewshot:
      return self._probed(row)
    if row.reassessed and self._settings.real_labels:
      # Before hours of training: it may have to be downloaded.
      names = sources.open_source(row.source, row.test, data=config_lib.DataConfig()).class_names
      RealLabels(self._settings.real_labels, names, names)
    return self._finetuned(row)

  def compute(self) -> Compute:
    """Of all lines so far."""
    return Compute(
      len(self._results),
      sum(result.flops for result in self._results),
      sum(result.seconds * result.devices for result in self._results),
      ', '.join(sorted({result.device for result in self._results})),
    )

  def _finetuned(self, row: Row) -> list[Line]:
    rates, sweeps, finals = [], [], []
    for scratch in self._ways():
      rate, sweep = self._choose(row, scratch)
      rates.append(rate)
      sweeps.append(sweep)
      finals.append([self._final(row, rate, seed, scratch) for seed in range(self._settings.seeds)])
    pad = lambda values, empty: [*values, empty][:2]
    line = Line(
      row.name,
      *pad([_accuracies(results, 'test/accuracy') for results in finals], None),
      rate=tuple(pad(rates, None)),
      sweep=tuple(pad(sweeps, {})),
    )
    if 'test/real_accuracy' not in finals[0][0].metrics:
      return [line]
    real = [_accuracies(results, 'test/real_accuracy') for results in finals]
    return [line, Line(f'{row.name} (ReaL)', *pad(real, None))]

  def _choose(self, row: Row, scratch: bool) -> tuple[float, dict[float, float]]:
    """The rate that is best on what is held out of the training split, and what each one reached there."""
    rates = self._configs.rates(row, scratch)
    if len(rates) == 1:
      return rates[0], {}
    scores = {}
    for rate in rates:
      config = self._configs.choosing(row, rate, scratch)
      scores[rate] = self._run(row, scratch, f'rate_{rate:g}', config, keep=False).metrics
    # Of rates that are equally good the one with the lower loss.
    best = max(rates, key=lambda rate: (scores[rate]['test/accuracy'], -scores[rate]['test/loss']))
    return best, {rate: score['test/accuracy'] for rate, score in scores.items()}

  def _final(self, row: Row, rate: float, seed: int, scratch: bool) -> runs.Result:
    return self._run(row, scratch, f'seed_{seed}', self._configs.final(row, rate, seed, scratch), keep=True)

  def _probed(self, row: Row) -> list[Line]:
    results = [
      self._run(row, scratch, 'probe', self._configs.probe(row, scratch)) for scratch in self._ways()
    ]
    data, lines = row.name.removeprefix(suites.FEWSHOT), []
    for shots in self._settings.shots:
      for probe in PROBES:
        prefix = config_lib.FewShot().metric_prefix(probe, shots)
        scores = [
          Accuracies(result.metrics[f'{prefix}/accuracy'], result.metrics.get(f'{prefix}/deviation'), None)
          for result in results
        ]
        title = f'{data} {f"{shots}-shot" if shots else "all images"} {probe}'
        lines.append(Line(title, *scores, notes=tuple(results[0].notes)))
    return lines

  def _ways(self) -> list[bool]:
    """Whether from scratch, of each way."""
    return [False, True] if self._settings.scratch else [False]

  def _run(
    self, row: Row, scratch: bool, name: str, config: config_lib.Config, *, keep: bool | None = None
  ) -> runs.Result:
    """A fine-tuning run, or, without `keep`, a probe."""
    place = pathlib.Path(suites.folder_name(row.name), 'scratch' if scratch else 'checkpoint', name)
    workdir = self._workdir / place
    done = (workdir / 'result.json').exists()
    if not done:
      self._say(f'{place}: {"goes on" if (workdir / "checkpoints").exists() else "begins"}')
    result = runs.probe(config, workdir) if keep is None else runs.finetune(config, workdir, keep=keep)
    scores = ', '.join(
      f'{metric} {value:.2%}' for metric, value in result.metrics.items() if metric.endswith('accuracy')
    )
    self._say(f'{place}: {"was done" if done else "done"}, {scores}')
    self._results.append(result)
    return result


def _open(row: Row) -> None:
  """Raises UserError where a split that a run would take is not there."""
  data = config_lib.DataConfig()
  for split in {row.train, row.test} | ({row.choosing, row.held_out} if not row.fewshot else set()):
    sources.open_source(row.source, split, data=data)


def _accuracies(results: list[runs.Result], metric: str) -> Accuracies:
  each = [result.metrics[metric] for result in results]
  return Accuracies(statistics.fmean(each), statistics.stdev(each) if len(each) > 1 else None, each)
