"""Every test runs on the CPU with eight fake devices; several-process tests start real processes."""

import os
import pathlib

os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['XLA_FLAGS'] = os.environ.get('XLA_FLAGS', '') + ' --xla_force_host_platform_device_count=8'

import pytest

GOLDEN = pathlib.Path(
  os.environ.get('VIT_JAX_GOLDEN', pathlib.Path(__file__).parents[1] / '../shared/golden')
)


@pytest.fixture
def golden() -> pathlib.Path:
  """The folder of fixtures made with the original code."""
  if not GOLDEN.is_dir():
    pytest.skip(f'no golden fixtures at {GOLDEN}: set VIT_JAX_GOLDEN')
  return GOLDEN
