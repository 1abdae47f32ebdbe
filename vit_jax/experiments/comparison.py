"""Runs side by side: what their workdirs say, as tables and as curves."""

import math
import pathlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from vit_jax import config
from vit_jax.evaluation.base import format_metric, metric_kind
from vit_jax.experiments import report as report_lib
from vit_jax.experiments.report import Summary
from vit_jax.foundation import markdown
from vit_jax.foundation.errors import UserError
from vit_jax.training import resume
from vit_jax.training.metrics import read_metrics, training_seconds

# Metrics of the table of results, by what their names end with and in this order.
_RESULTS = ('accuracy', r'_recall_at_\d+', '/mean_average_precision', '/loss')


class Run(NamedTuple):
  """A run, as its workdir describes it."""

  name: str
  options: dict[str, Any]  # of its config, by dotted name
  lines: list[dict[str, float]]  # of metrics.jsonl
  taken_over: bool = False  # whether it went on with other options, perhaps with another batch size

  def values(self, metric: str) -> list[tuple[int, float]]:
    """(step, value) wherever the metric was measured; the value may be NaN."""
    return [(int(line['step']), line[metric]) for line in self.lines if metric in line]


def read_runs(workdirs: Sequence[pathlib.Path]) -> list[Run]:
  """The runs, named by the last parts of their paths that tell them apart.

  Raises UserError for none or the same one twice, and a folder that is no workdir, or of a run without numbers yet.
  """
  paths = [path.expanduser().resolve() for path in workdirs]
  if not paths or len(set(paths)) < len(paths):
    raise UserError('Name the workdirs of the runs to compare, each once.')
  parts = 1
  while len({path.parts[-parts:] for path in paths}) < len(paths):
    parts += 1
  result = []
  for path in paths:
    lines = read_metrics(path) if path.is_dir() else []
    if not (path / 'config.json').is_file() or not lines:
      raise UserError(f'{path} is not the workdir of a run that has logged something; check the path.')
    options = config.flatten(resume.read_config(path))
    name = '/'.join(path.parts[-parts:]).encode(errors='surrogateescape')
    taken_over = (path / resume.TAKEOVER).exists()
    result.append(Run(name.decode(errors='backslashreplace'), options, lines, taken_over))
  return result


def report(runs: Sequence[Run]) -> str:
  """The tables, as Markdown."""
  names = [run.name for run in runs]
  text = ['# Runs compared', '', '## Results', '']
  text += [markdown.table(['', *names], _result_rows(runs)), '']
  text += ['Last value; where another step was better, that one and its step in brackets.', '']
  differing = _differing(runs)
  text += ['## Options that differ', '']
  text += [markdown.table(['option', *names], differing) if differing else 'None.', '']
  groups = _by_config(runs)
  if len(groups) < len(runs):
    text += ['## Means over seeds', '', _means(groups), '']
  return '\n'.join(text)


def _by_config(runs: Sequence[Run]) -> list[list[Run]]:
  """Groups of runs that differ in their seed alone, by seed."""
  groups: dict[str, list[Run]] = {}
  for run in sorted(runs, key=lambda run: run.options['seed']):
    groups.setdefault(str(sorted((run.options | {'seed': 0}).items())), []).append(run)
  return list(groups.values())


def _means(groups: Sequence[Sequence[Run]]) -> str:
  """A table: the options in which the groups differ, and each result's mean and value for each seed."""
  firsts = [group[0] for group in groups]
  options = [name for name, *_ in _differing(firsts) if name != 'seed']
  metrics = _metrics([run for group in groups for run in group])
  metrics = [metric for metric in metrics if not metric.startswith('train/')]
  rows = []
  for group in groups:
    row = [str(group[0].options.get(option, '')) for option in options]
    for metric in metrics:
      lasts = [run.values(metric)[-1] for run in group if run.values(metric)]
      alike = len({step for step, _ in lasts}) < 2  # otherwise some have not ended, or ended early
      each = (format_metric(metric, value) + ('' if alike else f' at {step:,}') for step, value in lasts)
      mean = format_metric(metric, Summary.of([value for _, value in lasts]).mean) if lasts else ''
      row.append(f'{mean} ({", ".join(each)})' if lasts else '')
    rows.append(row)
  return markdown.table([*options, *metrics], rows)


def _result_rows(runs: Sequence[Run]) -> list[list[str]]:
  rows = [
    ['steps', *(f'{run.lines[-1]["step"]:,}' for run in runs)],
    ['images', *map(_images, runs)],
    ['hours of training steps', *(f'{training_seconds(run.lines) / 3600:.3g}' for run in runs)],
  ]
  for metric in _metrics(runs):
    rows.append([metric, *(_result(run, metric) for run in runs)])
  return rows


def _images(run: Run) -> str:
  """'5,120'; '' where earlier steps may have had other batches."""
  return '' if run.taken_over else f'{run.lines[-1]["step"] * run.options["batch_size"]:,}'


def _metrics(runs: Sequence[Run]) -> list[str]:
  """The results that some run has: accuracies first, and each kind by its name."""
  known = sorted({name for run in runs for line in run.lines for name in line})
  return [name for ending in _RESULTS for name in known if re.search(f'{ending}$', name)]


def _result(run: Run, metric: str) -> str:
  """'91.20 % (91.50 % at 300)'; '' where it was not measured."""
  values = run.values(metric)
  if not values:
    return ''
  choose = max if metric_kind(metric).higher_is_better else min
  last = values[-1][1]
  finite = [pair for pair in values if math.isfinite(pair[1])]
  step, best = choose(finite or values[-1:], key=lambda pair: pair[1])
  if best is last or best == last or metric.startswith('train/'):  # one batch is too noisy to name the best
    return format_metric(metric, last)
  return f'{format_metric(metric, last)} ({format_metric(metric, best)} at {step:,})'


def _differing(runs: Sequence[Run]) -> list[list[str]]:
  options = sorted(set().union(*(run.options for run in runs)))
  rows = [[option, *(str(run.options.get(option, '')) for run in runs)] for option in options]
  return [row for row in rows if len(set(row[1:])) > 1]


@report_lib.plain_text
def draw(runs: Sequence[Run], path: pathlib.Path) -> None:
  """Writes the curves as a PNG: a panel for each metric, a colour for each run."""
  metrics = [*_metrics(runs), 'learning_rate']
  by_images = len({run.options['batch_size'] for run in runs}) > 1
  columns = min(3, len(metrics))
  rows = -(-len(metrics) // columns)
  figure = Figure(figsize=(4.5 * columns, 3.2 * rows + 0.3 * len(runs)), layout='constrained')
  axes = figure.subplots(rows, columns, squeeze=False).ravel()
  for axis, metric in zip(axes, metrics):
    for number, run in enumerate(runs):
      points = run.values(metric)
      factor = run.options['batch_size'] if by_images else 1
      xs, ys = [step * factor for step, _ in points], [value for _, value in points]
      axis.plot(xs, ys, color=f'C{number % 10}', label=run.name, marker='.' if len(points) < 30 else '')
    axis.set(title=metric, xlabel='images' if by_images else 'step')
    axis.set_xlim(left=0)
    axis.grid(alpha=0.3)
  for axis in axes[len(metrics) :]:
    axis.set_axis_off()
  lines, labels = axes[0].get_legend_handles_labels()
  figure.legend(lines, labels, loc='outside lower center')
  report_lib.write_picture(figure, path)
