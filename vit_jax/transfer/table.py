"""The table of a transfer as Markdown, CSV, JSON and a picture, with the paper's figures quoted beside it."""

import csv
import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.data.sources.vtab import TASKS
from vit_jax.evaluation import vtab
from vit_jax.experiments import report
from vit_jax.experiments.report import Summary
from vit_jax.foundation import files, markdown
from vit_jax.transfer.figure import draw
from vit_jax.transfer.lines import Compute, Line
from vit_jax.transfer.published import QUOTED, SOURCE, THOUSAND_CORE_DAYS
from vit_jax.transfer.suites import VTAB

# Key of `vtab.means` -> name of its line.
_MEANS = {
  'vtab': 'VTAB, 19 tasks',
  'natural': 'VTAB natural, 7',
  'specialized': 'VTAB specialized, 4',
  'structured': 'VTAB structured, 8',
}


def write(lines: Sequence[Line], compute: Compute, settings: dict[str, Any], workdir: pathlib.Path) -> None:
  """Writes table.md, table.csv, table.json and table.png; `settings` are the fields of `configs.Settings`."""
  lines = [*lines, *_vtab_means(lines)]
  header, rows = _cells(lines)
  text = _markdown(lines, header, rows, compute, settings)
  report.write_table(workdir, text, _json(lines, compute, settings))
  files.write_text(workdir / 'table.csv', _csv(lines))
  draw(lines, header, rows, _footnotes(lines, settings), workdir / 'table.png')


def accuracy_text(summary: Summary | None) -> str:
  """'91.23 ± 0.45', in per cent; '' for None."""
  if summary is None:
    return ''
  deviation = None if summary.deviation is None else 100 * summary.deviation
  return _percent_text(100 * summary.mean, deviation)


def quoted_text(column: str, row: str) -> str:
  """A published figure as the table shows it; '' where there is none."""
  if row not in QUOTED[column]:
    return ''
  mean, deviation, improved = QUOTED[column][row]
  return _percent_text(mean, deviation) if improved is None else f'{mean:g}/{improved:g}'


def _percent_text(mean: float, deviation: float | None) -> str:
  return f'{mean:.2f}' if deviation is None else f'{mean:.2f} ± {deviation:.2f}'


def _vtab_means(lines: Sequence[Line]) -> list[Line]:
  """VTAB's own summary: run by run, the mean over each group whose tasks are all there."""
  tasks = {line.name.removeprefix(VTAB): line for line in lines if line.name.startswith(VTAB)}
  tasks = {name: line for name, line in tasks.items() if name in TASKS and line.ours}
  ours = _group_means({name: line.ours for name, line in tasks.items()})
  scratch = _group_means({name: line.scratch for name, line in tasks.items()})
  return [Line(title, ours[group], scratch.get(group)) for group, title in _MEANS.items() if group in ours]


def _group_means(tasks: Mapping[str, Summary | None]) -> dict[str, Summary]:
  """Group -> its mean over the tasks (name -> accuracies) in each run, and the mean and deviation of those."""
  each_by_task = {name: summary.each or [] for name, summary in tasks.items() if summary}
  count = min((len(each) for each in each_by_task.values()), default=0)
  by_run = [vtab.means({name: each[run] for name, each in each_by_task.items()}) for run in range(count)]
  groups = by_run[0] if by_run else ()
  return {group: Summary.of([means[group] for means in by_run]) for group in groups}


