"""Tables as plain text, in columns of equal width."""

from collections.abc import Collection, Sequence


def aligned(rows: Sequence[Sequence[str]], right: Collection[int]) -> list[str]:
  """A line for each row, two spaces between the columns; those whose numbers are in `right` end alike."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
    '  '.join(
      cell.rjust(width) if number in right else cell.ljust(width)
      for number, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in rows
  ]


def ruled(rows: Sequence[Sequence[str]], right: Collection[int]) -> str:
  """As `aligned`, with a rule below the first row, the header, and one above the last, the sums."""
  first, *middle, last = aligned(rows, right)
  rule = '-' * max(map(len, (first, *middle, last)))
  return '\n'.join([first, rule, *middle, rule, last])
