"""Compiled programs that are damaged: they are never run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compilation_cache as jax_cache

from vit_jax.foundation import compilation_cache


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
  harms = [flip(sound, place) for place in places] + [
    b'',
    sound[:-1],
    sound[:40],
    sound + b'\0',
    bytes(len(sound)),
  ]
  for content in harms:
    caplog.clear()
    path.write_bytes(content)
    assert 'cache_misses' in start()
    assert 'program jit_attacked in' in caplog.text and 'removed and is compiled again' in caplog.text
    caplog.clear()
    assert 'cache_hits' in start() and not caplog.text
