"""`python -m vit_jax.plan` in a process of its own, with the compiler for TPUs that are not here."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from processes import HUNG

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = """
from vit_jax.config import *

def get_config():
  return to_config_dict(Config(
    total='1000 steps',
    batch_size=64,
    model=ViTConfig(variant='custom', patch=4, width=256, mlp_dim=512, depth=2, heads=2, dtype='bfloat16'),
    data=DataConfig(source='digits', image_size=(8, 8)),
  ))
"""


def start(tmp_path: pathlib.Path, *flags: str) -> subprocess.Popen:
  (tmp_path / 'config.py').write_text(CONFIG)
  environment = {name: value for name, value in os.environ.items() if not name.startswith(('JAX_', 'XLA_'))}
  environment |= {'PYTHONPATH': str(ROOT), 'TFDS_DATA_DIR': str(tmp_path)}
  command = [sys.executable, '-m', 'vit_jax.plan', '--config=config.py', f'--json={tmp_path}/plan.json']
  pipe = subprocess.PIPE
  return subprocess.Popen(
    [*command, *flags], cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True
  )


def plan(tmp_path: pathlib.Path, *flags: str) -> subprocess.CompletedProcess:
  process = start(tmp_path, *flags)
  output = process.communicate(timeout=HUNG)
  return subprocess.CompletedProcess(process.args, process.returncode, *output)


def test_plan_for_a_tpu_has_its_memory_traffic_and_time(tmp_path):
  pytest.importorskip('libtpu')
  mesh = ('--config.mesh.data=2', '--config.mesh.fsdp=4')
  result = plan(tmp_path, '--topology=v3-8', *mesh, '--config.data.mixup=0.2')  # whose draws are loops too
  assert result.returncode == 0, result.stderr
  assert result.stderr == 'Compiling a step for v3-8 on this host; a large model takes minutes.\n'
  content = json.loads((tmp_path / 'plan.json').read_text())
  assert content['topology'] == {'name': 'v3-8', 'kind': 'TPU v3', 'devices': 8}
  assert content['mesh'] == {'replica': 1, 'data': 2, 'fsdp': 4, 'tensor': 1}
  assert content['fits'] and content['memory']['available'] == int(15.48 * 2**30)
  # Kernels of at least 2 ** 16 elements are split over four cores; each core has the others whole.
  split = 2 * (4 * 256 * 256 + 2 * 256 * 512)
  whole = content['parameters'] - split
  assert content['memory']['params'] == 4 * (split // 4 + whole)
  speed = content['speed']
  assert content['collectives']['all-gather']['count'] >= 2 * 2 * 6  # six kernels a block, forward and back
  assert 0 < speed['compute_seconds'] < speed['step_seconds'] and 0 < speed['utilisation'] < 1
  assert speed['hours'] == pytest.approx(1000 * speed['step_seconds'] / 3600)
  assert speed['device_days'] == pytest.approx(speed['hours'] * 8 / 24)
  assert 'data 2 × fsdp 4' in result.stdout and 'nothing was measured' in result.stdout


@pytest.mark.nightly
def test_plan_that_does_not_fit_names_what_would_make_it_fit(tmp_path):
  pytest.importorskip('libtpu')
  large = ('--config.data.image_size=(224,224)', '--config.batch_size=4096', '--config.model.patch=16')
  result = plan(
    tmp_path,
    '--topology=v5e:1x1',
    '--config.accumulation=1',
    '--config.model.remat=none',
    '--config.model.depth=4',
    '--config.model.mlp_dim=1024',
    *large,
  )
  assert result.returncode == 0, result.stderr
  content = json.loads((tmp_path / 'plan.json').read_text())
  assert not content['fits'] and content['speed'] is None and content['memory']['temporaries'] is None
  assert content['memory']['total'] > content['memory']['available'] == int(15.75 * 2**30)
  assert 'does not fit, by' in result.stdout
  assert 'It fits with --config.model.remat=block: fits' in result.stdout


def test_search_counts_its_plans_and_ranks_them(tmp_path):
  result = plan(tmp_path, '--topology=cpu:2', '--config.model.depth=1', '--config.batch_size=2', '--search')
  assert result.returncode == 0, result.stderr
  told = [re.match(r'plan (\d+) of (\d+): ', line) for line in result.stderr.splitlines()]
  numbers = [(int(match[1]), int(match[2])) for match in told if match]
  content = json.loads((tmp_path / 'plan.json').read_text())
  assert len(numbers) == len(told) == len(content)
  assert [number for number, _ in numbers] == list(range(1, len(content) + 1))
  assert all(number <= most for number, most in numbers)
  assert 'Options: ' in result.stdout


def test_search_that_is_killed_leaves_the_plans_that_it_has_made(tmp_path):
  process = start(tmp_path, '--topology=cpu:2', '--config.model.depth=1', '--config.batch_size=2', '--search')
  assert process.stderr is not None
  assert next(line for line in process.stderr if line.startswith('plan 2 of '))
  process.kill()
  process.communicate()
  content = json.loads((tmp_path / 'plan.json').read_text())
  assert content and all(plan['fits'] and plan['topology']['devices'] == 2 for plan in content)


def test_plan_for_cpu_devices_has_no_time(tmp_path):
  result = plan(tmp_path, '--topology=cpu:2', '--config.model.depth=1')
  assert result.returncode == 0, result.stderr
  content = json.loads((tmp_path / 'plan.json').read_text())
  assert content['topology']['devices'] == 2 and content['speed'] is None
  assert content['parameters'] > 0 and 'the memory of this device is not known' in result.stdout


@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    ([], '--topology is missing'),
    (['--topology=v3-9'], '--topology=v3-9: v3 comes in the sizes'),
    (['--topology=cpu:2', '--json=nowhere/plan.json'], 'there is no folder nowhere'),
    (['--topology=cpu:2', '--json=.'], '--json=. is a folder; name a file, such as plan.json'),
    (
      ['--topology=cpu:2', '--examples=inf'],
      '--examples=inf is no number of images; give one such as 1281167',
    ),
    (['--topology=cpu:2', '--examples=nan'], '--examples=nan is no number of images'),
    (['--topology=cpu:2', '--config.mesh.fsdp=3'], 'config.mesh'),
    (['--topology=cpu:2', '--config.data.source=tfds:nowhere'], 'to plan without the data, give --examples'),
  ],
)
def test_wrong_flag_is_one_sentence_and_exit_code_2(tmp_path, flags, said):
  result = plan(tmp_path, *flags)
  assert result.returncode == 2 and 'Traceback' not in result.stderr
  assert said in result.stderr.strip().splitlines()[-1]
