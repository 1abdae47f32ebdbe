"""The recipes of CONTRIBUTING.md work as they are printed, and what they register is as good as what is inside."""

import json
import pathlib
import re

import fork_server
import pytest

ROOT = fork_server.ROOT
RECIPES = (
  'Add a model',
  'Add an objective',
  'Add a source',
  'Use another optimizer',
  'Add a checkpoint format',
  'Add an evaluator',
  'Look on at every step',
)


def python_blocks() -> dict[str, list[str]]:
  """Maps each '### ' section to its fenced Python blocks, in order."""
  blocks = {}
  for section in re.split(r'^### ', (ROOT / 'CONTRIBUTING.md').read_text(), flags=re.MULTILINE)[1:]:
    title, _, text = section.partition('\n')
    blocks[title.strip()] = re.findall(r'^```python\n(.*?)^```$', text, flags=re.MULTILINE | re.DOTALL)
  return blocks


BLOCKS = python_blocks()
# A config file with the model and the objective of the recipes.
CONFIG = f"""{BLOCKS['Add a model'][0]}{BLOCKS['Add an objective'][0]}
from vit_jax.config import Config, DataConfig, FewShotEvaluatorConfig, to_config_dict


def get_config():
  return to_config_dict(Config(
    total='3 steps',
    batch_size=64,
    model=BagConfig(),
    objective=RotationObjective(),
    data=DataConfig(source='digits', image_size=(8, 8), channels=1),
    evaluators={{'probe': FewShotEvaluatorConfig(split='test', shots=(1,))}},
  ))
"""


def test_every_recipe_has_its_section():
  assert tuple(BLOCKS) == RECIPES


@pytest.mark.nightly(but='model')
@pytest.mark.slow
@pytest.mark.parametrize('title', [title for title, blocks in BLOCKS.items() if blocks])
def test_recipe_runs_as_printed(title, tmp_path):
  (tmp_path / 'recipe.py').write_text('\n'.join(BLOCKS[title]))
  result = fork_server.run('recipe', cwd=tmp_path)
  assert result.returncode == 0, result.stdout + result.stderr


def said(module: str, *flags: str, cwd: pathlib.Path) -> str:
  """What a command prints with that config."""
  result = fork_server.run(f'vit_jax.{module}', '--config=config.py', *flags, cwd=cwd)
  assert result.returncode == 0, result.stdout + result.stderr
  return result.stdout


@pytest.mark.slow
def test_model_and_objective_from_outside_are_trained_evaluated_and_planned(tmp_path):
  (tmp_path / 'config.py').write_text(CONFIG)
  trained = said('main', '--workdir=run', cwd=tmp_path)
  assert 'Bag of patches of width 32' in trained and 'Done after 3 steps' in trained
  last = json.loads((tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()[-1])
  assert last['step'] == 3 and 0.5 < last['train/loss'] < 3 and 0 < last['train/accuracy'] < 1
  evaluated = said('main', '--workdir=run', '--mode=eval', cwd=tmp_path)
  assert f'probe_1shot/accuracy {last["probe_1shot/accuracy"]:.2%}' in evaluated
  assert said('plan', '--topology=cpu:1', cwd=tmp_path).startswith('custom on cpu:1')
