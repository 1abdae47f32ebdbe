"""Schedules against the original's fixtures, optimizers against optax's own and NumPy."""

import dataclasses
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
import tiny

from vit_jax import config as c
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import MODELS, Architecture
from vit_jax.options import documentation
from vit_jax.training.optimizer import make_optimizer, trainable_mask
from vit_jax.training.schedule import make_schedule
from vit_jax.training.timeline import Timeline

PARAMS = {
  'blocks': {'mlp': {'kernel': np.full((2, 3, 3), 0.5, np.float32), 'bias': np.ones((2, 3), np.float32)}},
  'head': {'kernel': np.ones((3, 2), np.float32), 'bias': np.zeros(2, np.float32)},
}
GRADS = jax.tree.map(lambda leaf: np.linspace(-1, 2, leaf.size, dtype=np.float32).reshape(leaf.shape), PARAMS)


def schedule(total=100, **options):
  return make_schedule(c.ScheduleConfig(**options), Timeline(batch_size=1, examples=1, total=total))


def test_schedules_equal_the_originals(golden):
  fixtures = np.load(golden / 'i_lr_schedule.npz')
  cases = sorted({name.rpartition('/')[0] for name in fixtures.files})
  assert len(cases) == 8
  for case in cases:
    decay, numbers = case.split('/')
    total, base, warmup = numbers.split('_')
    rate = schedule(
      total=int(total),
      decay=decay,
      learning_rate=float(base),
      warmup=f'{warmup} steps',
      end_value=1e-5 if decay == 'linear' else 0.0,
    )
    got = [float(rate(step)) for step in fixtures[f'{case}/step']]
    np.testing.assert_allclose(got, fixtures[f'{case}/lr'], rtol=1e-5, atol=1e-9, err_msg=case)


def test_rsqrt_with_warmup_and_cooldown_equals_numpy():
  rate = schedule(
    decay='rsqrt', learning_rate=2.0, warmup='10 steps', timescale='5 steps', cooldown='20 steps'
  )
  steps = np.arange(101)
  expected = np.where(steps < 10, 0.2 * steps, 2 / np.sqrt(1 + np.maximum(steps - 10, 0) / 5))
  expected *= np.clip((100 - steps) / 20, 0, 1)
  np.testing.assert_allclose([float(rate(step)) for step in steps], expected, rtol=1e-5)


@pytest.mark.parametrize('timescale', ['0.4 steps', '1 examples', '0.001 %'])
def test_a_timescale_of_less_than_a_step_is_one_step(timescale):
  rate, one = (schedule(decay='rsqrt', timescale=each) for each in (timescale, '1 steps'))
  assert [float(rate(step)) for step in (0, 1, 50)] == [float(one(step)) for step in (0, 1, 50)]


@pytest.mark.parametrize(
  ('decay', 'options'), [('constant', {'end_value': 1e-5}), ('cosine', {'timescale': '5 steps'})]
)
def test_an_option_that_the_decay_would_ignore_is_refused_and_dropped_where_an_older_run_has_it(
  decay, options
):
  config = c.Config(schedule=c.ScheduleConfig(decay=decay))
  ignored = dataclasses.replace(config, schedule=c.ScheduleConfig(decay=decay, **options))
  (name,) = options
  with pytest.raises(
    UserError, match=rf'^config\.schedule\.{name} is for decay .* decay is {decay}.*; leave it out\.$'
  ):
    c.from_config_dict(c.to_config_dict(ignored))
  assert c.from_config_dict(c.as_json(ignored)) == config


@pytest.mark.parametrize(
  ('options', 'expected'),
  [
    ({'decay': 'constant', 'learning_rate': 0.5, 'warmup': '2 steps'}, {0: 0, 1: 0.25, 2: 0.5, 99: 0.5}),
    (  # a tenth at each drop
      {'decay': 'staircase', 'learning_rate': 0.48, 'warmup': '5 steps', 'drops': ('30 steps', '60 steps')},
      {0: 0, 5: 0.48, 29: 0.48, 30: 0.048, 59: 0.048, 60: 0.0048, 99: 0.0048},
    ),
    (  # two in one step
      {'decay': 'staircase', 'learning_rate': 0.5, 'drops': ('30 steps', '30 steps')},
      {29: 0.5, 30: 0.005},
    ),
    (  # EfficientNet's: by 3 % every 2.4 epochs, of a hundred steps each
      {
        'decay': 'exponential',
        'learning_rate': 0.128,
        'end_value': 0.128 * 0.97 ** (350 / 2.4),
        'total': 35_000,
      },
      {step: 0.128 * 0.97 ** (step / 240) for step in (0, 240, 2_400, 35_000)},
    ),
  ],
  ids=['constant', 'staircase', 'two drops', 'exponential'],
)
def test_rates_are_those_by_hand(options, expected):
  rate = schedule(**options)
  np.testing.assert_allclose([rate(step) for step in expected], list(expected.values()), rtol=1e-4)


