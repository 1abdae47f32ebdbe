"""The cache of compiled programs: where it lies, and that a second start finds what the first compiled."""

import json
import pathlib

import commands
import jax
import pytest
from jax._src import compilation_cache as jax_cache
from processes import run

from vit_jax.foundation import compilation_cache


@pytest.fixture
def home(tmp_path, monkeypatch) -> pathlib.Path:
  """A user's directory of caches, for processes that this test starts."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'home'))
  monkeypatch.setenv('JAX_ENABLE_COMPILATION_CACHE', 'true')
  return tmp_path / 'home'


@pytest.fixture
def settings():
  """JAX's own settings in this process as they are outside of tests; restored afterwards."""
  names = (
    'jax_enable_compilation_cache',
    'jax_compilation_cache_dir',
    'jax_compilation_cache_max_size',
    'jax_persistent_cache_enable_xla_caches',
    'jax_persistent_cache_min_compile_time_secs',
  )
  before = {name: getattr(jax.config, name) for name in names}
  jax.config.update('jax_enable_compilation_cache', True)
  jax_cache.reset_cache()
  yield
  for name, value in before.items():
    jax.config.update(name, value)
  jax_cache.reset_cache()


def _arrays(workdir: pathlib.Path) -> dict:
  """Name, shape and checksum of every array of the last checkpoint."""
  return json.loads((workdir / 'checkpoints' / '4' / 'meta' / 'metadata').read_text())['items']


@pytest.mark.nightly
def test_a_second_run_does_not_compile_the_step_and_ends_in_the_same_bits(tmp_path, home, monkeypatch):
  monkeypatch.setenv('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.3')  # the step is a small one
  monkeypatch.setenv('JAX_EXPLAIN_CACHE_MISSES', 'true')
  missed = "PERSISTENT COMPILATION CACHE MISS for 'jit_step'"
  first, second = (commands.run(tmp_path, workdir=name, fork=False) for name in ('first', 'second'))
  assert first.returncode == second.returncode == 0, first.stderr + second.stderr
  assert missed in first.stderr and missed not in second.stderr
  programs = home / 'vit_jax' / 'xla'
  assert list(programs.glob('jit_step-*-cache')) and not list(programs.glob('jit_fold_in-*'))
  assert programs.stat().st_mode & 0o777 == 0o700
  assert _arrays(tmp_path / 'first') == _arrays(tmp_path / 'second')


SHARED = """
  import jax
  import jax.numpy as jnp
  from vit_jax.foundation import compilation_cache
  from vit_jax import config
  from vit_jax.parallel import distributed
  from vit_jax.parallel.mesh import batch_sharding, make_mesh

  distributed.initialize()
  compilation_cache.enable()
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  events = []
  jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
  sharding = batch_sharding(make_mesh(config.MeshConfig()))
  total = jax.jit(lambda: jax.lax.with_sharding_constraint(jnp.arange(8), sharding).sum())()
  print('sum', int(total), 'found', sum(name.endswith('cache_hits') for name in events))
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_process_0_of_several_finds_what_it_compiled(home):
  """Process 0 writes. On CPUs, unlike GPUs and TPUs, JAX's key holds the process too: the others compile."""
  for found in (0, 1):
    outputs = run(SHARED, 2)
    assert f'sum 28 found {found}' in outputs[0] and 'sum 28 found 0' in outputs[1]


def test_a_half_written_program_is_dropped(tmp_path, settings, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  directory = tmp_path / 'vit_jax' / 'xla'
  directory.mkdir(parents=True)
  for name in ('whole-cache', 'whole-atime', 'half-cache'):
    (directory / name).write_text('')
  compilation_cache.enable()
  assert jax.config.jax_compilation_cache_dir == str(directory)
  assert jax.config.jax_compilation_cache_max_size > 0
  assert sorted(path.name for path in directory.iterdir()) == ['whole-atime', 'whole-cache']


def test_a_place_that_cannot_be_written_is_a_warning(tmp_path, settings, monkeypatch, caplog):
  (tmp_path / 'file').write_text('')
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
  compilation_cache.enable()
  assert jax.config.jax_compilation_cache_dir is None
  assert 'not kept' in caplog.text and str(tmp_path / 'file') in caplog.text


def test_the_settings_of_jax_win(tmp_path, settings, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'ours'))
  jax.config.update('jax_compilation_cache_dir', str(tmp_path / 'theirs'))
  compilation_cache.enable()
  assert jax.config.jax_compilation_cache_dir == str(tmp_path / 'theirs')
  jax.config.update('jax_compilation_cache_dir', None)
  jax.config.update('jax_enable_compilation_cache', False)
  compilation_cache.enable()
  assert jax.config.jax_compilation_cache_dir is None
  assert not (tmp_path / 'ours').exists()
