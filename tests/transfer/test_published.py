"""The quoted figures are the paper's, cell by cell."""

from vit_jax.transfer import published, table

# arXiv 2010.11929, table 2, as it is printed.
COLUMNS = ('H/14 JFT', 'L/16 JFT', 'L/16 i21k', 'BiT-L R152x4', 'Noisy Student')
MAIN_TABLE = {
  'imagenet2012': ('88.55 ± 0.04', '87.76 ± 0.03', '85.30 ± 0.02', '87.54 ± 0.02', '88.4/88.5'),
  'imagenet2012 (ReaL)': ('90.72 ± 0.05', '90.54 ± 0.03', '88.62 ± 0.05', '90.54', '90.55'),
  'cifar10': ('99.50 ± 0.06', '99.42 ± 0.03', '99.15 ± 0.03', '99.37 ± 0.06', ''),
  'cifar100': ('94.55 ± 0.04', '93.90 ± 0.05', '93.25 ± 0.05', '93.51 ± 0.08', ''),
  'oxford_iiit_pet': ('97.56 ± 0.03', '97.32 ± 0.11', '94.67 ± 0.15', '96.62 ± 0.23', ''),
  'oxford_flowers102': ('99.68 ± 0.02', '99.74 ± 0.00', '99.61 ± 0.02', '99.63 ± 0.03', ''),
  'VTAB, 19 tasks': ('77.63 ± 0.23', '76.28 ± 0.46', '72.72 ± 0.21', '76.29 ± 1.70', ''),
}
CORE_DAYS = ('2.5k', '0.68k', '0.23k', '9.9k', '12.3k')


def test_every_cell_of_the_papers_main_table_is_quoted_as_printed():
  for row, cells in MAIN_TABLE.items():
    assert tuple(table.quoted_text(column, row) for column in COLUMNS) == cells, row
  assert all(set(published.QUOTED[column]) <= set(MAIN_TABLE) for column in COLUMNS)


def test_core_days_of_every_column_are_quoted():
  pairs = zip(COLUMNS, CORE_DAYS, strict=True)
  assert table.core_days_text() == ', '.join(f'{column} {days}' for column, days in pairs)


def test_figures_beside_the_main_table_are_those_of_their_sources():
  """Of the original project's table of its released B/16, and of the paper's appendix D.4 (0.642)."""
  others = {name: rows for name, rows in published.QUOTED.items() if name not in COLUMNS}
  assert {name: {row: figure.mean for row, figure in rows.items()} for name, rows in others.items()} == {
    'B/16 i21k': {'imagenet2012': 84.53, 'cifar10': 99.02, 'cifar100': 92.06},
    'B/16, 5-shot': {'imagenet2012 5-shot ridge': 64.2},
  }
