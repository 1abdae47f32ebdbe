"""Compiled programs that are damaged or crash: they never run a second time."""

import os
import pathlib
import signal
import subprocess
import sys
from concurrent import futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compilation_cache as jax_cache

from vit_jax.foundation import compilation_cache

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def directory(tmp_path, monkeypatch):
  """Where programs are kept, with JAX's settings as they are outside of tests."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  values = {
    'jax_enable_compilation_cache': True,
    'jax_persistent_cache_min_compile_time_secs': 0,
    'jax_compilation_cache_dir': None,
    'jax_compilation_cache_max_size': -1,
    'jax_persistent_cache_enable_xla_caches': jax.config.jax_persistent_cache_enable_xla_caches,
  }
  before = {name: getattr(jax.config, name) for name in values}
  for name, value in values.items():
    jax.config.update(name, value)
  jax_cache.reset_cache()
  yield tmp_path / 'vit_jax' / 'xla'
  for name, value in before.items():
    jax.config.update(name, value)
  jax_cache.reset_cache()
  jax.clear_caches()


def start() -> list[str]:
  """What a new process does: finds or compiles a program, and runs it; the names of JAX's events."""
  jax.clear_caches()
  jax_cache.reset_cache()
  jax.config.update('jax_compilation_cache_dir', None)
  compilation_cache.enable()
  events: list[str] = []

  def listen(name: str, **_: object) -> None:
    events.append(name.rpartition('/')[2])

  jax.monitoring.register_event_listener(listen)
  try:
    x = np.arange(9.0, dtype=np.float32).reshape(3, 3)
    result = jax.jit(attacked)(x)
  finally:
    jax.monitoring.unregister_event_listener(listen)
  np.testing.assert_array_equal(result, np.tril(x) * 3)
  return events


def attacked(x: jax.Array) -> jax.Array:
  return jnp.tril(x) * 3


def flip(content: bytes, place: int) -> bytes:
  return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.slow
def test_damaged_program_is_removed_and_compiled_again(directory, caplog):
  assert 'cache_misses' in start() and 'cache_hits' in start() and not caplog.text
  (path,) = directory.glob('jit_attacked-*-cache')
  sound = path.read_bytes()
  places = range(0, len(sound), len(sound) // 8)
  harms = [flip(sound, place) for place in places]
  harms += [b'', sound[:-1], sound[:40], sound + b'\0', bytes(len(sound))]
  for content in harms:
    caplog.clear()
    path.write_bytes(content)
    assert 'cache_misses' in start()
    assert 'program jit_attacked in' in caplog.text and 'removed and is compiled again' in caplog.text
    caplog.clear()
    assert 'cache_hits' in start() and not caplog.text


CRASHING = """
import os, pathlib, sys
from vit_jax.foundation import compilation_cache
record = compilation_cache.CrashRecord(pathlib.Path(sys.argv[1]))
record.taken(sys.argv[2])
if sys.argv[3] != '0':
  os.kill(os.getpid(), int(sys.argv[3]))
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_programs_of_a_process_that_crashed_are_removed_and_no_others(directory, monkeypatch, caplog):
  monkeypatch.delenv('PYTHONFAULTHANDLER', raising=False)
  start()
  (crashed,) = directory.glob('jit_attacked-*-cache')
  (directory / 'other-cache').write_bytes(b'')
  (directory / 'other-atime').write_bytes(b'')
  for number in (0, signal.SIGKILL, signal.SIGILL):
    assert crashed.exists() and not caplog.text
    key = crashed.name.removesuffix('-cache')
    process = subprocess.run(
      [sys.executable, '-c', CRASHING, str(directory), key, str(int(number))],
      env=dict(os.environ, PYTHONPATH=str(ROOT)),
    )
    assert process.returncode == -number
    assert len(list(directory.glob('running-*'))) == (number != 0)
    compilation = start()
  assert 'cache_misses' in compilation and crashed.exists() and (directory / 'other-cache').exists()
  assert 'crashed (Illegal instruction) after it had taken 1 compiled programs' in caplog.text
  assert 'most recent call first' in (directory / 'last_crash.txt').read_text()
  assert not list(directory.glob('running-*'))


def test_processes_that_start_together_see_to_each_record_once(directory, caplog):
  start()
  crashed = 'key\nFatal Python error: Segmentation fault\n'
  for round_number in range(8):
    for number in range(4):
      (directory / f'running-{number}.txt').write_text(crashed if number % 2 else 'key\n')
    with futures.ThreadPoolExecutor(8) as processes:  # each opens the files, and so has locks of its own
      list(processes.map(compilation_cache._drop_after_crashes, [directory] * 8))
    assert not list(directory.glob('running-*')), round_number


def test_record_of_a_process_that_is_still_running_stays(directory):
  start()
  with (directory / 'running-1.txt').open('w') as file:
    file.write('key\nFatal Python error: Segmentation fault\n')
    file.flush()
    assert compilation_cache._is_locked_by_us(file.fileno())
    start()
    assert (directory / 'running-1.txt').exists()
  start()
  assert not (directory / 'running-1.txt').exists()
