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

import golden as golden_files
import pytest

NIGHTLY = os.environ.get('VIT_JAX_NIGHTLY') == '1'


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  """Skips the tests marked `nightly` unless VIT_JAX_NIGHTLY=1."""
  if not NIGHTLY:
    for item in items:
      if item.get_closest_marker('nightly'):
        item.add_marker(pytest.mark.skip(reason='nightly: VIT_JAX_NIGHTLY=1'))


@pytest.fixture(scope='session')
def golden(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A folder with the golden fixtures: inputs, parameters and outputs of the original code."""
  folder = tmp_path_factory.mktemp('golden')
  golden_files.unpack(folder)
  return folder
