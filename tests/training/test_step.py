"""The training step: on every mesh, with accumulation, with mixed images, and where a loss is not finite."""

import dataclasses
import re

import chex
import jax
import numpy as np
import pytest
import run_steps
import tiny

from vit_jax import config as c
from vit_jax.training.run import Dataset, Run
from vit_jax.training.step import Program, model_inputs

pytestmark = pytest.mark.slow

CONFIG = c.Config(
  total='10 steps',
  batch_size=16,
  model=tiny.options(
    patch=2, mlp_dim=64, depth=3, pool='gap', dropout=0.1, attention_dropout=0.1, stochastic_depth=0.2
  ),
  data=c.DataConfig(image_size=(8, 8), channels=1),
  schedule=c.ScheduleConfig(learning_rate=0.1, warmup='2 steps'),
  # Not Adam, which makes steps of full size from the rounding errors of a gradient that is zero (that of
  # the keys' bias).
  optimizer=c.OptimizerConfig(name='sgd', weight_decay=0.1, clip_norm=1.0),
  mesh=c.MeshConfig(data=1),
  ema=0.9,
)
PROGRAMS: dict[str, Program] = {}


def program_of(config: c.Config) -> Program:
  """Of ten classes, on one device or all; compiled once for all tests."""
  if repr(config) not in PROGRAMS:
    devices = jax.devices()[:1] if config.mesh.data == 1 else None
    PROGRAMS[repr(config)] = Run(config, Dataset(160, num_classes=10), devices).program
  return PROGRAMS[repr(config)]


def run(config: c.Config, steps=6, batch_of=None):
  """(parameters, state, metrics of every step) after training on random images."""
  program = program_of(config)
  state = program.init(np.uint32(config.seed))
  log = []
  for step in range(steps):
    if batch_of:
      state = batch_of(step, state)
    state, metrics = program.step(state, run_steps.batch(program, step))
    log.append(jax.tree.map(float, metrics))
  return jax.tree.map(np.asarray, state.params), jax.tree.map(np.asarray, state), log


@pytest.fixture(scope='module')
def one_device():
  return run(CONFIG)


@pytest.mark.parametrize(
  'change',
  [
    {'mesh': c.MeshConfig()},
    {'mesh': c.MeshConfig(fsdp=4, min_shard_size=1), 'accumulation': 2},
    {'mesh': c.MeshConfig(replica=2, data=-1, tensor=2, min_shard_size=1)},
  ],
  ids=['data', 'fsdp and accumulation', 'replica and tensor'],
)
def test_meshes_and_accumulation_equal_one_device(one_device, change):
  # Dropout, stochastic depth and flips are on: every example has its own random numbers.
  params, _, log = run(dataclasses.replace(CONFIG, **change))
  expected, _, expected_log = one_device
  chex.assert_trees_all_close(params, expected, atol=2e-5)
  for metrics, others in zip(log, expected_log, strict=True):
    assert metrics['train/loss'] == pytest.approx(others['train/loss'], abs=1e-5)
    assert metrics['train/grad_norm'] == pytest.approx(others['train/grad_norm'], rel=1e-4)


# One block, nothing dropped: mixing is the same for any model.
MIXED = dataclasses.replace(
  CONFIG, model=c.ViTConfig(variant='custom', patch=4, width=8, mlp_dim=8, depth=1, heads=2, pool='gap')
)


def test_images_are_mixed_the_same_on_any_mesh():
  data = dataclasses.replace(MIXED.data, cutmix=1.0, mix_per='example')
  config = dataclasses.replace(MIXED, data=data)
  expected, _, log = run(config, steps=4)
  other = dataclasses.replace(config, mesh=c.MeshConfig(fsdp=4, min_shard_size=1), accumulation=2)
  params, _, other_log = run(other, steps=4)
  chex.assert_trees_all_close(params, expected, atol=2e-5)
  for metrics, others in zip(log, other_log, strict=True):
    assert metrics['train/accuracy'] == others['train/accuracy']


def test_mixing_sends_one_image_between_devices():
  data = dataclasses.replace(MIXED.data, mixup=0.2)
  config = dataclasses.replace(MIXED, data=data, mesh=c.MeshConfig(fsdp=2))
  program = program_of(config)
  text = program.step.lower(program.state, program.batch).compile().as_text()
  images = [line for line in text.splitlines() if re.search(r'= u8\[.*(collective-permute|all-)', line)]
  assert images and all('u8[1,8,8,1]' in line and 'collective-permute' in line for line in images)


