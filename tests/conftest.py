"""Every test runs on the CPU with eight fake devices; several-process tests start real processes."""

import atexit
import os
import pathlib
import re
import shutil
import tempfile

from processes import read_xla_flags, xla_flags

os.environ['HF_HUB_OFFLINE'] = '1'  # but for tests that have a Hub of their own (hub_emulator.py)
os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['JAX_ENABLE_COMPILATION_CACHE'] = 'false'  # no test finds what another one, or a run, compiled
if 'PYTEST_XDIST_WORKER' not in os.environ:  # but for commands that are forked (fork_server.py)
  os.environ['TESTS_COMPILED'] = tempfile.mkdtemp(prefix='vit_jax_compiled_')
  atexit.register(shutil.rmtree, os.environ['TESTS_COMPILED'], ignore_errors=True)
os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {xla_flags(devices=8)}'

# Eight devices wait for each other in threads of one pool, which has as many as the machine has cores.
os.environ.setdefault('NPROC', '64')

# TPU programs are compiled where no TPU is; several test processes do so at the same time.
os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')

from collections.abc import Iterator

import golden as golden_files
import jax
import pytest
from jax._src import compilation_cache as jax_cache

read_xla_flags()
NIGHTLY = os.environ.get('VIT_JAX_NIGHTLY') == '1'


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
  """Skips the tests marked `nightly` unless VIT_JAX_NIGHTLY=1; not those whose parameters `but` (a pattern) finds.

  Raises UsageError for a pattern that finds none, where whole files are collected.
  """
  asked, kept = set[str](), set[str]()
  for item in items:
    mark = item.get_closest_marker('nightly')
    if mark is None:
      continue
    test, _, parameters = item.nodeid.partition('[')
    if often := mark.kwargs.get('but'):
      asked.add(test)
    if often and re.search(often, parameters.removesuffix(']')):
      kept.add(test)
    elif not NIGHTLY:
      item.add_marker(pytest.mark.skip(reason='nightly: VIT_JAX_NIGHTLY=1'))
  if (lost := asked - kept) and not any('::' in argument for argument in config.args):
    raise pytest.UsageError(f'nightly(but=…) finds no parameters of {min(lost)}; mend its pattern.')


@pytest.fixture(scope='module')
def kept_programs() -> Iterator[None]:
  """For modules that train the same config again and again: a program is compiled once, and kept on the disk."""
  changes = {
    'jax_enable_compilation_cache': True,
    'jax_compilation_cache_dir': os.environ['TESTS_COMPILED'],
    'jax_persistent_cache_min_compile_time_secs': 0.0,
    'jax_persistent_cache_min_entry_size_bytes': -1,
  }
  before = {name: getattr(jax.config, name) for name in changes}
  for values in (changes, before):
    for name, value in values.items():
      jax.config.update(name, value)
    jax_cache.reset_cache()
    if values is changes:
      yield


@pytest.fixture(scope='session')
def golden(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A folder with the golden fixtures: inputs, parameters and outputs of the original code."""
  folder = tmp_path_factory.mktemp('golden')
  golden_files.unpack(folder)
  return folder
