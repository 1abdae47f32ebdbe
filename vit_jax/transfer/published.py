"""Figures of others, quoted: none of them was measured here."""

from typing import NamedTuple


class Quoted(NamedTuple):
  """A published accuracy in %."""

  mean: float  # over three runs, or of one
  deviation: float | None = None  # over three runs; None: not published
  # A later figure of the same model, which the paper prints beside it; None: there is none.
  improved: float | None = None

  @classmethod
  def printed(cls, text: str) -> 'Quoted':
    """Of '88.55 ± 0.04', '90.54' or '88.4/88.5', as the paper prints them."""
    text, _, deviation = text.partition(' ± ')
    mean, _, improved = text.partition('/')
    return cls(float(mean), float(deviation) if deviation else None, float(improved) if improved else None)


# arXiv 2010.11929, table 2.
_COLUMNS = ('H/14 JFT', 'L/16 JFT', 'L/16 i21k', 'BiT-L R152x4', 'Noisy Student')
_TABLE_2 = {
  'imagenet2012': ('88.55 ± 0.04', '87.76 ± 0.03', '85.30 ± 0.02', '87.54 ± 0.02', '88.4/88.5'),
  'imagenet2012 (ReaL)': ('90.72 ± 0.05', '90.54 ± 0.03', '88.62 ± 0.05', '90.54', '90.55'),
  'cifar10': ('99.50 ± 0.06', '99.42 ± 0.03', '99.15 ± 0.03', '99.37 ± 0.06', ''),
  'cifar100': ('94.55 ± 0.04', '93.90 ± 0.05', '93.25 ± 0.05', '93.51 ± 0.08', ''),
  'oxford_iiit_pet': ('97.56 ± 0.03', '97.32 ± 0.11', '94.67 ± 0.15', '96.62 ± 0.23', ''),
  'oxford_flowers102': ('99.68 ± 0.02', '99.74 ± 0.00', '99.61 ± 0.02', '99.63 ± 0.03', ''),
  'VTAB, 19 tasks': ('77.63 ± 0.23', '76.28 ± 0.46', '72.72 ± 0.21', '76.29 ± 1.70', ''),
}
# Column -> row. B/16 i21k: the original project's own table of its released file; 5-shot: the paper's appendix D.4.
QUOTED: dict[str, dict[str, Quoted]] = {
  column: {row: Quoted.printed(cells[number]) for row, cells in _TABLE_2.items() if cells[number]}
  for number, column in enumerate(_COLUMNS)
} | {
  'B/16 i21k': {'imagenet2012': Quoted(84.53), 'cifar10': Quoted(99.02), 'cifar100': Quoted(92.06)},
  'B/16, 5-shot': {'imagenet2012 5-shot ridge': Quoted(64.2)},
}

# Column -> what its pre-training took, in thousands of TPUv3-core-days (table 2's last row).
THOUSAND_CORE_DAYS = dict(zip(_COLUMNS, (2.5, 0.68, 0.23, 9.9, 12.3), strict=True))

SOURCE = (
  'quoted, not measured here: arXiv 2010.11929, table 2 (mean ± deviation of three fine-tuning runs) and '
  "appendix D.4 (5-shot, learned 1-D positions); B/16 i21k: the original project's table of its released file"
)
