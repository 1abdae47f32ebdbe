"""The table of a study as Markdown, JSON and a picture: mean and deviation over seeds, and each seed."""

import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from vit_jax.evaluation import classification_metrics
from vit_jax.evaluation.base import format_metric, metric_kind
from vit_jax.experiments import report
from vit_jax.experiments.report import Summary
from vit_jax.experiments.runner import Results
from vit_jax.foundation import markdown
from vit_jax.foundation.errors import UserError
from vit_jax.study.definition import Study, Variant, command, config_of, title
from vit_jax.training.results import Result


class Row(NamedTuple):
  """What the runs of a variant gave so far."""

  name: str  # of the variant
  variant: Variant  # its config
  ended: dict[int, Result]  # seed -> how its run ended
  summary: Summary | None  # of the study's metric; None before the first run has ended

  @property
  def flops(self) -> float | None:
    """Of the training of one run; None before the first has ended."""
    return next((result.flops for result in self.ended.values()), None)


def rows(study: Study, results: Results) -> list[Row]:
  """A row for each variant that is compared; UserError where a run has ended without the study's metric."""
  table = []
  for name, variant in study.variants.items():
    if not variant.compared:
      continue
    titles = {seed: title(name, seed) for seed in study.seeds}
    ended = {seed: results[run] for seed, run in titles.items() if run in results}
    for seed, result in ended.items():
      if study.metric not in result.metrics:
        raise UserError(
          f'The run {titles[seed]} has ended without {study.metric!r}, the metric of the study; choose one of '
          f'{", ".join(sorted(result.metrics)) or "another one"}, or remove the folder of the run to train it again.'
        )
    values = [result.metrics[study.metric] for result in ended.values()]
    table.append(Row(name, variant, ended, Summary.of(values) if values else None))
  return table


def write(study: Study, results: Results, workdir: pathlib.Path) -> None:
  """Writes table.md, table.json and table.png."""
  table = rows(study, results)
  pooled = {row.name: _pooled(study, row, workdir) for row in table} if study.folds else {}
  report.write_table(workdir, _markdown(study, table, pooled), _json(study, table))
  draw(study, table, workdir / 'table.png')


def _pooled(study: Study, row: Row, workdir: pathlib.Path) -> str:
  """The accuracy of all folds that have ended together: '94.20% of 500 images (95% interval 91.80% to 95.93%)'.

  UserError where the folds are not of the same images, of which all are trained on or held out in each.
  """
  evaluator = study.metric.partition('/')[0]
  paths = {seed: workdir / title(row.name, seed) / 'report' / f'{evaluator}.json' for seed in row.ended}
  reports = {
    seed: json.loads(path.read_text(encoding='utf-8')) for seed, path in paths.items() if path.exists()
  }
  everything = {
    seed: report['images'] + row.ended[seed].images
    for seed, report in reports.items()
    if row.ended[seed].images and _trains_on_all_others(row)
  }
  if everything and min(everything.values()) != max(everything.values()):
    few, many = (title(row.name, choose(everything, key=everything.__getitem__)) for choose in (min, max))
    raise UserError(
      f'{few} is a fold of {min(everything.values()):,} images and {many} one of {max(everything.values()):,}, since '
      f'images came or went in between; remove the folder of the older one in {workdir}, and those of its time.'
    )
  total = sum(each['images'] for each in reports.values())
  right = sum(round(each['metrics']['accuracy'] * each['images']) for each in reports.values())
  return classification_metrics.share_text(right, total) if total else ''


def _trains_on_all_others(row: Row) -> bool:
  """Whether a fold is all that is not trained on."""
  if row.variant.unlabelled is not None:
    return False  # it also trains on what its teacher labels, as many as are confident
  data = config_of(row.name, row.variant).data
  return data.max_per_class is None and '[' not in f'{data.source}{data.split}{data.mixture}'


