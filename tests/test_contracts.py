"""What is registered outside the package is as good as what is inside it: trained, planned and evaluated."""

import json
import pathlib

import fork_server
import pytest

ROOT = pathlib.Path(__file__).parents[1]
CONFIG = ROOT / 'tests' / 'swin_like.py'


def run(module, *flags, cwd):
  result = fork_server.run(f'vit_jax.{module}', f'--config={CONFIG}', *flags, cwd=cwd)
  assert result.returncode == 0, result.stdout + result.stderr
  return result.stdout


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('contracts') / 'run'
  said = run('main', f'--workdir={workdir}', cwd=workdir.parent)
  return workdir, said


def metrics(workdir):
  return json.loads((workdir / 'metrics.jsonl').read_text().splitlines()[-1])


@pytest.mark.slow
def test_a_model_and_an_objective_from_outside_train(trained):
  workdir, said = trained
  assert 'Swin Transformer, 4 blocks of width 16 to 32' in said
  assert 'Done after 3 steps' in said
  last = metrics(workdir)
  assert last['step'] == 3
  assert 0.5 < last['train/loss'] < 3
  assert 0 < last['train/accuracy'] < 1


@pytest.mark.slow
def test_they_are_evaluated_to_the_same_numbers(trained):
  workdir, _ = trained
  said = run('main', f'--workdir={workdir}', '--mode=eval', cwd=workdir.parent)
  accuracy = metrics(workdir)['probe_1shot/accuracy']
  assert f'probe_1shot/accuracy {accuracy:.2%}' in said


@pytest.mark.slow
def test_they_are_planned(tmp_path):
  said = run('plan', '--topology=cpu:1', cwd=tmp_path)
  assert said.startswith('custom on cpu:1')
