"""The quoted figures are read and shown as the paper prints them."""

import pytest

from vit_jax.transfer import published, table


def test_every_cell_of_the_papers_main_table_is_shown_as_printed():
  for row, cells in published._TABLE_2.items():
    assert tuple(table.quoted_text(column, row) for column in published._COLUMNS) == cells, row


@pytest.mark.parametrize(
  ('column', 'row', 'figure'),
  [
    ('H/14 JFT', 'imagenet2012', (88.55, 0.04, None)),
    ('L/16 i21k', 'VTAB, 19 tasks', (72.72, 0.21, None)),
    ('BiT-L R152x4', 'imagenet2012 (ReaL)', (90.54, None, None)),
    ('Noisy Student', 'imagenet2012', (88.4, None, 88.5)),
    ('B/16 i21k', 'cifar10', (99.02, None, None)),  # of the original project's table
    ('B/16, 5-shot', 'imagenet2012 5-shot ridge', (64.2, None, None)),  # of appendix D.4: 0.642
  ],
)
def test_figure_is_that_of_its_source(column, row, figure):
  assert published.QUOTED[column][row] == figure
  assert 'cifar10' not in published.QUOTED['Noisy Student']
