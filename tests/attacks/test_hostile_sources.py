"""Archives, tables, lists and folders made to exhaust memory or time: each one sentence.

All are read in one process with little memory.
"""

import pathlib

import limited
import pytest
from hostile_sources import CASES

READER = pathlib.Path(__file__).with_name('read_sources.py')


@pytest.fixture(scope='module')
def outcomes(tmp_path_factory) -> dict[str, tuple[str, str, float]]:
  """Case -> (what came of reading it, the sentence, seconds)."""
  paths = {
    name: (reader, str(make(tmp_path_factory.mktemp('case')))) for name, (reader, make, _) in CASES.items()
  }
  folder, cache = tmp_path_factory.mktemp('cases'), tmp_path_factory.mktemp('cache')
  found, errors = limited.outcomes_of(READER, paths, folder, XDG_CACHE_HOME=str(cache))
  assert found, errors
  return found


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_hostile_source_is_one_sentence_in_bounded_time_and_memory(outcomes, name):
  limited.assert_refused(outcomes, name, CASES[name][2])