BETWEEN = r'do not lie between the warmup of 5 steps and the end of the run, 100'
STAIRCASE = 'staircase needs drops, and no other has them'


@pytest.mark.parametrize(
  ('options', 'said'),
  [
    ({'decay': 'staircase', 'warmup': '5 steps', 'drops': ('4 steps', '60 steps')}, BETWEEN),
    ({'decay': 'staircase', 'warmup': '5 steps', 'drops': ('60 steps', '100 steps')}, BETWEEN),
    ({'decay': 'staircase'}, STAIRCASE),
    ({'decay': 'cosine', 'drops': ('30 steps',)}, STAIRCASE),
    ({'warmup': '100 steps'}, 'do not fit into the 100 steps'),
  ],
)
def test_schedules_that_make_no_sense_are_refused(options, said):
  with pytest.raises(UserError, match=said):
    c.ScheduleConfig(**options).check('config.schedule')
    schedule(**options)


def run(optimizer: c.OptimizerConfig, rate=0.1, steps=3, params=PARAMS):
  """Parameters after some steps with the same gradient."""
  tx = make_optimizer(optimizer, params)
  state = tx.init(params)
  for _ in range(steps):
    updates, state = tx.update(GRADS, state, params)
    params = optax.apply_updates(params, jax.tree.map(lambda update: -rate * update, updates))
  return params, state


def reference(tx, steps=3, params=PARAMS):
  state = tx.init(params)
  for _ in range(steps):
    updates, state = tx.update(GRADS, state, params)
    params = optax.apply_updates(params, updates)
  return params


KERNELS = {'blocks': {'mlp': {'kernel': True, 'bias': False}}, 'head': {'kernel': True, 'bias': False}}
DECAY = optax.add_decayed_weights(0.3, mask=KERNELS)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('options', 'theirs'),
  [
    ({'weight_decay': 0.3}, optax.chain(optax.scale_by_adam(), DECAY)),
    (
      {'name': 'sgd', 'momentum': 0.8, 'weight_decay': 0.3, 'clip_norm': 0.25},
      optax.chain(optax.clip_by_global_norm(0.25), optax.trace(0.8), DECAY),  # decoupled from the momentum
    ),
    ({'name': 'lion', 'b1': 0.95, 'b2': 0.98}, optax.scale_by_lion(b1=0.95, b2=0.98)),
    ({'name': 'rms', 'arguments': (('decay', 0.8), ('eps', 1e-3))}, optax.scale_by_rms(decay=0.8, eps=1e-3)),
  ],
  ids=['adam', 'sgd', 'lion', 'rms'],
)
def test_optimizers_are_optaxs_with_a_decay_of_kernels_only(options, theirs):
  ours, _ = run(c.OptimizerConfig(**options))
  expected = reference(optax.chain(theirs, optax.scale(-0.1)))
  chex.assert_trees_all_close(ours, expected, rtol=1e-5, atol=1e-7)


def test_rmsprop_is_tensorflows():
  """Its update rule in NumPy, of three steps of one parameter, with its mean square at 1 in the beginning."""
  tx = make_optimizer(c.OptimizerConfig(name='rmsprop', b2=0.8, momentum=0.7), PARAMS)
  state = tx.init(PARAMS)
  square, momentum = 1.0, 0.0
  for gradient in (0.5, -2.0, 0.1):
    grads = jax.tree.map(lambda leaf, g=gradient: jnp.full_like(leaf, g), PARAMS)
    updates, state = tx.update(grads, state, PARAMS)
    square = 0.8 * square + 0.2 * gradient**2
    momentum = 0.7 * momentum + gradient / np.sqrt(square + 1e-3)
    for leaf in jax.tree.leaves(updates):
      np.testing.assert_allclose(leaf, momentum, rtol=1e-5)


@pytest.mark.parametrize(
  ('options', 'said'),
  [
    (
      {'name': 'loin'},
      r"config.optimizer: there is no optimizer 'loin' \(did you mean 'lion'\?\); choose one of sgd",
    ),
    ({'name': 'novograd'}, "there is no optimizer 'novograd'.*; choose one of sgd, .*, yogi, where"),
    ({'name': 'adamw'}, "did you mean 'adam'.* 'adam' is AdamW with weight_decay"),
    ({'name': 'sgd', 'b1': 0.9}, "the optimizer 'sgd' does not take b1; it takes momentum"),
    (
      {'b1': 0.5, 'arguments': (('b1', 0.9),)},
      "arguments has 'b1', for which there is the option b1; set that",
    ),
    (
      {'arguments': (('mu_dtype', 1.0),)},
      "arguments has 'mu_dtype', for which there is the option momentum_dtype",
    ),
    ({'name': 'rms', 'momentum_dtype': 'bfloat16'}, "the optimizer 'rms' does not take momentum_dtype"),
  ],
)
def test_optimizers_and_arguments_that_optax_does_not_have_are_refused(options, said):
  with pytest.raises(UserError, match=said):
    c.from_config_dict(c.as_json(c.Config(optimizer=c.OptimizerConfig(**options))))


