"""Every test runs on the CPU with eight fake devices; several-process tests start real processes."""

import os
import pathlib

from processes import xla_flags

os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['JAX_ENABLE_COMPILATION_CACHE'] = 'false'  # no test finds what another one, or a run, compiled
os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {xla_flags(devices=8)}'

# Eight devices wait for each other in threads of one pool, which has as many as the machine has cores.
os.environ.setdefault('NPROC', '64')

# TPU programs are compiled where no TPU is; several test processes do so at the same time.
os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')

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
