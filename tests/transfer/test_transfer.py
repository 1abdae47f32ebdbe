"""The whole button as a person presses it: killed, started again, to its table; and what it is made of."""

import csv
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from vit_jax import config as c
from vit_jax import models
from vit_jax.data.sources.vtab import TASKS
from vit_jax.errors import UserError
from vit_jax.pretrained import runs as run_checkpoints
from vit_jax.pretrained.base import Portable, Preprocess
from vit_jax.transfer import suites, table
from vit_jax.transfer.configs import Configs, Settings
from vit_jax.transfer.runner import Accuracies, Compute, Line

MODEL = c.ViTConfig(variant='custom', patch=4, width=16, mlp_dim=16, depth=1, heads=2)
ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def checkpoint(tmp_path) -> pathlib.Path:
  """A run of a small model of 8 pixels."""
  sizes = {'image_size': (8, 8), 'channels': 3, 'num_classes': 5}
  _, params = nnx.split(models.build(MODEL, **sizes, rngs=nnx.Rngs(0)))
  params = jax.tree.map(np.asarray, nnx.to_pure_dict(params))
  preprocess = Preprocess.from_range((8, 8), -1.0, 1.0)
  portable = Portable(MODEL, (8, 8), 3, 5, params, preprocess=preprocess)
  run_checkpoints.write(portable, tmp_path / 'pretrained')
  return tmp_path / 'pretrained'


def start(tmp_path: pathlib.Path, *flags: str) -> subprocess.Popen:
  environment = {
    **os.environ,
    **{'PYTHONPATH': str(ROOT), 'TFDS_DATA_DIR': str(tmp_path / 'tfds'), 'XLA_FLAGS': ''},
  }
  command = [sys.executable, '-m', 'vit_jax.transfer', '--checkpoint=./pretrained', '--workdir=out', *flags]
  return subprocess.Popen(
    command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  )


@pytest.mark.slow
def test_killed_half_way_it_goes_on_to_its_table(tmp_path, checkpoint):
  flags = ['--suite=digits,cifar100,fewshot:digits', '--seeds=2', '--rates=0.01,0.1', '--batch_size=16']
  flags += ['--image_size=8', '--steps=12', '--option=checkpoint.every=3 steps', '--option=data.threads=1']
  out = tmp_path / 'out'
  process = start(tmp_path, *flags)
  end = time.monotonic() + 240
  while not (out / 'digits/checkpoint/seed_0/checkpoints/3').exists():
    assert process.poll() is None and time.monotonic() < end, process.communicate()
    time.sleep(0.02)
  process.send_signal(signal.SIGKILL)
  process.communicate()
  assert not (out / 'digits/checkpoint/seed_0/result.json').exists() and not (out / 'table.md').exists()

  process = start(tmp_path, *flags)
  said, errors = process.communicate(timeout=300)
  assert process.returncode == 0, errors
  for text in ('rate_0.01: was done', 'rate_0.1: was done', 'seed_0: goes on', 'seed_1: begins'):
    assert f'digits/checkpoint/{text}' in said
  assert 'Resuming from step' in (out / 'digits/checkpoint/seed_0/log.txt').read_text()
  assert not (out / 'digits/checkpoint/rate_0.1/checkpoints').exists()  # only its score was wanted

  values = json.loads((out / 'table.json').read_text())
  digits, cifar100, ridge, *_ = values['lines']
  finals = [
    json.loads((out / f'digits/checkpoint/seed_{seed}/metrics.jsonl').read_text().splitlines()[-1])
    for seed in (0, 1)
  ]
  assert digits['ours']['each'] == [final['test/accuracy'] for final in finals]
  sweep = digits['sweep'][0]
  assert digits['rate'][0] == float(max(sweep, key=sweep.get)) and len(set(sweep.values())) == 2
  assert 'tfds build cifar100' in cifar100['missing'] and cifar100['quoted_percent']['H/14 JFT'] == [
    94.55,
    0.04,
  ]
  assert ridge['name'] == 'digits 5-shot ridge' and ridge['ours']['mean'] > 0.1
  assert values['compute']['runs'] == 5 and values['compute']['flops'] > 0
  text = (out / 'table.md').read_text()
  assert '94.55 ± 0.04' in text and 'quoted, not measured here' in text and '## Missing' in text
  with Image.open(out / 'table.png') as picture:
    assert picture.width > 1000

  # What is done is not done again, and other options on the same workdir are refused.
  process = start(tmp_path, *flags, '--option=model.dropout=0.1')
  _, errors = process.communicate(timeout=120)
  assert process.returncode == 2 and 'model.dropout (0.0 there, 0.1 here)' in errors


