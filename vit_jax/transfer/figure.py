"""The table as a picture: its text, and beside each line where the accuracies lie."""

import pathlib
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit_jax.experiments import report
from vit_jax.experiments.report import Summary
from vit_jax.transfer.lines import Line
from vit_jax.transfer.published import QUOTED

# Inches.
_ROW = 0.32
_CHARACTER = 0.088
_NOTE_CHARACTER = 0.068
_NOTE_LINE = 0.19
_PLOT_WIDTH = 4.0
_LEAST_TEXT_WIDTH = 6.0  # so that the notes have room
_LEGEND_HEIGHT = 1.35
_MARGIN = 0.25

_OUR_COLOUR, _SCRATCH_COLOUR = 'C0', 'C1'
_QUOTED_COLOURS = {column: f'C{number}' for number, column in enumerate(QUOTED, 2)}


@report.plain_text
def draw(
  lines: Sequence[Line],
  header: Sequence[str],
  rows: Sequence[Sequence[str]],
  footnotes: Sequence[str],
  path: pathlib.Path,
) -> None:
  """Writes the PNG: a row of cells for each line, its accuracies beside it, and the footnotes below."""
  columns = zip(header, *rows, strict=True)
  widths = [(max(len(cell) for cell in column) + 2) * _CHARACTER for column in columns]
  text_width, height = max(sum(widths), _LEAST_TEXT_WIDTH), (len(rows) + 1) * _ROW
  width = text_width + _PLOT_WIDTH + 3 * _MARGIN
  # Below the text stand the notes, below the plot its legend.
  notes = [part for note in footnotes for part in textwrap.wrap(note, int(text_width / _NOTE_CHARACTER))]
  below = max(0.3 + _NOTE_LINE * len(notes), _LEGEND_HEIGHT)
  total = height + below + _MARGIN
  figure = Figure(figsize=(width, total))
  bottom, share = below / total, height / total
  text_axes = figure.add_axes((_MARGIN / width, bottom, text_width / width, share))
  plot_axes = figure.add_axes(((text_width + 2 * _MARGIN) / width, bottom, _PLOT_WIDTH / width, share))
  for axes in (text_axes, plot_axes):
    axes.set_ylim(len(rows) + 0.5, -0.5)
    for number in range(1, len(rows) + 1, 2):
      axes.axhspan(number - 0.5, number + 0.5, color='0.94', zorder=0)
  _write_cells(text_axes, widths, header, rows)
  _plot(plot_axes, lines, height)
  for number, note in enumerate(notes):
    figure.text(_MARGIN / width, (below - 0.12 - _NOTE_LINE * number) / total, note, fontsize=8, va='top')
  report.write_picture(figure, path, dpi=130)


def _write_cells(
  axes: Axes, widths: Sequence[float], header: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
  axes.set_xlim(0, sum(widths))
  axes.set_axis_off()
  for number, row in enumerate([header, *rows]):
    weight = 'bold' if number == 0 else 'normal'
    left = 0.0
    for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
      # Names are aligned to the left, numbers to the right.
      where, align = (left + 0.05, 'left') if column == 0 else (left + width - 0.05, 'right')
      axes.text(where, number, cell, ha=align, va='center', fontsize=9, fontweight=weight)
      left += width


def _plot(axes: Axes, lines: Sequence[Line], inches: float) -> None:
  """Plots accuracies in per cent, each line of the table at its row, from 1 on; the axes are so many inches high."""
  for column, quotes in QUOTED.items():
    rows = [row for row, line in enumerate(lines, 1) if line.name in quotes]
    if rows:
      means = [quotes[line.name].mean for line in lines if line.name in quotes]
      style = {'color': _QUOTED_COLOURS[column], 'markersize': 11, 'markeredgewidth': 2}
      axes.plot(means, rows, '|', label=f'{column} *', **style)
  scratch = [(line.scratch, row) for row, line in enumerate(lines, 1) if line.scratch]
  ours = [(line.ours, row) for row, line in enumerate(lines, 1) if line.ours]
  _points(axes, scratch, 's', _SCRATCH_COLOUR, 'from scratch')
  _points(axes, ours, 'o', _OUR_COLOUR, 'ours')
  axes.grid(axis='x', alpha=0.3)
  axes.set_yticks([])
  axes.set_xlabel('accuracy %', fontsize=9)
  axes.tick_params(labelsize=9)
  if axes.get_legend_handles_labels()[0]:
    # Half an inch below the axes, where their own label ends, whatever the height of the plot.
    axes.legend(fontsize=8, loc='upper center', bbox_to_anchor=(0.5, -0.5 / inches), ncols=3, frameon=False)


def _points(axes: Axes, points: Sequence[tuple[Summary, int]], marker: str, colour: str, label: str) -> None:
  """Plots (accuracies, row) with their deviations."""
  if not points:
    return
  means = [100 * summary.mean for summary, _ in points]
  deviations = [100 * (summary.deviation or 0) for summary, _ in points]
  rows = [row for _, row in points]
  axes.errorbar(
    means, rows, xerr=deviations, fmt=marker, color=colour, markersize=5, capsize=3, label=label, zorder=3
  )
