"""Archives, tables, lists and folders made to exhaust memory or time: each one sentence.

All are read in one process with little memory.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from hostile_sources import CASES

READER = pathlib.Path(__file__).with_name('read_sources.py')
SECONDS = 5  # of the process, not of the clock, which a busy machine stretches


@pytest.fixture(scope='module')
def outcomes(tmp_path_factory) -> dict[str, tuple[str, str, float]]:
  """Case -> (what came of reading it, the sentence, seconds)."""
  paths = {
    name: (reader, str(make(tmp_path_factory.mktemp('case')))) for name, (reader, make, _) in CASES.items()
  }
  cases = tmp_path_factory.mktemp('cases') / 'cases.json'
  cases.write_text(json.dumps(paths))
  environment = os.environ | {'PYTHONPATH': str(READER.parents[2]), 'JAX_PLATFORMS': 'cpu', 'NPROC': '2'}
  environment |= {'XDG_CACHE_HOME': str(tmp_path_factory.mktemp('cache'))}
  process = subprocess.run(
    [sys.executable, str(READER), str(cases)],
    env=environment,
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=1200,
  )
  lines = [json.loads(line) for line in process.stdout.splitlines()]
  assert lines, process.stderr
  return {name: (kind, text, seconds) for name, kind, text, seconds in lines}


@pytest.mark.parametrize('name', CASES)
def test_hostile_source_is_one_sentence_in_bounded_time_and_memory(outcomes, name):
  assert name in outcomes, 'the process that read it died, there or before'
  kind, text, seconds = outcomes[name]
  assert kind == 'UserError', f'{kind}: {text}'
  assert re.search(CASES[name][2], text), text
  assert '\n' not in text and len(text) < 1000 and text.endswith('.')
  assert seconds < SECONDS
