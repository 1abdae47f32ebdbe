"""Tables in Markdown."""

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A table that also reads well as plain text: its columns are padded to the same width."""
  cells = [[cell.replace('|', '\\|') for cell in row] for row in (header, *rows)]
  widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
  lines = []
  for row in cells:
    padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
    lines.append(f'| {" | ".join(padded)} |')
  lines.insert(1, '|' + '|'.join('-' * (width + 2) for width in widths) + '|')
  return '\n'.join(lines)
