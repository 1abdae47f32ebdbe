"""The table of a transfer: as Markdown, CSV, JSON and a picture, beside the figures of the paper, quoted."""

import csv
import io
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

from vit_jax import markdown
from vit_jax.data.sources.vtab import TASKS
from vit_jax.evaluation import vtab
from vit_jax.transfer.figure import draw
from vit_jax.transfer.published import QUOTED, SOURCE
from vit_jax.transfer.runner import Accuracies, Compute, Line
from vit_jax.transfer.runs import write_json

_MEANS = {'vtab': 'VTAB, 19 tasks', 'natural': 'VTAB natural, 7', 'specialized': 'VTAB specialized, 4'}
_MEANS |= {'structured': 'VTAB structured, 8'}


def write(
  lines: Sequence[Line], compute: Compute, settings: dict[str, Any], workdir: pathlib.Path
) -> list[pathlib.Path]:
  """Writes table.md, table.csv, table.json and table.png; their paths.

  Args:
    lines: of the table, in order.
    compute: of all of them.
    settings: what was asked for, for table.json.
    workdir: where to.
  """
  lines = [*lines, *_vtab_means(lines)]
  header, rows = _cells(lines)
  paths = [workdir / f'table.{ending}' for ending in ('md', 'csv', 'json', 'png')]
  paths[0].write_text(_markdown(lines, header, rows, compute, settings))
  paths[1].write_text(_csv(lines))
  write_json(paths[2], _json(lines, compute, settings))
  draw(lines, header, rows, _footnotes(lines, settings), paths[3])
  return paths


def text(accuracies: Accuracies | None) -> str:
  """'91.23 ± 0.45', in per cent."""
  if accuracies is None:
    return ''
  deviation = '' if accuracies.deviation is None else f' ± {100 * accuracies.deviation:.2f}'
  return f'{100 * accuracies.mean:.2f}{deviation}'


def quoted(column: str, row: str) -> str:
  """A published figure as the table has it; '' where there is none."""
  if row not in QUOTED[column]:
    return ''
  mean, deviation = QUOTED[column][row]
  return f'{mean:.2f}' + ('' if deviation is None else f' ± {deviation:.2f}')


def _vtab_means(lines: Sequence[Line]) -> list[Line]:
  """VTAB's own summary: the means over the groups whose tasks are all there, run by run."""
  tasks = {line.name.removeprefix('vtab:'): line for line in lines if line.name.startswith('vtab:')}
  tasks = {name: line for name, line in tasks.items() if name in TASKS and line.ours}
  columns: list[dict[str, Accuracies]] = []
  for side in ('ours', 'scratch'):
    of_tasks = {name: getattr(line, side) for name, line in tasks.items() if getattr(line, side)}
    count = min((len(accuracies.each) for accuracies in of_tasks.values()), default=0)
    by_run = [vtab.means({name: a.each[run] for name, a in of_tasks.items()}) for run in range(count)]
    column = {}
    for title in by_run[0] if by_run else ():
      each = [means[title] for means in by_run]
      column[title] = Accuracies(statistics.fmean(each), statistics.stdev(each) if count > 1 else None, each)
    columns.append(column)
  return [
    Line(name, columns[0][key], columns[1].get(key)) for key, name in _MEANS.items() if key in columns[0]
  ]


def _cells(lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
  """Header and rows of the table that people read, with only those columns that say something."""
  columns = {
    'accuracy %': [line.name for line in lines],
    'ours': [text(line.ours) or 'missing' for line in lines],
    'from scratch': [text(line.scratch) for line in lines],
    **{f'{column} *': [quoted(column, line.name) for line in lines] for column in QUOTED},
    'rate': [_rate(line.rate[0]) for line in lines],
    'scratch rate': [_rate(line.rate[1]) for line in lines],
  }
  columns = {title: cells for title, cells in columns.items() if any(cells)}
  return list(columns), [list(row) for row in zip(*columns.values())]


def _rate(rate: float | None) -> str:
  return '' if rate is None else f'{rate:g}'


def _footnotes(lines: Sequence[Line], settings: dict[str, Any]) -> list[str]:
  count = settings['seeds']
  notes = [f'Mean ± deviation (n − 1) of {count} runs or draws.' if count > 1 else 'One run each.']
  if any(line.scratch for line in lines):
    notes.append(
      'From scratch: the same model, data and steps with Adam, its rates swept alike; in few-shot lines the '
      'features of a model with random parameters.'
    )
  if any(quoted(column, line.name) for column in QUOTED for line in lines):
    notes.append(f'* {SOURCE}.')
  for note in dict.fromkeys(f'{line.name}: {note}' for line in lines for note in line.notes):
    notes.append(f'{note}.')
  return notes


def _markdown(
  lines: Sequence[Line],
  header: list[str],
  rows: list[list[str]],
  compute: Compute,
  settings: dict[str, Any],
) -> str:
  text = [f'# Transfer of {settings["checkpoint"]}', '', markdown.table(header, rows), '']
  text += [note + '\n' for note in _footnotes(lines, settings)]
  text += [_compute_text(compute), '']
  missing = [line for line in lines if line.missing]
  if missing:
    text += ['## Missing', '']
    for line in missing:
      # Unless the sentence says how.
      command = '' if line.prepare in line.missing else f' Prepare it: `{line.prepare}`'
      text.append(f'- {line.name}: {line.missing}{command}')
    text.append('')
  swept = [line for line in lines if line.sweep[0] or line.sweep[1]]
  if swept:
    rows = [
      [line.name, way, ', '.join(f'{rate:g}: {accuracy:.2%}' for rate, accuracy in sweep.items())]
      for line in swept
      for way, sweep in zip(('checkpoint', 'scratch'), line.sweep)
      if sweep
    ]
    text += ['## Rates, by what was held out of the training split', '']
    text += [markdown.table(['data', 'from', 'rate: accuracy'], rows), '']
  return '\n'.join(text)


def _compute_text(compute: Compute) -> str:
  return (
    f'Compute: {compute.runs} runs, {compute.flops / 1e18:.3g} exaFLOPs of training (forward and backward, '
    f'sweeps included) and of features, {compute.device_seconds / 3600:.3g} device-hours of {compute.device}.'
  )


def _csv(lines: Sequence[Line]) -> str:
  """A line a row, accuracies between 0 and 1 in full precision."""
  file = io.StringIO()
  writer = csv.writer(file, lineterminator='\n')
  names = ['mean', 'deviation', 'runs']
  quotes = [f'{column} (quoted, %)' for column in QUOTED]
  writer.writerow(
    ['data', *names, 'rate', *(f'scratch_{name}' for name in names), 'scratch_rate', *quotes, 'missing']
  )
  for line in lines:
    values: list[Any] = [line.name]
    for accuracies, rate in zip((line.ours, line.scratch), line.rate):
      mean, deviation, each = accuracies or (None, None, None)
      values += [mean, deviation, ' '.join(map(repr, each or ())), rate]
    writer.writerow([*values, *(quoted(column, line.name) for column in QUOTED), line.missing])
  return file.getvalue()


def _json(lines: Sequence[Line], compute: Compute, settings: dict[str, Any]) -> dict[str, Any]:
  def plain(line: Line) -> dict[str, Any]:
    values = line._asdict()
    for side in ('ours', 'scratch'):
      values[side] = values[side] and values[side]._asdict()
    values['quoted_percent'] = {column: QUOTED[column].get(line.name) for column in QUOTED}
    return values

  return {
    'settings': settings,
    'lines': [plain(line) for line in lines],
    'compute': compute._asdict(),
    'quoted': SOURCE,
  }
