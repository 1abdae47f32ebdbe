"""Checkpoints, archives, tables and lists made to exhaust memory or time, to reach other files, or to be misread.

All are read in one process with little memory; each must end in one sentence after five seconds of computing at most.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import fuzz_targets
import hostile_files
import hostile_folders
import hostile_sources
import pytest
from limited import SECONDS

from vit_jax.config import EfficientNetConfig, ViTConfig

COMPUTING_SECONDS = 5  # of the process, not of the clock, which a busy machine stretches
CHECKPOINTS = hostile_folders.CASES | hostile_files.CASES
CASES = {name: ('checkpoint', *case) for name, case in CHECKPOINTS.items()} | hostile_sources.CASES


@pytest.fixture(scope='module')
def sound(tmp_path_factory) -> pathlib.Path:
  """A small model in every format."""
  folder = tmp_path_factory.mktemp('sound')
  sizes: dict[str, Any] = {'patch': 8, 'width': 32, 'mlp_dim': 64, 'depth': 2, 'heads': 4}
  vit = ViTConfig(variant='custom', **sizes)
  models = dict.fromkeys(('vit', 'timm', 'npz', 'run'), vit) | {
    'efficientnet': EfficientNetConfig('custom', width_multiplier=0.5, depth_multiplier=0.3),
    'timm_efficientnet': EfficientNetConfig('B0'),
  }
  for kind, model in models.items():
    fuzz_targets.write_checkpoint(folder / ('vit.npz' if kind == 'npz' else kind), kind, model)
  return folder


@pytest.fixture(scope='module')
def outcomes(sound, tmp_path_factory) -> dict[str, tuple[str, str, float]]:
  """Case -> (what came of reading it, the sentence, seconds), as far as the process came."""
  paths = {'sound': ('checkpoint', str(sound / 'vit'))}
  for name, (reader, make, _) in CASES.items():
    paths[name] = (reader, str(make(tmp_path_factory.mktemp('case'), sound)))
  file = tmp_path_factory.mktemp('cases') / 'cases.json'
  file.write_text(json.dumps(paths))
  script = pathlib.Path(__file__).with_name('read_hostile.py')
  process = subprocess.run(
    [sys.executable, str(script), str(file)],
    env=os.environ
    | {'PYTHONPATH': str(script.parents[2]), 'JAX_PLATFORMS': 'cpu', 'NPROC': '2', 'XLA_FLAGS': ''}
    | {'XDG_CACHE_HOME': str(tmp_path_factory.mktemp('cache'))},
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=30 * SECONDS,
  )
  found = {name: tuple(outcome) for name, *outcome in map(json.loads, process.stdout.splitlines())}
  assert found.get('sound', ('none',))[0] == 'read', process.stderr
  return found


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_hostile_file_is_one_sentence_in_bounded_time_and_memory(outcomes, name):
  assert name in outcomes, 'the process that read it died, there or before'
  kind, text, seconds = outcomes[name]
  assert kind == 'UserError', f'{kind}: {text}'
  assert re.search(CASES[name][2], text), text
  assert '\n' not in text and len(text) < 1000 and text.endswith('.')
  assert seconds < COMPUTING_SECONDS