def _markdown(study: Study, table: Sequence[Row], pooled: Mapping[str, str]) -> str:
  columns = {
    study.metric: [row.name for row in table],
    'mean ± deviation': [_mean_text(study.metric, row.summary) for row in table],
  }
  if pooled:
    columns['accuracy, all folds'] = list(pooled.values())
  for seed, heading in zip(study.seeds, study.headings(), strict=True):
    ended = [row.ended.get(seed) for row in table]
    columns[heading] = [
      format_metric(study.metric, result.metrics[study.metric]) if result else '' for result in ended
    ]
  seconds = [[result.seconds for result in row.ended.values()] for row in table]
  columns['minutes'] = [f'{statistics.fmean(each) / 60:.1f}' if each else '' for each in seconds]
  columns['petaFLOPs'] = ['' if row.flops is None else f'{row.flops / 1e15:.3g}' for row in table]
  if any(row.variant.published for row in table):
    columns['published'] = [row.variant.published for row in table]
  hours = sum(map(sum, seconds)) / 3600
  own = '`--config.seed=…`, `--config.data.fold=…`' if study.folds else '`--config.seed=…`'
  return '\n'.join(
    [
      f'# {study.title}',
      '',
      markdown.table(list(columns), report.rows(columns)),
      '',
      f'{sum(map(len, seconds))} of {len(table) * len(study.seeds)} runs have ended, {hours:.3g} hours of training '
      'steps. The deviation is that of one run (n − 1); minutes are of training steps, on average; FLOPs are counted, '
      'forward and backward, of one run.',
      '',
      f'By themselves, with {own} and `--workdir=…`:',
      '',
      *(f'- {name}: `{command(name, study)}`' for name in study.variants),
      '',
    ]
  )


def _mean_text(metric: str, summary: Summary | None) -> str:
  if summary is None:
    return 'not run yet'
  deviation = '' if summary.deviation is None else f' ± {format_metric(metric, summary.deviation)}'
  return format_metric(metric, summary.mean) + deviation


def _json(study: Study, table: Sequence[Row]) -> dict[str, Any]:
  variants = {}
  for row in table:
    variants[row.name] = {
      'command': command(row.name, study),
      'published': row.variant.published,
      'mean': row.summary and row.summary.mean,
      'deviation': row.summary and row.summary.deviation,
      'seeds': {str(seed): result.metrics[study.metric] for seed, result in row.ended.items()},
      'flops': row.flops,
      'seconds': {str(seed): result.seconds for seed, result in row.ended.items()},
    }
  return {'title': study.title, 'metric': study.metric, 'variants': variants}


@report.plain_text
def draw(study: Study, table: Sequence[Row], path: pathlib.Path) -> None:
  """Writes the picture: a row for each variant, or lines over the study's axis."""
  label, scale = (f'{study.metric}, %', 100) if metric_kind(study.metric).percent else (study.metric, 1)
  figure = Figure(figsize=(8, 5 if study.axis else 1.3 + 0.35 * len(table)), layout='constrained')
  axes = figure.subplots()
  if study.axis:
    _draw_lines(axes, table, scale)
    axes.set(xlabel=study.axis, ylabel=label, xscale='log')
    axes.xaxis.set_major_formatter(LogFormatter())  # the default one writes formulas
    axes.xaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.4)))
    axes.legend()
  else:
    _draw_rows(axes, study.metric, table, scale)
    axes.set_xlabel(label)
  axes.set_title(study.title)
  axes.grid(alpha=0.3)
  axes.spines[['top', 'right']].set_visible(False)
  report.write_picture(figure, path)


def _draw_rows(axes: Axes, metric: str, table: Sequence[Row], scale: float) -> None:
  """A dot for each seed; a square at the mean, and the deviation as a bar."""
  for number, row in enumerate(table):
    colour = f'C{number % 10}'
    if row.summary:
      deviation = scale * (row.summary.deviation or 0)
      axes.errorbar(scale * row.summary.mean, number, xerr=deviation, fmt='s', color=colour)
    seeds = [scale * result.metrics[metric] for result in row.ended.values()]
    axes.plot(seeds, [number] * len(seeds), '.', color=colour, alpha=0.6)
  axes.set_yticks(range(len(table)), [row.name for row in table])
  axes.set_ylim(len(table) - 0.5, -0.5)


def _draw_lines(axes: Axes, table: Sequence[Row], scale: float) -> None:
  """For each line of the study the means of its variants, with their deviations."""
  for line in dict.fromkeys(row.variant.line for row in table):
    points = [
      (row.variant.at or row.flops or 0.0, scale * row.summary.mean, scale * (row.summary.deviation or 0))
      for row in table
      if row.variant.line == line and row.summary
    ]
    xs, means, deviations = zip(*sorted(points), strict=True) if points else ((), (), ())
    axes.errorbar(xs, means, yerr=deviations, fmt='o-', capsize=3, label=line)
