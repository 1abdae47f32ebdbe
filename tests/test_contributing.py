"""The recipes of CONTRIBUTING.md work as they are printed."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from processes import HUNG

ROOT = pathlib.Path(__file__).parents[1]
RECIPES = (
  'Add a model',
  'Add an objective',
  'Add a source',
  'Use another optimizer',
  'Add a checkpoint format',
  'Add an evaluator',
)


def python_blocks() -> dict[str, list[str]]:
  """Maps each '### ' section to its fenced Python blocks, in order."""
  blocks = {}
  for section in re.split(r'^### ', (ROOT / 'CONTRIBUTING.md').read_text(), flags=re.MULTILINE)[1:]:
    title, _, text = section.partition('\n')
    blocks[title.strip()] = re.findall(r'^```python\n(.*?)^```$', text, flags=re.MULTILINE | re.DOTALL)
  return blocks


BLOCKS = python_blocks()


def test_every_recipe_has_its_section():
  assert tuple(BLOCKS) == RECIPES


@pytest.mark.slow
@pytest.mark.parametrize('title', [title for title, blocks in BLOCKS.items() if blocks])
def test_recipe_runs_as_printed(title, tmp_path):
  script = tmp_path / 'recipe.py'
  script.write_text('\n'.join(BLOCKS[title]))
  result = subprocess.run(
    [sys.executable, str(script)],
    cwd=tmp_path,
    env=dict(os.environ, PYTHONPATH=str(ROOT), JAX_PLATFORMS='cpu'),
    capture_output=True,
    text=True,
    timeout=HUNG,
  )
  assert result.returncode == 0, result.stdout + result.stderr