def _cells(lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
  """Header and rows of the table that people read, without columns that are empty."""
  columns = {
    'accuracy %': [line.name for line in lines],
    'ours': [accuracy_text(line.ours) or 'missing' for line in lines],
    'from scratch': [accuracy_text(line.scratch) for line in lines],
    **{f'{column} *': [quoted_text(column, line.name) for line in lines] for column in QUOTED},
    'rate': [_rate_text(line.rate[0]) for line in lines],
    'scratch rate': [_rate_text(line.rate[1]) for line in lines],
  }
  columns = {title: cells for title, cells in columns.items() if any(cells)}
  return list(columns), report.rows(columns)


def _rate_text(rate: float | None) -> str:
  return '' if rate is None else f'{rate:g}'


def _footnotes(lines: Sequence[Line], settings: dict[str, Any]) -> list[str]:
  count = settings['seeds']
  notes = [f'Mean ± deviation (n − 1) of {count} runs or draws.' if count > 1 else 'One run each.']
  if any(line.scratch for line in lines):
    notes.append(
      'From scratch: the same model, data and steps with Adam, its rates swept alike; in few-shot lines the '
      'features of a model with random parameters.'
    )
  if any(quoted_text(column, line.name) for column in QUOTED for line in lines):
    days = ', '.join(f'{column} {thousands:g}k' for column, thousands in THOUSAND_CORE_DAYS.items())
    notes += [f'* {SOURCE}.', f'* TPUv3-core-days of pre-training: {days}.']
  own_notes = dict.fromkeys(f'{line.name}: {note}.' for line in lines for note in line.notes)
  return [*notes, *own_notes]


def _markdown(
  lines: Sequence[Line],
  header: list[str],
  rows: list[list[str]],
  compute: Compute,
  settings: dict[str, Any],
) -> str:
  text = [f'# Transfer of {settings["checkpoint"]}', '', markdown.table(header, rows), '']
  text += [note + '\n' for note in _footnotes(lines, settings)]
  text += [_compute_text(compute), '', *_missing_section(lines), *_sweep_section(lines)]
  return '\n'.join(text)


def _missing_section(lines: Sequence[Line]) -> list[str]:
  """What was left out, why, and how to prepare it."""
  missing = [line for line in lines if line.missing]
  if not missing:
    return []
  text = ['## Missing', '']
  for line in missing:
    # Unless the sentence has the command already.
    command = '' if line.prepare in line.missing else f' Prepare it: `{line.prepare}`'
    text.append(f'- {line.name}: {line.missing}{command}')
  return [*text, '']


def _sweep_section(lines: Sequence[Line]) -> list[str]:
  """What each rate of the sweeps reached."""
  rows = []
  for line in lines:
    for start, sweep in zip(('checkpoint', 'scratch'), line.sweep, strict=True):
      if sweep:
        reached = ', '.join(f'{rate:g}: {accuracy:.2%}' for rate, accuracy in sweep.items())
        rows.append([line.name, start, reached])
  if not rows:
    return []
  title = '## Rates, by what was held out of the training split'
  return [title, '', markdown.table(['data', 'from', 'rate: accuracy'], rows), '']


def _compute_text(compute: Compute) -> str:
  return (
    f'Compute: {compute.runs} runs, {compute.flops / 1e18:.3g} exaFLOPs of training (forward and backward, '
    f'sweeps included) and of features, {compute.device_seconds / 3600:.3g} device-hours of {compute.device}.'
  )


def _csv(lines: Sequence[Line]) -> str:
  """One row for each line, with accuracies from 0 to 1 in full precision."""
  file = io.StringIO()
  writer = csv.writer(file, lineterminator='\n')
  names = ['mean', 'deviation', 'runs']
  quotes = [f'{column} (quoted, %)' for column in QUOTED]
  writer.writerow(
    ['data', *names, 'rate', *(f'scratch_{name}' for name in names), 'scratch_rate', *quotes, 'missing']
  )
  for line in lines:
    values: list[Any] = [line.name]
    for summary, rate in zip((line.ours, line.scratch), line.rate, strict=True):
      mean, deviation, each = summary or (None, None, None)
      values += [mean, deviation, ' '.join(map(repr, each or ())), rate]
    writer.writerow([*values, *(quoted_text(column, line.name) for column in QUOTED), line.missing])
  return file.getvalue()


def _json(lines: Sequence[Line], compute: Compute, settings: dict[str, Any]) -> dict[str, Any]:
  contents = []
  for line in lines:
    content = line._asdict()
    content['ours'] = line.ours._asdict() if line.ours else None
    content['scratch'] = line.scratch._asdict() if line.scratch else None
    content['quoted_percent'] = {column: QUOTED[column].get(line.name) for column in QUOTED}
    contents.append(content)
  return {
    'settings': settings,
    'lines': contents,
    'compute': compute._asdict(),
    'quoted': SOURCE,
    'quoted_thousand_core_days': THOUSAND_CORE_DAYS,
  }
