"""The table as a picture: its text, and beside each line where the accuracies lie."""

import pathlib
import textwrap
from collections.abc import Sequence

from matplotlib.figure import Figure

from vit_jax.transfer.published import QUOTED
from vit_jax.transfer.runner import Accuracies, Line

_INCH_A_ROW = 0.32
_INCH_A_CHARACTER = 0.088
_PLOT_INCHES = 4.0
_LEAST_TEXT_INCHES = 6.0  # that the notes have room
_MARGIN = 0.25


# None of them is that of our own.
_QUOTED_COLOURS = {column: f'C{number}' for number, column in enumerate(QUOTED, 2)}


def draw(
  lines: Sequence[Line],
  header: Sequence[str],
  rows: Sequence[Sequence[str]],
  footnotes: Sequence[str],
  path: pathlib.Path,
) -> None:
  """Writes the PNG.

  Args:
    lines: what to plot.
    header: titles of the columns.
    rows: their cells, one row a line.
    footnotes: below it.
    path: where to.
  """
  widths = [(max(map(len, column)) + 2) * _INCH_A_CHARACTER for column in zip(header, *rows)]
  text_width, height = max(sum(widths), _LEAST_TEXT_INCHES), (len(rows) + 1) * _INCH_A_ROW
  width = text_width + _PLOT_INCHES + 3 * _MARGIN
  # Below the text the notes, below the plot its legend.
  notes = [part for note in footnotes for part in textwrap.wrap(note, int(text_width / 0.068))]
  below = max(0.3 + 0.19 * len(notes), 1.35)
  total = height + below + _MARGIN
  figure = Figure(figsize=(width, total))
  text_axis = figure.add_axes((_MARGIN / width, below / total, text_width / width, height / total))
  plot_axis = figure.add_axes(
    ((text_width + 2 * _MARGIN) / width, below / total, _PLOT_INCHES / width, height / total)
  )
  for axis in (text_axis, plot_axis):
    axis.set_ylim(len(rows) + 0.5, -0.5)
    for number in range(1, len(rows) + 1, 2):
      axis.axhspan(number - 0.5, number + 0.5, color='0.94', zorder=0)
  _write_cells(text_axis, widths, header, rows)
  _plot(plot_axis, lines, height)
  for number, note in enumerate(notes):
    figure.text(_MARGIN / width, (below - 0.12 - 0.19 * number) / total, note, fontsize=8, va='top')
  figure.savefig(path, dpi=130)


def _write_cells(axis, widths: Sequence[float], header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
  axis.set_xlim(0, sum(widths))
  axis.set_axis_off()
  for number, row in enumerate([header, *rows]):
    left = 0.0
    for column, (cell, width) in enumerate(zip(row, widths)):
      # Names to the left, figures to the right, as one reads them.
      where, align = (left + 0.05, 'left') if column == 0 else (left + width - 0.05, 'right')
      weight = 'bold' if number == 0 else 'normal'
      axis.text(where, number, cell, ha=align, va='center', fontsize=9, fontweight=weight)
      left += width


def _plot(axis, lines: Sequence[Line], inches: float) -> None:
  """Accuracies in per cent, a line of the table a row, the first one at 1; `inches` is the axis' height."""
  for column, quotes in QUOTED.items():
    points = [(quotes[line.name][0], row) for row, line in enumerate(lines, 1) if line.name in quotes]
    if points:
      style = {'color': _QUOTED_COLOURS[column], 'markersize': 11, 'markeredgewidth': 2}
      axis.plot(*zip(*points), '|', label=f'{column} *', **style)
  for name, marker, colour in (('scratch', 's', 'C1'), ('ours', 'o', 'C0')):
    points = [(getattr(line, name), row) for row, line in enumerate(lines, 1) if getattr(line, name)]
    if points:
      _points(axis, points, marker, colour, {'ours': 'ours', 'scratch': 'from scratch'}[name])
  axis.grid(axis='x', alpha=0.3)
  axis.set_yticks([])
  axis.set_xlabel('accuracy %', fontsize=9)
  axis.tick_params(labelsize=9)
  if axis.get_legend_handles_labels()[0]:
    # Below the axis' own label, whatever the height of the plot.
    axis.legend(fontsize=8, loc='upper center', bbox_to_anchor=(0.5, -0.5 / inches), ncols=3, frameon=False)


def _points(axis, points: Sequence[tuple[Accuracies, int]], marker: str, colour: str, label: str) -> None:
  means = [100 * accuracies.mean for accuracies, _ in points]
  deviations = [100 * (accuracies.deviation or 0) for accuracies, _ in points]
  rows = [row for _, row in points]
  axis.errorbar(
    means, rows, xerr=deviations, fmt=marker, color=colour, markersize=5, capsize=3, label=label, zorder=3
  )