@pytest.mark.slow
def test_every_name_that_help_gives_is_an_optimizer_that_comes_down_a_bowl():
  (text,) = (doc.text for doc in documentation.documented() if doc.name == 'optimizer.name')
  names = re.findall(r"'(\w+)'", text)
  assert len(names) > 15
  for name in names:
    tx, params = make_optimizer(c.OptimizerConfig(name=name), PARAMS), PARAMS
    state = tx.init(params)
    for _ in range(3):
      updates, state = tx.update(params, state, params)  # a quadratic's gradient is where it is
      params = optax.apply_updates(params, jax.tree.map(lambda update: -0.02 * update, updates))
    assert optax.tree.norm(params) < 0.9999 * optax.tree.norm(PARAMS), name


@pytest.mark.parametrize('name', ['adam', 'sgd'])
def test_momentum_may_be_kept_in_bfloat16(name):
  exact, _ = run(c.OptimizerConfig(name=name))
  rounded, state = run(c.OptimizerConfig(name=name, momentum_dtype='bfloat16'))
  assert jnp.dtype('bfloat16') in {leaf.dtype for leaf in jax.tree.leaves(state)}
  chex.assert_trees_all_close(exact, rounded, rtol=0.02, atol=0.01)
  chex.assert_type(jax.tree.leaves(rounded), np.float32)


def test_multipliers_scale_the_rate_of_what_they_match():
  plain, _ = run(c.OptimizerConfig(name='sgd'))
  scaled, _ = run(c.OptimizerConfig(name='sgd', lr_multipliers=(('.', 1.0), ('^head', 0.5))))
  begin = PARAMS['head']['kernel']
  moved, expected = scaled['head']['kernel'] - begin, 0.5 * (plain['head']['kernel'] - begin)
  np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-7)
  np.testing.assert_array_equal(scaled['blocks']['mlp']['bias'], plain['blocks']['mlp']['bias'])


def test_freezing_keeps_values_and_needs_no_state():
  options = c.OptimizerConfig(freeze=('^blocks',), clip_norm=0.1, weight_decay=0.1)
  params, state = run(options)
  np.testing.assert_array_equal(params['blocks']['mlp']['kernel'], PARAMS['blocks']['mlp']['kernel'])
  assert not np.array_equal(params['head']['kernel'], PARAMS['head']['kernel'])
  assert not [leaf for leaf in jax.tree.leaves(state) if leaf.shape == (2, 3, 3)]
  # The frozen gradients do not count in the clipped norm.
  alone = {'head': PARAMS['head']}
  tx = make_optimizer(c.OptimizerConfig(clip_norm=0.1, weight_decay=0.1), alone)
  updates, _ = tx.update({'head': GRADS['head']}, tx.init(alone), alone)
  expected = optax.apply_updates(alone, jax.tree.map(lambda update: -0.1 * update, updates))
  once, _ = run(options, steps=1)
  chex.assert_trees_all_close(once['head'], expected['head'], rtol=1e-5, atol=1e-7)
  assert trainable_mask(options, PARAMS)['head'] == {'kernel': True, 'bias': True}


@pytest.mark.parametrize(
  ('options', 'said'),
  [
    ({'freeze': ('^stem',)}, r"config.optimizer.freeze: '\^stem' matches no parameter"),
    ({'freeze': ('^blocks/0/',)}, r"stacked into one array .*, such as blocks/mlp/.* and '\^blocks/' is all"),
    ({'lr_multipliers': (('x$', 2.0),)}, 'config.optimizer.lr_multipliers'),
    ({'freeze': ('.',)}, 'leave something to train'),
  ],
)
def test_patterns_that_match_nothing_or_everything_are_refused(options, said):
  with pytest.raises(UserError, match=said):
    make_optimizer(c.OptimizerConfig(**options), PARAMS)


def test_layer_decay_scales_the_step_of_each_stacked_block():
  plain, _ = run(c.OptimizerConfig(name='sgd'))
  scaled, _ = run(c.OptimizerConfig(name='sgd', layer_decay=0.5, lr_multipliers=(('bias', 2.0),)))
  for name, factors in (('kernel', (0.25, 0.5)), ('bias', (0.5, 1.0))):
    before = PARAMS['blocks']['mlp'][name]
    moved, expected = (np.asarray(after['blocks']['mlp'][name] - before) for after in (scaled, plain))
    for block, factor in enumerate(factors):
      np.testing.assert_allclose(moved[block], factor * expected[block], rtol=1e-4, atol=1e-6)
  np.testing.assert_array_equal(scaled['head']['kernel'], plain['head']['kernel'])


