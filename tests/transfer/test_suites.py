"""The rows of a suite."""

import pytest

from vit_jax.data.sources.base import SOURCES
from vit_jax.data.sources.digits import DigitsSource
from vit_jax.foundation.errors import UserError
from vit_jax.transfer import suites


def test_suites_have_the_papers_rows():
  assert len(suites.names('paper')) == 5 + 19 + 1 and len(suites.names('vtab')) == 19
  assert suites.names('digits,fewshot') == ['digits', *(f'fewshot:{name}' for name in suites.PAPER)]


@pytest.mark.parametrize(
  ('suite', 'said'),
  [
    ('cifar11', 'did you mean cifar10'),
    ('digits,digits', 'twice'),
    ('digits:train', 'with a split'),
    ('vtab:clever_count', 'did you mean vtab:clevr_count'),
    ('nothing:/path', 'is not a source'),
  ],
)
def test_wrong_name_is_an_error_with_the_remedy(suite, said):
  with pytest.raises(UserError, match=said):
    suites.names(suite)


def test_prepare_command_is_that_of_the_data_set():
  assert suites.prepare_command('vtab:dmlab').startswith('tfds build dmlab')
  assert suites.prepare_command('fewshot:cifar10').startswith('tfds build cifar10')
  assert 'by hand' in suites.prepare_command('vtab:resisc45')
  assert suites.prepare_command('digits') == ''


def test_folder_names_are_different_and_have_no_slash():
  folders = {suites.folder_name(name) for name in ('folder:/a/b', 'folder:/a_b', 'folder_a_b', 'cifar10')}
  assert len(folders) == 4 and 'cifar10' in folders and not any('/' in name for name in folders)


@pytest.mark.parametrize(
  ('folders', 'expected'),
  [
    (['cat'], 'val'),
    (['train/cat', 'validation/cat'], 'val'),
    (['train/cat', 'test/cat'], 'test'),
    (['train/cat', 'val/cat', 'test/cat'], 'test'),
  ],
)
def test_folder_is_tested_on_test_or_else_on_val(tmp_path, folders, expected):
  for folder in folders:
    (tmp_path / folder).mkdir(parents=True)
  assert suites.row(f'folder:{tmp_path}').test == expected


def test_source_from_outside_is_tested_on_the_first_split_that_it_has(monkeypatch):
  class MineSource(DigitsSource):
    """Digits with other names of splits."""

    has_place = True

    @classmethod
    def splits(cls, place):
      return tuple(place.split(','))

  monkeypatch.setattr(SOURCES, '_entries', dict(SOURCES._entries))
  SOURCES.register('mine', MineSource)
  assert suites.row('mine:train,validation').test == 'validation'
  assert suites.row('mine:train,val,test').test == 'test'
  with pytest.raises(UserError, match=r'mine:train has no split to test on .* but train'):
    suites.row('mine:train')