def test_the_runs_never_choose_by_what_they_are_tested_on(checkpoint):
  settings = Settings(
    str(checkpoint), image_size=8, options=(('data.mixup', '0.2'), ('model.remat', 'block'))
  )
  configs = Configs(settings)
  for name in ('digits', 'vtab:dmlab'):
    row = suites.row(name)
    choosing = configs.choosing(row, 0.01, scratch=False)
    final = configs.final(row, 0.01, seed=2, scratch=False)
    assert (choosing.data.split, choosing.evaluators['test'].split) == (row.choosing, row.held_out)
    assert row.test not in (row.choosing, row.held_out)
    assert (final.data.split, final.evaluators['test'].split, final.seed) == (row.train, row.test, 2)
    assert final.init.checkpoint and final.optimizer.name == 'sgd' and final.total == '2500 steps'
    assert final.data.mixup == 0.2 and final.model.remat == 'block'
    assert final.model.width == MODEL.width
  imagenet = suites.PAPER['imagenet2012']
  assert configs.final(imagenet, 0.01, 0, scratch=False).evaluators['test'].real_labels == 'download'
  assert configs.choosing(imagenet, 0.01, scratch=False).evaluators['test'].real_labels is None
  scratch = configs.final(suites.row('digits'), 0.001, 0, scratch=True)
  assert scratch.init.checkpoint is None and scratch.optimizer.name == 'adam'
  assert scratch.total == final.total and scratch.model == final.model
  with pytest.raises(UserError, match='there is no option data'):
    Configs(Settings(str(checkpoint), options=(('data.mixxup.x', '1'),))).final(row, 0.1, 0, False)


def test_suites():
  assert len(suites.names('paper')) == 5 + 19 + 1 and len(suites.names('vtab')) == 19
  assert suites.names('digits,fewshot') == ['digits', *(f'fewshot:{name}' for name in suites.PAPER)]
  for suite, said in (
    ('cifar11', 'did you mean cifar10'),
    ('digits,digits', 'twice'),
    ('digits:train', 'with a split'),
    ('vtab:clever_count', 'did you mean vtab:clevr_count'),
    ('fewshot:nothing', 'which is none of'),
  ):
    with pytest.raises(UserError, match=said):
      suites.names(suite)
  assert suites.prepare_command('vtab:dmlab').startswith('tfds build dmlab')
  folders = {suites.folder_name(name) for name in ('folder:/a/b', 'folder:/a_b', 'folder_a_b', 'cifar10')}
  assert len(folders) == 4 and 'cifar10' in folders and not any('/' in name for name in folders)


def test_a_folder_is_tested_on_what_it_has(tmp_path):
  for split, expected in (('', 'val'), ('val', 'val'), ('test', 'test')):
    for part in {'train', split} - {''} if split else {''}:
      (tmp_path / part / 'cat').mkdir(parents=True, exist_ok=True)
    assert suites.row(f'folder:{tmp_path}').test == expected


def test_the_table_has_vtabs_means_run_by_run(tmp_path):
  def accuracies(*each: float) -> Accuracies:
    return Accuracies(float(np.mean(each)), float(np.std(each, ddof=1)), list(each))

  lines = [
    Line(f'vtab:{name}', accuracies(0.01 * number, 0.01 * number + 0.1), rate=(0.01, None))
    for number, name in enumerate(TASKS)
  ]
  lines.append(Line('cifar10', accuracies(0.9, 0.92), accuracies(0.5, 0.6), rate=(0.003, 0.001)))
  compute = Compute(3, 2e18, 7200.0, 'TPU v3')
  table.write(lines, compute, {'checkpoint': 'x', 'seeds': 2}, tmp_path)
  with (tmp_path / 'table.csv').open() as file:
    rows = {row['data']: row for row in csv.DictReader(file)}
  assert float(rows['VTAB, 19 tasks']['mean']) == pytest.approx(0.14)  # (0 + … + 18) / 19, and half of 0.1
  assert float(rows['VTAB, 19 tasks']['deviation']) == pytest.approx(0.1 / 2**0.5)
  assert rows['VTAB, 19 tasks']['H/14 JFT (quoted, %)'] == '77.63 ± 0.23'
  assert rows['cifar10']['runs'] == '0.9 0.92' and float(rows['cifar10']['scratch_mean']) == 0.55
  text = (tmp_path / 'table.md').read_text()
  assert '91.00 ± 1.41' in text and '2 exaFLOPs' in text and '2 device-hours of TPU v3' in text
  table.write(lines[1:], compute, {'checkpoint': 'x', 'seeds': 2}, tmp_path)
  assert 'VTAB, 19 tasks' not in (tmp_path / 'table.md').read_text()  # a mean of 18 is no score
