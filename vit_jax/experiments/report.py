"""What studies, transfers and comparisons make of results: means and deviations, tables and pictures."""

import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure

from vit_jax.foundation import files

# Names may have dollar signs.
plain_text = matplotlib.rc_context({'text.parse_math': False})


class Summary(NamedTuple):
  """A metric of several runs, or of the draws of one probe."""

  mean: float  # over the runs or draws
  deviation: float | None  # of one of them (n - 1); None if there is but one
  each: list[float] | None  # of each run; None for probes, which give mean and deviation only

  @classmethod
  def of(cls, each: list[float]) -> 'Summary':
    """That of one or more runs; NaN where several are not all finite, of which `statistics` makes no deviation."""
    if len(each) == 1:
      return cls(each[0], None, each)
    if not all(map(math.isfinite, each)):
      return cls(math.nan, math.nan, each)
    return cls(statistics.fmean(each), statistics.stdev(each), each)


def rows(columns: Mapping[str, Sequence[str]]) -> list[list[str]]:
  """The rows of a table: title -> the cells of its column, as many each."""
  return [list(row) for row in zip(*columns.values(), strict=True)]


def write_table(workdir: pathlib.Path, text: str, content: Any) -> None:
  """Writes `table.md` and `table.json`."""
  files.make_directories(workdir)
  files.write_text(workdir / 'table.md', text)
  files.write_json(workdir / 'table.json', content)


def write_picture(figure: Figure, path: pathlib.Path, *, dpi: int = 100) -> None:
  """Writes a PNG, which is on the disk when this returns."""
  figure.savefig(path, dpi=dpi)
  files.sync([path])
