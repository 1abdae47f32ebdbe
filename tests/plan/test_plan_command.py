"""`python -m vit_jax.plan` in a process of its own, with the compiler for TPUs that are not here."""

import json
import os
import pathlib
import subprocess
import sys

import fork_server
import pytest
from processes import HUNG

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


@pytest.mark.nightly
@pytest.mark.slow
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


def plan(tmp_path: pathlib.Path, *flags: str) -> subprocess.CompletedProcess:
  (tmp_path / 'config.py').write_text(CONFIG)
  environment = {name: value for name, value in os.environ.items() if not name.startswith(('JAX_', 'XLA_'))}
  environment |= {'PYTHONPATH': str(fork_server.ROOT), 'TFDS_DATA_DIR': str(tmp_path)}
  command = [sys.executable, '-m', 'vit_jax.plan', '--config=config.py', '--json=plan.json', *flags]
  return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HUNG)


@pytest.mark.nightly
def test_plan_that_does_not_fit_names_what_would_make_it_fit(tmp_path):
  pytest.importorskip('libtpu')
  model = {'remat': 'none', 'depth': 4, 'mlp_dim': 1024, 'patch': 16}
  large = ('--config.data.image_size=(224,224)', '--config.batch_size=4096', '--config.accumulation=1')
  flags = [f'--config.model.{name}={value}' for name, value in model.items()]
  result = plan(tmp_path, '--topology=v5e:1x1', *large, *flags)
  assert result.returncode == 0, result.stderr
  content = json.loads((tmp_path / 'plan.json').read_text())
  assert not content['fits'] and content['speed'] is None and content['memory']['temporaries'] is None
  assert content['memory']['total'] > content['memory']['available'] == int(15.75 * 2**30)
  assert 'does not fit, by' in result.stdout
  assert 'It fits with --config.model.remat=block: fits' in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
  ('flag', 'said'),
  [
    ('--json=.', '--json=. is a folder; name a file, such as plan.json'),
    ('--examples=inf', '--examples=inf is no number of images; give one such as 1281167'),
    ('--config.data.source=tfds:nowhere', 'to plan without the data, give --examples'),
  ],
)
def test_wrong_flag_is_one_sentence_and_exit_code_2(tmp_path, flag, said):
  (tmp_path / 'config.py').write_text(CONFIG)
  flags, environment = (
    ['--config=config.py', '--topology=cpu:2', flag],
    {'XLA_FLAGS': '', 'TFDS_DATA_DIR': '.'},
  )
  result = fork_server.run('vit_jax.plan', *flags, cwd=tmp_path, environment=environment)
  assert result.returncode == 2 and 'Traceback' not in result.stderr
  assert said in result.stderr.strip().splitlines()[-1]