def test_layer_decay_of_a_model_without_blocks_is_refused():
  with pytest.raises(UserError, match='layer_decay is of the blocks of Vision Transformers and Mixers'):
    make_optimizer(c.OptimizerConfig(layer_decay=0.5), {'head': PARAMS['head']})


def test_freezing_of_blocks_keeps_the_first_and_what_is_before_them():
  """Also from weight decay; the others move as without it."""
  params = PARAMS | {'patch_embedding': {'bias': np.ones(3, np.float32)}}
  grads = GRADS | {'patch_embedding': {'bias': np.ones(3, np.float32)}}
  tx = make_optimizer(c.OptimizerConfig(freeze_blocks=1, weight_decay=0.1), params)
  updates, _ = tx.update(grads, tx.init(params), params)
  plain = make_optimizer(c.OptimizerConfig(weight_decay=0.1), params)
  expected, _ = plain.update(grads, plain.init(params), params)
  assert not np.any(updates['patch_embedding']['bias'])
  for name in ('kernel', 'bias'):
    assert not np.any(updates['blocks']['mlp'][name][0])
    np.testing.assert_allclose(
      updates['blocks']['mlp'][name][1], expected['blocks']['mlp'][name][1], rtol=1e-6
    )
    np.testing.assert_allclose(updates['head'][name], expected['head'][name], rtol=1e-6)
  with pytest.raises(UserError, match=r'freeze_blocks is of the blocks .* and this model has 2'):
    make_optimizer(c.OptimizerConfig(freeze_blocks=2), params)


def test_muon_takes_kernels_as_matrices_and_leaves_the_rest_to_adam():
  """Each block's kernel as optax's Muon takes the matrix alone; the rest as Adam with Nesterov's momentum."""
  shapes = {
    'blocks/attention/query/kernel': ((2, 6, 2, 4), (6, 8)),
    'blocks/attention/out/kernel': ((2, 2, 4, 6), (8, 6)),
    'blocks/mlp/dense_in/kernel': ((2, 6, 9), (6, 9)),
    'block1/unit1/conv2/kernel': ((3, 3, 2, 5), (18, 5)),
    'blocks/mlp/dense_in/bias': ((2, 9), None),
    'patch_embedding/kernel': ((2, 2, 3, 6), None),
    'head/kernel': ((6, 4), None),
  }
  rng = np.random.default_rng(0)
  flat = {path: rng.standard_normal(shape).astype(np.float32) for path, (shape, _) in shapes.items()}
  params = pytrees.unflatten(flat)
  tx = make_optimizer(c.OptimizerConfig(name='muon'), params)
  updates = pytrees.flatten(tx.update(params, tx.init(params), params)[0])
  for path, (_, matrix) in shapes.items():
    if matrix is None:
      alone = optax.scale_by_adam(nesterov=True)
      expected = alone.update(flat[path], alone.init(flat[path]))[0]
    else:
      alone = optax.contrib.muon(-1.0, consistent_rms=0.2)
      blocks = flat[path].reshape(-1, *matrix)
      expected = [
        alone.update({'w': block}, alone.init({'w': block}), {'w': block})[0]['w'] for block in blocks
      ]
      expected = np.stack(expected).reshape(flat[path].shape)
    np.testing.assert_allclose(updates[path], expected, rtol=1e-3, atol=1e-4, err_msg=path)


STEMS = (
  tiny.options(stem_blocks=(1, 2), stem_width=32, patch=2),
  tiny.options(stem_convolutions=((32, 2), (64, 1)), patch=1),
)


@pytest.mark.parametrize(
  'model', [*(MODELS[name]() for name in MODELS.names()), *STEMS], ids=lambda model: model.first_layer.kernel
)
def test_muon_leaves_the_layer_that_meets_the_image_to_adam(model):
  path = model.first_layer.kernel
  shape = Architecture(model.resolved(), (224, 224), 3, 10).shapes()[path].shape
  kernel = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
  params = pytrees.unflatten({path: kernel})
  tx, alone = make_optimizer(c.OptimizerConfig(name='muon'), params), optax.scale_by_adam(nesterov=True)
  updates, _ = tx.update(params, tx.init(params), params)
  expected, _ = alone.update(kernel, alone.init(kernel))
  np.testing.assert_allclose(pytrees.flatten(updates)[path], expected, rtol=1e-3, atol=1e-4)
