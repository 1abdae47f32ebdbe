import logging
import math
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from trees import abstract, assert_same

from vit_jax.checkpoint import checksums
from vit_jax.checkpoint.config import CheckpointConfig
from vit_jax.checkpoint.manager import Manager
from vit_jax.checkpoint.retention import Retention
from vit_jax.foundation.errors import UserError
from vit_jax.parallel.mesh import MeshConfig, make_mesh


def _tree(seed: int = 0) -> dict:
  bits = np.random.default_rng(seed)
  return {
    'kernel': jnp.asarray(bits.standard_normal((16, 8), dtype=np.float32)),
    'nested': {
      'half': jnp.asarray(bits.standard_normal((8, 2)), jnp.bfloat16),
      'integers': jnp.asarray(bits.integers(-9, 9, 8), jnp.int32),
      'unsigned': jnp.asarray(bits.integers(0, 2**32, 8, dtype=np.uint32)),
      'flags': jnp.asarray(bits.integers(0, 2, 8) > 0),
    },
    'scalar': jnp.float32(bits.standard_normal()),
    'odd': jnp.asarray([np.nan, -0.0, np.inf, 1e-42], jnp.float32),
  }


def _save(directory, steps, **options):
  with Manager(directory, CheckpointConfig(keep=100), **options) as manager:
    for step in steps:
      assert manager.save(step, {'params': _tree(step)}, {'seen': step})


def test_saved_bits_come_back(tmp_path):
  with Manager(tmp_path, CheckpointConfig()) as manager:
    assert manager.restore_newest({'params': abstract(_tree())}) is None
    assert manager.latest_step() is None and manager.all_steps() == []
    items = {'params': _tree(1), 'average': _tree(2), 'counters': {'step': 7, 'skipped': np.int64(2)}}
    meta = {'classes': ['a', 'ä'], 'numbers': {'x': 0.1, 'y': None}}
    assert manager.save(7, items, meta, {'val/loss': 0.5})
    assert not manager.save(7, items, meta)  # also while the first is still being written
    manager.wait()
    assert manager.latest_step() == 7
    assert not manager.save(7, items, meta)
  with Manager(tmp_path, CheckpointConfig()) as manager:
    assert not manager.save(7, items, meta)
    items['counters'] = {'step': jnp.int32(7), 'skipped': jnp.int32(2)}
    step, restored, seen = manager.restore_newest(abstract(items))
  assert (step, seen) == (7, meta)
  assert_same(restored, items)


def test_any_subset_of_items_can_be_restored(tmp_path):
  items = {'params': _tree(1), 'opt_state': _tree(2), 'empty': {}}
  with Manager(tmp_path, CheckpointConfig()) as manager:
    manager.save(1, items, {'a': 1})
  with Manager(tmp_path, CheckpointConfig(), read_only=True) as manager:
    for names in ([], ['params'], ['opt_state', 'empty']):
      step, restored, meta = manager.restore_newest({name: abstract(items[name]) for name in names})
      assert (step, meta) == (1, {'a': 1})
      assert_same(restored, {name: items[name] for name in names})
    with pytest.raises(UserError, match=r"has no 'average'; it has empty, opt_state, params; use the config"):
      manager.restore_newest({'average': abstract(_tree())})


MESHES = {
  'one': (MeshConfig(), 1),
  'data': (MeshConfig(), 8),
  'fsdp': (MeshConfig(data=1, fsdp=8), 8),
  'mixed': (MeshConfig(data=1, fsdp=2, tensor=4), 8),
  'half': (MeshConfig(data=1, fsdp=2, tensor=2), 4),
}


def _shardings(name):
  axes, devices = MESHES[name]
  mesh = make_mesh(axes, jax.devices()[-devices:])
  return {'kernel': NamedSharding(mesh, P('fsdp', 'tensor')), 'step': NamedSharding(mesh, P())}


@pytest.mark.slow
@pytest.mark.parametrize('before', ['one', 'mixed', 'half'])
def test_arrays_can_be_restored_on_another_mesh(tmp_path, before):
  values = {'kernel': np.random.default_rng(0).standard_normal((16, 8), np.float32), 'step': np.int32(3)}
  saved = jax.device_put(values, _shardings(before))
  with Manager(tmp_path, CheckpointConfig()) as manager:
    manager.save(1, {'params': saved}, {})
    for after in MESHES:
      shardings = _shardings(after)
      asked = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        saved,
        shardings,
      )
      _, items, _ = manager.restore_newest({'params': asked})
      assert jax.tree.map(lambda leaf: leaf.sharding, items['params']) == shardings
      assert_same(items['params'], values)
      assert checksums.of_arrays(items['params']) == checksums.of_arrays(saved)


