"""The table of a study as Markdown, JSON and a picture: mean and deviation over seeds, and each seed."""

import pathlib
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from vit_jax import files, markdown
from vit_jax.errors import UserError
from vit_jax.evaluation.base import format_metric, metric_kind
from vit_jax.study.definition import Study, Variant, command
from vit_jax.study.laboratory import Results


class Row(NamedTuple):
  """What the runs of a variant gave so far.

  Attributes:
    name: of the variant.
    variant: its config.
    values: seed -> the study's metric.
    mean: of them; None before the first run has ended.
    deviation: of one of them (n - 1); None of fewer than two.
    seconds: of training steps, seed by seed.
    flops: of the training of one run; None before the first has ended.
  """

  name: str
  variant: Variant
  values: dict[int, float]
  mean: float | None
  deviation: float | None
  seconds: dict[int, float]
  flops: float | None


def rows(study: Study, results: Results) -> list[Row]:
  """A row for each variant that is compared.

  Raises:
    UserError: a run has ended without the study's metric.
  """
  table = []
  for name, variant in study.variants.items():
    if not variant.compared:
      continue
    ended = {seed: results[name, seed] for seed in study.seeds if (name, seed) in results}
    for seed, result in ended.items():
      if study.metric not in result.metrics:
        raise UserError(
          f'The run {name}/seed_{seed} has ended without {study.metric!r}, the metric of the study; choose one of '
          f'{", ".join(sorted(result.metrics)) or "another one"}, or remove the folder of the run to train it again.'
        )
    values = {seed: result.metrics[study.metric] for seed, result in ended.items()}
    table.append(
      Row(
        name,
        variant,
        values,
        statistics.fmean(values.values()) if values else None,
        statistics.stdev(values.values()) if len(values) > 1 else None,
        {seed: result.seconds for seed, result in ended.items()},
        next((result.flops for result in ended.values()), None),
      )
    )
  return table


def write(study: Study, results: Results, workdir: pathlib.Path) -> None:
  """Writes table.md, table.json and table.png."""
  table = rows(study, results)
  files.make_directories(workdir)
  files.write_text(workdir / 'table.md', _markdown(study, table))
  files.write_json(workdir / 'table.json', _json(study, table))
  draw(study, table, workdir / 'table.png')


def _markdown(study: Study, table: Sequence[Row]) -> str:
  columns = {
    study.metric: [row.name for row in table],
    'mean ± deviation': [_mean_text(study.metric, row) for row in table],
  }
  for seed in study.seeds:
    columns[f'seed {seed}'] = [_text(study.metric, row.values.get(seed)) for row in table]
  columns['minutes'] = [_minutes_text(row) for row in table]
  columns['petaFLOPs'] = ['' if row.flops is None else f'{row.flops / 1e15:.3g}' for row in table]
  if any(row.variant.published for row in table):
    columns['published'] = [row.variant.published for row in table]
  cells = [list(row) for row in zip(*columns.values(), strict=True)]
  hours = sum(sum(row.seconds.values()) for row in table) / 3600
  ended = sum(len(row.values) for row in table)
  return '\n'.join(
    [
      f'# {study.title}',
      '',
      markdown.table(list(columns), cells),
      '',
      f'{ended} of {len(table) * len(study.seeds)} runs have ended, {hours:.3g} hours of training steps. The deviation '
      'is that of one run (n − 1); minutes are of training steps, on average; FLOPs are counted, forward and '
      'backward, of one run.',
      '',
      'By themselves, with `--config.seed=…` and `--workdir=…`:',
      '',
      *(f'- {name}: `{command(name, study)}`' for name in study.variants),
      '',
    ]
  )


def _text(metric: str, value: float | None) -> str:
  return '' if value is None else format_metric(metric, value)


def _mean_text(metric: str, row: Row) -> str:
  if row.mean is None:
    return 'not run yet'
  deviation = '' if row.deviation is None else f' ± {format_metric(metric, row.deviation)}'
  return format_metric(metric, row.mean) + deviation


def _minutes_text(row: Row) -> str:
  return f'{statistics.fmean(row.seconds.values()) / 60:.1f}' if row.seconds else ''


def _json(study: Study, table: Sequence[Row]) -> dict[str, Any]:
  variants = {}
  for row in table:
    variants[row.name] = {
      'command': command(row.name, study),
      'published': row.variant.published,
      'mean': row.mean,
      'deviation': row.deviation,
      'seeds': {str(seed): value for seed, value in row.values.items()},
      'flops': row.flops,
      'seconds': {str(seed): value for seed, value in row.seconds.items()},
    }
  return {'title': study.title, 'metric': study.metric, 'variants': variants}


@matplotlib.rc_context({'text.parse_math': False})  # names may have dollar signs
def draw(study: Study, table: Sequence[Row], path: pathlib.Path) -> None:
  """Writes the picture: a row for each variant, or lines over the study's axis."""
  percent = metric_kind(study.metric).percent
  title, scale = (f'{study.metric}, %', 100) if percent else (study.metric, 1)
  height = 5 if study.axis else 1.3 + 0.35 * len(table)
  figure = Figure(figsize=(8, height), layout='constrained')
  axes = figure.subplots()
  if study.axis:
    _draw_lines(axes, table, scale)
    axes.set(xlabel=study.axis, ylabel=title, xscale='log')
    axes.xaxis.set_major_formatter(LogFormatter())  # the default one writes formulas
    axes.xaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.4)))
    axes.legend()
  else:
    _draw_rows(axes, table, scale)
    axes.set_xlabel(title)
  axes.set_title(study.title)
  axes.grid(alpha=0.3)
  axes.spines[['top', 'right']].set_visible(False)
  figure.savefig(path, dpi=100)


def _draw_rows(axes: Axes, table: Sequence[Row], scale: float) -> None:
  """A dot for each seed; a square at the mean, and the deviation as a bar."""
  for number, row in enumerate(table):
    colour = f'C{number % 10}'
    if row.mean is not None:
      axes.errorbar(scale * row.mean, number, xerr=scale * (row.deviation or 0), fmt='s', color=colour)
    seeds = [scale * value for value in row.values.values()]
    axes.plot(seeds, [number] * len(seeds), '.', color=colour, alpha=0.6)
  axes.set_yticks(range(len(table)), [row.name for row in table])
  axes.set_ylim(len(table) - 0.5, -0.5)


def _draw_lines(axes: Axes, table: Sequence[Row], scale: float) -> None:
  """For each line of the study the means of its variants, with their deviations."""
  for line in dict.fromkeys(row.variant.line for row in table):
    points = [
      (row.variant.at or row.flops or 0.0, scale * row.mean, scale * (row.deviation or 0))
      for row in table
      if row.variant.line == line and row.mean is not None
    ]
    xs, means, deviations = zip(*sorted(points), strict=True) if points else ((), (), ())
    axes.errorbar(xs, means, yerr=deviations, fmt='o-', capsize=3, label=line)
