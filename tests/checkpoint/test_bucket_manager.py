"""Checkpoints in emulated buckets: nothing partial counts, nothing unverified leaves, older steps go last."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from bucket_emulators import Place, places

from vit_jax.checkpoint import bucket_writer
from vit_jax.checkpoint.config import CheckpointConfig
from vit_jax.checkpoint.manager import Manager
from vit_jax.foundation.buckets import Patience
from vit_jax.foundation.errors import OutOfReach, UserError
from vit_jax.pretrained import bucket_files


@pytest.fixture(scope='module')
def place():
  with places('gs') as found:
    yield found


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))


def items(step: int) -> dict:
  return {
    'params': {'kernel': jnp.arange(12.0).reshape(3, 4) + step, 'bias': jnp.full(5, step)},
    'count': step,
  }


def wanted() -> dict:
  return {
    'params': jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), items(0)['params'])
  }


def manager(place: Place, name: str, keep: int = 2, **options) -> Manager:
  config = CheckpointConfig(keep=keep, best=options.pop('best', None))
  return Manager(f'{place.scheme}://bucket/{name}/checkpoints', config, **options)


def assert_restores(found: Manager, step: int) -> None:
  newest = found.restore_newest(wanted())
  assert newest is not None
  assert newest[0] == step and newest[2] == {'of': step}
  for name, leaf in items(step)['params'].items():
    np.testing.assert_array_equal(newest[1]['params'][name], leaf)


def save(found: Manager, *steps: int, score=None) -> None:
  for step in steps:
    found.save(step, items(step), {'of': step}, None if score is None else {'score': score[step]})
  found.wait()


def test_newest_step_is_restored_and_older_ones_are_removed(place: Place):
  with manager(place, 'newest') as found:
    save(found, 1, 2, 3)
    assert found.all_steps() == [2, 3]
    assert found.path(3) == f'{place.scheme}://bucket/newest/checkpoints/3'
    assert not found.save(3, items(3), {})
  assert not any('/1/' in name for name in place.names('newest'))
  assert_restores(manager(place, 'newest', read_only=True), 3)


def test_best_step_of_an_earlier_start_is_kept(place: Place):
  score = {1: 0.2, 2: 0.9, 3: 0.5, 4: 0.1}
  with manager(place, 'best', keep=1, best='score') as found:
    save(found, 1, 2, 3, score=score)
    assert found.all_steps() == [2, 3]
  with manager(place, 'best', keep=1, best='score') as found:
    save(found, 4, score=score)
    assert found.all_steps() == [2, 4]


def test_step_without_its_commit_object_does_not_count_and_is_removed_at_the_next_start(place: Place):
  with manager(place, 'partial') as found:
    save(found, 1, 2)
  place.remove('partial/checkpoints/2/commit_success.txt')
  assert_restores(manager(place, 'partial', read_only=True), 1)
  assert any('/2/' in name for name in place.names('partial'))
  manager(place, 'partial').close()
  assert not any('/2/' in name for name in place.names('partial'))


def test_damaged_step_is_set_aside_and_the_one_before_it_is_restored(place: Place):
  with manager(place, 'damaged') as found:
    save(found, 1, 2)
  name = next(
    name for name in place.names('damaged/checkpoints/2') if 'params' in name and name.endswith('0.0')
  )
  content = bytearray(place.get(name))
  content[len(content) // 2] ^= 1
  place.put(name, bytes(content))
  with manager(place, 'damaged') as found:
    assert_restores(found, 1)
    assert found.all_steps() == [1]
  assert any(name.startswith('damaged/damaged/2-0/params/') for name in place.names('damaged'))


def test_errors_name_the_address_and_not_the_copy(place: Place):
  with manager(place, 'named') as found:
    save(found, 1)
    with pytest.raises(
      UserError, match=f"Checkpoint {place.scheme}://bucket/named/checkpoints/1 has no 'ema'"
    ):
      found.restore_newest({'ema': {}})


def test_saves_and_restores_survive_a_server_that_is_busy(place: Place):
  with manager(place, 'busy') as found:
    place.proxy.write_faults[:] = [503, 429]
    save(found, 1)
    assert not place.proxy.write_faults
    place.proxy.faults[:] = [503, 'cut']
    assert_restores(found, 1)
    assert not place.proxy.faults


def test_bucket_out_of_reach_fails_the_save_and_keeps_the_step_before(place: Place, monkeypatch):
  monkeypatch.setattr('vit_jax.foundation.buckets.OF_RUNS', Patience(attempts=2, pause=0))
  found = manager(place, 'gone')
  save(found, 1)
  place.proxy.write_faults[:] = [400] * 1000
  with pytest.raises(OutOfReach, match='cannot be reached'):
    save(found, 2)
  place.proxy.write_faults.clear()
  found.close()
  assert found.all_steps() == [1]


def test_before_commit_is_done_before_the_step_counts(place: Place):
  seen = []
  with manager(place, 'order', before_commit=lambda: seen.append(place.names('order'))) as found:
    save(found, 1)
  assert any('/1/params/' in name for name in seen[0])
  assert not any(name.endswith('commit_success.txt') for name in seen[0])


def test_a_step_counts_once_all_processes_have_uploaded(place: Place, monkeypatch):
  """The store in which they wait for each other sees what lies in the bucket then."""
  seen = {}
  two = types.SimpleNamespace(process_count=lambda: 2, process_index=lambda: 0)
  store = types.SimpleNamespace(
    wait_at_barrier=lambda name, _: seen.update({name.split('/')[2]: place.names('two')})
  )
  monkeypatch.setattr(bucket_writer, 'jax', two)
  monkeypatch.setattr(ocp.multihost, 'get_jax_distributed_client', lambda: store)
  with manager(place, 'two') as found:
    save(found, 1)
  assert any('/1/params/' in name for name in seen['uploaded'])
  committed = {at: any(name.endswith('commit_success.txt') for name in names) for at, names in seen.items()}
  assert committed == {'opened': False, 'uploaded': False, 'committed': True}


def test_other_commands_copy_the_newest_complete_step(place: Place):
  with manager(place, 'copied') as found:
    save(found, 1, 2)
  place.remove('copied/checkpoints/2/commit_success.txt')
  address = f'{place.scheme}://bucket/copied'
  copy = bucket_files.local_copy(address, 'checkpoint', bucket_files.Bucket(address))
  assert_restores(Manager(copy / 'checkpoints', CheckpointConfig(), read_only=True), 1)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_same_holds_in_amazons_buckets():
  with places('s3', own=True) as place:
    test_newest_step_is_restored_and_older_ones_are_removed(place)
    test_damaged_step_is_set_aside_and_the_one_before_it_is_restored(place)
