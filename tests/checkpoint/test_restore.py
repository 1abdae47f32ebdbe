"""Restoring: the meta and the arrays of one and the same step, and names of earlier versions."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from trees import abstract, assert_same

from vit_jax.checkpoint.config import CheckpointConfig
from vit_jax.checkpoint.manager import Manager
from vit_jax.foundation.errors import UserError


def _of_width(meta: dict) -> dict:
  return {'params': {'kernel': jax.ShapeDtypeStruct((4, meta['width']), jnp.float32)}}


@pytest.fixture
def directory(tmp_path):
  """Steps 1 and 2, with a kernel as wide as their meta says."""
  with Manager(tmp_path / 'checkpoints', CheckpointConfig()) as manager:
    for step in (1, 2):
      manager.save(step, {'params': {'kernel': jnp.full((4, 8 * step), float(step))}}, {'width': 8 * step})
  return tmp_path / 'checkpoints'


def _damage(item: pathlib.Path) -> None:
  for file in item.rglob('*'):
    if file.is_file():
      file.write_bytes(b'')


def test_items_can_be_a_function_of_the_meta(directory):
  with Manager(directory, CheckpointConfig(), read_only=True) as manager:
    for step in (1, 2):
      items, meta = manager.restore(step, _of_width)
      assert meta == {'width': 8 * step}
      assert_same(items, {'params': {'kernel': jnp.full((4, 8 * step), float(step))}})
    assert manager.restore_newest(_of_width)[0] == 2


@pytest.mark.parametrize(('damaged', 'asked'), [('params', [16, 8]), ('meta', [8])])
def test_function_is_called_with_the_meta_of_the_step_that_is_restored(directory, damaged, asked):
  """With that of step 2 only where it is sound; nothing of step 2 may be in the result."""
  _damage(directory / '2' / damaged)
  seen = []

  def items_of(meta: dict) -> dict:
    seen.append(meta)
    return _of_width(meta)

  with Manager(directory, CheckpointConfig()) as manager:
    step, items, meta = manager.restore_newest(items_of)
  assert (step, meta) == (1, {'width': 8}) and seen == [{'width': width} for width in asked]
  assert_same(items, {'params': {'kernel': jnp.full((4, 8), 1.0)}})


def test_error_of_the_function_ends_the_restore(directory):
  def items_of(meta: dict) -> dict:
    raise UserError('The classes changed; restore the data.')

  with Manager(directory, CheckpointConfig()) as manager:
    with pytest.raises(UserError, match='The classes changed'):
      manager.restore_newest(items_of)
    assert manager.all_steps() == [1, 2]


# Names of earlier versions.


def _state(pre_logits: str, ema: str) -> dict:
  """A run's items after a few steps, with these names of a layer and of an item."""
  bits = np.random.default_rng(0)
  params = {
    'blocks': {'mlp': {'kernel': jnp.asarray(bits.standard_normal((2, 8, 8), np.float32))}},
    pre_logits: {
      'kernel': jnp.asarray(bits.standard_normal((8, 6), np.float32)),
      'bias': jnp.asarray(bits.standard_normal(6, np.float32)),
    },
    'head': {'kernel': jnp.zeros((6, 3))},
  }
  optimizer = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.partition(
      {'train': optax.adamw(1e-3), 'frozen': optax.set_to_zero()},
      {'blocks': 'train', pre_logits: 'train', 'head': 'frozen'},
    ),
  )
  state = optimizer.init(params)
  averaged = params
  for _ in range(3):
    updates, state = optimizer.update(jax.tree.map(jnp.sin, params), state, params)
    params = optax.apply_updates(params, updates)
    averaged = optax.incremental_update(params, averaged, 0.1)
  return {'params': params, 'opt_state': state, ema: averaged, 'counters': {'step': jnp.int32(3)}}


OLD, NEW = _state('representation', 'average'), _state('pre_logits', 'ema')


@pytest.mark.parametrize('stored', [OLD, NEW], ids=['old', 'new'])
def test_run_resumes_from_old_and_new_names_with_the_same_bits(tmp_path, stored):
  with Manager(tmp_path / 'checkpoints', CheckpointConfig()) as manager:
    manager.save(3, stored, {'step': 3})
  assert (tmp_path / 'checkpoints' / '3' / 'average').exists() == (stored is OLD)
  with Manager(tmp_path / 'checkpoints', CheckpointConfig()) as manager:
    step, items, _ = manager.restore_newest(abstract(NEW))
    assert_same(items, NEW)
    manager.save(step + 1, items, {'step': step + 1})
    _, again, _ = manager.restore_newest(abstract(NEW))
    assert_same(again, NEW)
  assert (tmp_path / 'checkpoints' / '4' / 'ema').exists()
  assert 'representation' not in (tmp_path / 'checkpoints' / '4' / 'meta' / 'metadata').read_text()


def test_damage_under_an_old_name_is_noticed(tmp_path):
  with Manager(tmp_path / 'checkpoints', CheckpointConfig()) as manager:
    for step in (3, 4):
      manager.save(step, OLD, {})
  meta = tmp_path / 'checkpoints' / '4' / 'meta' / 'metadata'
  assert json.loads(meta.read_text())['items']['average']['representation/bias']['dtype'] == 'float32'
  _damage(tmp_path / 'checkpoints' / '4' / 'average')
  with Manager(tmp_path / 'checkpoints', CheckpointConfig()) as manager:
    assert manager.restore_newest({'ema': abstract(NEW['ema'])})[0] == 3


def test_only_the_names_of_the_table_are_taken_for_others(tmp_path):
  kernel = jnp.ones((2, 2))
  with Manager(tmp_path, CheckpointConfig()) as manager:
    manager.save(1, {'params': {'representation_2': {'kernel': kernel}, 'representation': kernel}}, {})
    # Today's name with another ending, and the old name of an item that has a new one.
    with pytest.raises(UserError, match=r'params pre_logits_2/kernel is missing there'):
      manager.restore(1, {'params': abstract({'pre_logits_2': {'kernel': kernel}, 'pre_logits': kernel})})
    with pytest.raises(UserError, match=r"has no 'ema'; it has params"):
      manager.restore(1, {'ema': abstract({'kernel': kernel})})
    manager.save(2, {'ema': {'pre_logits': kernel}}, {})
    with pytest.raises(UserError, match=r"has no 'average'; it has ema"):  # the table has one direction
      manager.restore(2, {'average': abstract({'pre_logits': kernel})})
    with pytest.raises(UserError, match=r'ema pre_logits is .* there and missing in this config'):
      manager.restore(2, {'ema': abstract({'representation': kernel})})


@pytest.mark.parametrize('probe', ['', '_5shot'])
def test_best_step_by_an_old_name_of_its_metric_is_kept(tmp_path, probe):
  items = {'params': {'kernel': jnp.ones(2)}}
  with Manager(tmp_path, CheckpointConfig(keep=1, best=f'val_average{probe}/accuracy')) as manager:
    for step, accuracy in enumerate((0.9, 0.1, 0.2), 1):
      manager.save(step, items, {}, {f'val_average{probe}/accuracy': accuracy, 'val/accuracy': 1 - accuracy})
    manager.wait()
    assert manager.all_steps() == [1, 3]
  with Manager(tmp_path, CheckpointConfig(keep=1, best=f'val_ema{probe}/accuracy')) as manager:
    for step, accuracy in enumerate((0.5, 0.4), 4):
      manager.save(step, items, {}, {f'val_ema{probe}/accuracy': accuracy, 'val/accuracy': 0.0})
    manager.wait()
    assert manager.all_steps() == [1, 5]
