"""`vit_jax train` in a process of its own, on a small config, and what it must say."""

import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping

import fork_server
from processes import HUNG, xla_flags

ROOT = fork_server.ROOT
CONFIG = """
from vit_jax.config import *

def get_config():
  return to_config_dict(Config(
    total='4 steps',
    batch_size=16,
    model=ViTConfig(variant='custom', patch=4, width=16, mlp_dim=16, depth=1, heads=2),
    data=DataConfig(source='digits', image_size=(8, 8)),
    evaluators={'test': ClassificationEvaluatorConfig(split='test')},
    checkpoint=CheckpointConfig(every='2 steps'),
    tensorboard=TensorBoardConfig(pictures=False),
  ))
"""


def run(
  tmp_path: pathlib.Path,
  *flags: str,
  workdir: str | None = 'run',
  fork: bool = True,
  environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess:
  """`python -m vit_jax.main` on a small config, in a folder of its own.

  Args:
    tmp_path: the folder.
    flags: of the command.
    workdir: of the run.
    fork: runs it faster; not where variables matter that JAX reads when it is imported.
    environment: further variables.
  """
  (tmp_path / 'config.py').write_text(CONFIG)
  command = []
  if not any(flag.startswith('--config=') for flag in flags):
    command.append('--config=config.py')
  if workdir is not None:
    command.append(f'--workdir={workdir}')
  environment = {
    'TFDS_DATA_DIR': str(tmp_path / 'tfds'),
    'XLA_FLAGS': xla_flags(devices=8),
    **(environment or {}),
  }
  if fork:
    return fork_server.run('vit_jax.main', *command, *flags, cwd=tmp_path, environment=environment)
  return subprocess.run(
    [sys.executable, '-m', 'vit_jax.main', *command, *flags],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': str(ROOT), **environment},
    capture_output=True,
    text=True,
    timeout=HUNG,
  )


def assert_said(result: subprocess.CompletedProcess, *texts: str) -> None:
  """Exit code 2, no traceback, and a last line that says it all."""
  assert result.returncode == 2, result.stdout + result.stderr
  assert 'Traceback' not in result.stderr
  said = result.stderr.strip().splitlines()[-1]
  for text in texts:
    assert text in said, said


def assert_done(result: subprocess.CompletedProcess) -> None:
  assert result.returncode == 0, result.stdout + result.stderr
  assert 'Done after 4 steps' in result.stdout