def test_targets_of_mixed_images_are_mixed():
  """The loss and the accuracy of a step, against NumPy: with a kernel of zero the logits are the bias."""
  data = dataclasses.replace(MIXED.data, cutmix=1.0, mix_per='example')
  config = dataclasses.replace(MIXED, data=data)
  bias = np.linspace(-2, 1, 10, dtype=np.float32)

  def biased(step, state):
    state.params['head']['bias'] = jax.device_put(bias, state.params['head']['bias'].sharding)
    return state

  _, _, (metrics,) = run(config, steps=1, batch_of=biased)
  batch = run_steps.batch(program_of(config), 0)
  seen = {name: np.asarray(value) for name, value in model_inputs(config, batch, 0).items() if name != 'key'}
  lam = seen['lam'][:, None].astype(np.float64)
  targets = lam * np.eye(10)[seen['label']] + (1 - lam) * np.eye(10)[seen['label_b']]
  assert (seen['label'] != seen['label_b']).any() and (lam < 1).any()
  expected = -(targets * (bias - np.log(np.exp(bias).sum()))).sum(-1)
  assert metrics['train/loss'] == pytest.approx(expected.mean(), rel=1e-4)
  assert metrics['train/accuracy'] == pytest.approx((seen['label'] == 9).mean())


def test_the_state_counts_steps_and_the_rate_warms_up(one_device):
  _, state, log = one_device
  assert state.step == 6 and state.skipped == 0
  assert log[0]['learning_rate'] == 0  # the first step of a warmup
  assert log[2]['learning_rate'] == pytest.approx(0.1)
  assert log[0]['train/loss'] == pytest.approx(np.log(10), abs=1e-5)  # the head begins at zero


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_nothing_is_learnt_from_a_step_that_is_not_finite(value):
  """A parameter is poisoned before step 3 and mended after it."""
  good = {}

  def poison(step, state):
    bias = state.params['norm']['bias']
    if step == 3:
      good['state'] = jax.tree.map(np.asarray, state)
      state.params['norm']['bias'] = bias * value
    if step == 4:
      assert np.array_equal(state.params['head']['kernel'], good['state'].params['head']['kernel'])
      chex.assert_trees_all_equal(state.opt_state, good['state'].opt_state)
      state.params['norm']['bias'] = jax.device_put(good['state'].params['norm']['bias'], bias.sharding)
    return state

  _, state, log = run(CONFIG, batch_of=poison)
  assert [metrics['finite'] for metrics in log] == [1, 1, 1, 0, 1, 1]
  assert state.skipped == 1 and state.step == 6
  chex.assert_tree_all_finite(state.params)


@pytest.mark.parametrize(
  ('name', 'change'),
  [
    ('image', lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float32)),
    ('image', lambda leaf: jax.ShapeDtypeStruct((8, *leaf.shape[1:]), leaf.dtype)),
    ('label', lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float32)),
  ],
  ids=['pixels that are no uint8', 'half a batch', 'labels that are no integers'],
)
def test_a_batch_of_another_shape_or_dtype_fails_at_trace_time(name, change):
  program = program_of(CONFIG)
  with pytest.raises(AssertionError):
    program.step.lower(program.state, program.batch | {name: change(program.batch[name])})


@pytest.mark.nightly(but='False')
@pytest.mark.parametrize('unroll', [False, True])
def test_blocks_behind_frozen_ones_learn_as_without(unroll):
  """Their gradients are the same; none is computed before them."""
  model = dataclasses.replace(CONFIG.model, unroll=unroll)
  plain = dataclasses.replace(CONFIG, model=model, optimizer=c.OptimizerConfig(name='sgd'), ema=0.0)
  frozen = dataclasses.replace(plain, optimizer=c.OptimizerConfig(name='sgd', freeze_blocks=2))
  before, after = run(plain, steps=0)[0], run(frozen, steps=3)[0]
  chex.assert_trees_all_equal(after['patch_embedding'], before['patch_embedding'])
  chex.assert_trees_all_equal(
    *(jax.tree.map(lambda leaf: leaf[:2], tree['blocks']) for tree in (after, before))
  )
  one = run(plain, steps=2)[0], run(frozen, steps=2)[0]  # the first has a rate of 0
  last = [
    {'blocks': jax.tree.map(lambda leaf: leaf[2], tree['blocks']), 'head': tree['head']} for tree in one
  ]
  chex.assert_trees_all_close(*last, rtol=1e-4, atol=1e-6)
  assert not np.array_equal(
    after['blocks']['mlp']['dense_in']['kernel'], before['blocks']['mlp']['dense_in']['kernel']
  )
