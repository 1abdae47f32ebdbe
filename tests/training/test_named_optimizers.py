"""LAMB and Adafactor block by block as optax's own, on eight devices as on one; and they, SAM and the schedule-free
average resumed to the same bits."""

import dataclasses
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import run_steps
import tiny
from flax import nnx

import vit_jax
from vit_jax import config as c
from vit_jax.foundation import pytrees
from vit_jax.training import loop
from vit_jax.training.optimizer import make_optimizer
from vit_jax.training.run import Dataset, Run

DEPTH = 34  # so many blocks that Adafactor would take them for rows
SHAPES = {
  'blocks/mlp/dense_in/kernel': (DEPTH, 40, 48),
  'blocks/norm/scale': (DEPTH, 40),
  'text_tower/blocks/mlp/dense_in/kernel': (DEPTH, 36, 38),
  'stage6/others/project/kernel': (DEPTH, 1, 1, 36, 38),
  'head/kernel': (40, 7),
  'head/bias': (7,),
}


def drawn(seed):
  rng = np.random.default_rng(seed)
  return {path: rng.normal(size=shape).astype(np.float32) for path, shape in SHAPES.items()}


def unstacked(flat):
  """Each block's part of a stack as a parameter of its own."""
  result = {}
  for path, leaf in flat.items():
    parts = enumerate(leaf) if len(leaf) == DEPTH else [('', leaf)]
    result |= {f'{path}|{number}': part for number, part in parts}
  return result


def after(tx, params, gradients):
  state = tx.init(params)
  for grads in gradients:
    updates, state = tx.update(grads, state, params)
    params = optax.apply_updates(params, jax.tree.map(lambda update: -0.1 * update, updates))
  return params


@pytest.mark.parametrize('name', ['lamb', 'adafactor'])
def test_a_stack_of_blocks_is_stepped_as_optax_steps_each_block(name):
  decay = optax.add_decayed_weights(
    0.3, mask=lambda params: {path: path.split('|')[0].endswith('kernel') for path in params}
  )
  theirs = {
    'lamb': optax.chain(optax.scale_by_adam(eps=1e-6), decay, optax.scale_by_trust_ratio()),
    'adafactor': optax.chain(
      optax.adafactor(None, min_dim_size_to_factor=32, multiply_by_parameter_scale=False, momentum=0.9),
      optax.scale(-1.0),
      decay,
    ),
  }
  params, gradients = drawn(0), [drawn(seed) for seed in (1, 2, 3)]
  params['head/bias'] *= 0  # without a norm: its ratio is 1
  nested = pytrees.unflatten(params)
  arguments = (('clipping_threshold', 1.0),) if name == 'adafactor' else ()  # optax's default
  ours = make_optimizer(c.OptimizerConfig(name=name, weight_decay=0.3, arguments=arguments), nested)
  got = pytrees.flatten(after(ours, nested, map(pytrees.unflatten, gradients)))
  expected = after(theirs[name], unstacked(params), map(unstacked, gradients))
  chex.assert_trees_all_close(unstacked(got), expected, rtol=2e-5, atol=1e-6)


def test_adafactor_keeps_rows_and_columns_of_kernels():
  params = pytrees.unflatten(drawn(0))
  state = make_optimizer(c.OptimizerConfig(name='adafactor', momentum_dtype='bfloat16'), params).init(params)
  own = {leaf.shape for path, leaf in pytrees.flatten(state).items() if 'dense_in' in path and '/v_' in path}
  assert own >= {(DEPTH, 40), (DEPTH, 48)}
  assert {leaf.dtype for leaf in jax.tree.leaves(state) if leaf.shape == (DEPTH, 40, 48)} == {
    jnp.dtype('bfloat16')
  }


def config_of(name):
  return c.Config(
    total='4 steps',
    batch_size=16,
    model=tiny.options(width=16, mlp_dim=16, depth=1, pool='gap', dropout=0.1),
    tensorboard=c.TensorBoardConfig(pictures=False),
    data=c.DataConfig(image_size=(8, 8), channels=1),
    schedule=c.ScheduleConfig(learning_rate=0.01, decay='constant'),
    optimizer=c.OptimizerConfig(
      name=name,
      weight_decay=0.1,
      sam_radius=0.1 if name == 'schedule_free' else 0.0,
      arguments=(('min_dim_size_to_factor', 8),) if name == 'adafactor' else (),
    ),
    mesh=c.MeshConfig(fsdp=4, min_shard_size=1),
    ema=0.99,
    ema_schedule='warmup',
    checkpoint=c.CheckpointConfig(every='1 steps', keep=9),
    log_every='1 steps',
  )


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize('name', ['lamb', 'adafactor'])
def test_eight_devices_step_as_one_and_the_ema_warms_up(name):
  config = config_of(name)
  ends = []
  for devices, mesh in ((None, config.mesh), (jax.devices()[:1], c.MeshConfig(data=1))):
    program = Run(dataclasses.replace(config, mesh=mesh), Dataset(160, num_classes=10), devices).program
    states = [program.init(np.uint32(0))]
    for step in range(2):
      states.append(program.step(jax.tree.map(jnp.copy, states[-1]), run_steps.batch(program, step))[0])
    ends.append(jax.tree.map(np.asarray, states))
  (sharded, alone) = ends
  # The gradient of the keys' bias is 0 but for rounding, of which Adam's and Adafactor's steps have full size.
  for one, other in ((sharded[-1].params, alone[-1].params), (sharded[-1].ema, alone[-1].ema)):
    one, other = (
      {p: leaf for p, leaf in pytrees.flatten(t).items() if 'key/bias' not in p} for t in (one, other)
    )
    chex.assert_trees_all_close(one, other, atol=2e-4)
  expected = alone[0].params
  for step, state in enumerate(alone[1:]):
    decay = (1 + step) / (10 + step)
    expected = jax.tree.map(lambda old, new, d=decay: d * old + (1 - d) * new, expected, state.params)
  chex.assert_trees_all_close(alone[-1].ema, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.nightly(but='schedule_free')
@pytest.mark.slow
@pytest.mark.parametrize('name', ['lamb', 'adafactor', 'schedule_free'])
def test_a_resumed_run_ends_in_the_same_bits(name, tmp_path):
  config, whole, resumed = config_of(name), tmp_path / 'whole', tmp_path / 'resumed'
  seen = []
  states = [
    loop.train(config, whole, on_step=lambda _, state, __: seen.append(jax.tree.map(np.array, state)))
  ]
  shutil.copytree(whole, resumed)
  for step in (3, 4):
    shutil.rmtree(resumed / 'checkpoints' / str(step))
  states.append(loop.train(config, resumed))
  chex.assert_trees_all_equal(*(jax.tree.map(np.asarray, state) for state in states))
  assert run_steps.logged(resumed) == run_steps.logged(whole)
  if name == 'schedule_free':  # what a stranger loads is the mean of all values that took the steps, x of z
    steps = [jax.tree.map(np.add, state.params, state.opt_state.ahead) for state in seen]
    mean = jax.tree.map(lambda *leaves: np.mean(np.float64(leaves), 0), *steps)
    params = nnx.to_pure_dict(nnx.state(vit_jax.load(resumed).module, nnx.Param))
    chex.assert_trees_all_close(params, mean, rtol=1e-4, atol=1e-6)
    assert not np.allclose(params['head']['kernel'], steps[-1]['head']['kernel'], rtol=0.01)