def test_arrays_may_be_donated_as_soon_as_save_returns(tmp_path):
  mesh = make_mesh(MeshConfig(data=1, fsdp=8))
  overwrite = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
  expected = np.random.default_rng(0).standard_normal((512, 512), np.float32)
  x = jax.device_put(expected, NamedSharding(mesh, P('fsdp')))
  with Manager(tmp_path, CheckpointConfig()) as manager:
    manager.save(1, {'params': {'x': x}}, {})
    for _ in range(5):
      x = overwrite(x)
    jax.block_until_ready(x)
    _, items, _ = manager.restore_newest({'params': {'x': x}})
  np.testing.assert_array_equal(items['params']['x'], expected)


def test_relative_directory_is_made_absolute(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with Manager(os.path.join('runs', 'x'), CheckpointConfig()) as manager:
    manager.save(1, {'params': _tree()}, {})
    monkeypatch.chdir('/')
    manager.wait()
    assert manager.path(1) == str(tmp_path / 'runs' / 'x' / '1')
    assert manager.restore_newest({'params': abstract(_tree())})[0] == 1


def test_read_only_manager_changes_nothing(tmp_path):
  _save(tmp_path / 'run', [1, 2])
  (tmp_path / 'run' / '2' / 'meta' / 'metadata').unlink()
  partial = tmp_path / 'run' / '3.orbax-checkpoint-tmp'  # of a run that was killed
  (partial / 'params').mkdir(parents=True)
  before = sorted(tmp_path.rglob('*'))
  with Manager(tmp_path / 'run', CheckpointConfig(), read_only=True) as manager:
    assert manager.all_steps() == [1, 2]
    assert manager.restore_newest({'params': abstract(_tree())})[0] == 1
    with pytest.raises(ValueError, match='read only'):
      manager.save(3, {'params': _tree()}, {})
  with Manager(tmp_path / 'missing', CheckpointConfig(), read_only=True) as manager:
    assert manager.restore_newest({}) is None
  assert sorted(tmp_path.rglob('*')) == before
  with Manager(tmp_path / 'run', CheckpointConfig()):
    assert not partial.exists()


def test_sound_checkpoint_of_another_shape_is_not_damage(tmp_path, caplog):
  _save(tmp_path / 'run', [1])
  wide, other, extra = (abstract(_tree()) for _ in range(3))
  wide['kernel'] = jax.ShapeDtypeStruct((16, 9), jnp.float32)
  other['kernel'] = jax.ShapeDtypeStruct((16, 8), jnp.bfloat16)  # Orbax would cast it without a word
  extra['head'] = jax.ShapeDtypeStruct((3,), jnp.float32)
  with Manager(tmp_path / 'run', CheckpointConfig()) as manager:
    for asked, words in [
      (wide, r'params kernel is float32 \(16, 8\) there and float32 \(16, 9\) in this config'),
      (other, r'params kernel is float32 \(16, 8\) there and bfloat16 \(16, 8\)'),
      (extra, r'params head is missing there and float32 \(3,\)'),
      ({'kernel': wide['kernel']}, r'in this config'),
    ]:
      with pytest.raises(UserError, match=words):
        manager.restore_newest({'params': asked})
    assert manager.all_steps() == [1]
  assert not (tmp_path / 'damaged').exists()
  assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_one_step_can_be_restored(tmp_path):
  _save(tmp_path, [1, 2, 3])
  with Manager(tmp_path, CheckpointConfig(), read_only=True) as manager:
    items, meta = manager.restore(2, {'params': abstract(_tree())})
    assert meta == {'seen': 2}
    assert_same(items['params'], _tree(2))
    with pytest.raises(UserError, match=r'no checkpoint of step 5 in .*steps 1, 2, 3'):
      manager.restore(5, {})
    pathlib.Path(manager.path(2), 'meta', 'metadata').write_text('{}')
    with pytest.raises(UserError, match=r'2 is damaged \(.*\); choose another step'):
      manager.restore(2, {})


def test_random_keys_and_numbers_that_do_not_fit_are_refused(tmp_path):
  with Manager(tmp_path, CheckpointConfig()) as manager:
    with pytest.raises(ValueError, match='rng/dropout is a random key'):
      manager.save(1, {'state': {'rng': {'dropout': jax.random.key(0)}}}, {})
    with pytest.raises(ValueError, match='examples does not fit into int32'):
      manager.save(1, {'state': {'examples': 2**40}}, {})


@pytest.mark.slow
def test_newest_best_and_periodic_steps_are_kept(tmp_path):
  small = {'params': {'x': jnp.ones(2)}}
  losses = {1: 0.5, 2: 0.1, 3: 0.3, 4: float('nan'), 5: 0.2, 6: None, 7: 0.4}

  def train(best, directory):
    # Every second step with a new Manager, as after a restart.
    for step in losses:
      if step % 2:
        manager = Manager(
          directory,
          CheckpointConfig(keep=2, best=best),
          keep_every_steps=3,
          lower_is_better=best == 'val/loss',
        )
      value = losses[step]
      metrics = None if value is None else {'val/loss': value, 'val/accuracy': value}
      manager.save(step, small, {}, metrics)
      if step % 2 == 0:
        manager.close()
    manager.close()
    return manager.all_steps()

  assert train(None, tmp_path / 'none') == [3, 6, 7]
  assert train('val/loss', tmp_path / 'loss') == [2, 3, 6, 7]
  assert train('val/accuracy', tmp_path / 'accuracy') == [1, 3, 6, 7]


def test_first_save_of_each_interval_is_kept_where_saves_do_not_meet_its_multiples(tmp_path):
  for _ in range(2):  # the second one as after a restart
    with Manager(tmp_path, CheckpointConfig(keep=1), keep_every_steps=6) as manager:
      for step in range((manager.latest_step() or 0) + 4, 29, 4):
        manager.save(step, {'params': {'x': jnp.ones(2)}}, {})
        if step == 16:
          break
  assert Manager(tmp_path, CheckpointConfig(keep=1)).all_steps() == [8, 12, 20, 24, 28]


def test_saves_of_every_tenth_epoch_are_kept_where_an_epoch_is_no_whole_steps():
  """CIFAR-10 in batches of 64: 781.25 steps an epoch, saved at the nearest step."""
  saves = [math.floor(781.25 * epoch + 0.5) for epoch in range(1, 42)]
  left_out = Retention(CheckpointConfig(keep=1), keep_every_steps=7812.5).superfluous(saves)
  assert [epoch for epoch, step in enumerate(saves, 1) if step not in left_out] == [10, 20, 30, 40, 41]


def test_no_program_is_compiled_to_save_small_arrays_that_all_devices_hold(tmp_path, caplog):
  """But the checksums'."""
  replicated = NamedSharding(make_mesh(MeshConfig()), P())
  tree = {f'{size}': jax.device_put(np.ones((size, 8), np.float32), replicated) for size in (16, 24, 32)}
  with jax.log_compiles(), Manager(tmp_path, CheckpointConfig()) as manager:
    manager.save(1, {'params': tree}, {})
  compiled = {record.args[0] for record in caplog.records if record.msg.startswith('Compiling')}
  assert compiled == {'jit(_sums)'}
  with Manager(tmp_path, CheckpointConfig()) as manager:
    assert_same(manager.restore(1, abstract({'params': tree}))[0]['params'], tree)


def test_best_step_is_found_beside_a_damaged_one(tmp_path):
  """Orbax's own policy reads each step's metrics at the start, and ends the program at a damaged file."""
  checkpoint = CheckpointConfig(keep=2, best='val/accuracy')
  small = {'params': {'x': jnp.ones(2)}}
  with Manager(tmp_path / 'run', checkpoint) as manager:
    for step, accuracy in [(1, 0.9), (2, 0.1), (3, 0.2)]:
      manager.save(step, small, {}, {'val/accuracy': accuracy})
  for file in (tmp_path / 'run' / '3').rglob('*'):
    if file.is_file():
      file.write_bytes(b'{')
  with Manager(tmp_path / 'run', checkpoint) as manager:
    assert manager.restore_newest(abstract(small))[0] == 2
    manager.save(3, small, {}, {'val/accuracy': 0.3})
    manager.save(4, small, {}, {'val/accuracy': 0.4})
  assert manager.all_steps() == [1, 3, 4]
  assert (tmp_path / 'damaged' / '3-0').is_dir()


def test_steps_from_before_a_best_metric_was_asked_for_count(tmp_path):
  with Manager(tmp_path, CheckpointConfig(keep=2)) as manager:
    for step, accuracy in ((1, 0.9), (2, 0.5)):
      manager.save(step, {'params': _tree()}, {}, {'val/accuracy': accuracy})
  with Manager(tmp_path, CheckpointConfig(keep=2, best='val/accuracy')) as manager:
    manager.save(3, {'params': _tree()}, {}, {'val/loss': 1.0})  # of another evaluator alone
    manager.save(4, {'params': _tree()}, {}, {'val/accuracy': 0.7})
  with Manager(tmp_path, CheckpointConfig(), read_only=True) as manager:
    assert sorted(manager.all_steps()) == [1, 3, 4]
