"""Schedule-free learning against optax and the published algorithm; SAM against the two gradients in NumPy."""

import dataclasses
from typing import ClassVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
import run_steps
import tiny
from flax import nnx

from vit_jax import config as c
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Model
from vit_jax.models.batch_norm import BatchNorm
from vit_jax.models.mixer import MixerConfig
from vit_jax.training.descent import make_descent
from vit_jax.training.run import Dataset, Run
from vit_jax.training.step import model_inputs

RNG = np.random.default_rng(0)
PARAMS = {'head': {'kernel': RNG.normal(size=(5, 3)), 'bias': RNG.normal(size=3)}}
SCALES = jax.tree.map(lambda leaf: RNG.uniform(0.1, 3, leaf.shape), PARAMS)
OPTIONS = {'b1': 0.95, 'b2': 0.9, 'weight_decay': 0.2, 'arguments': (('eps', 1e-6),)}


def gradients(values):
  """Those of a valley whose sides differ."""
  return jax.tree.map(lambda scale, leaf: scale * leaf**3 - 0.5, SCALES, values)


def evaluated(rates):
  """The parameters after steps at these learning rates."""
  params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), PARAMS)
  descent = make_descent(c.OptimizerConfig(name='schedule_free', **OPTIONS), params)
  state = descent.init(params)
  for rate in rates:
    grads = jax.tree.map(jnp.float32, gradients(descent.trained(params, state)))
    params, state = descent.step(grads, params, state, jnp.float32(rate))
  return params


@pytest.mark.slow
def test_schedule_free_is_optaxs():
  theirs = optax.contrib.schedule_free(
    optax.chain(
      optax.scale_by_rms(0.9, 1e-6, eps_in_sqrt=False, bias_correction=True),
      optax.add_decayed_weights(0.2, mask={'head': {'kernel': True, 'bias': False}}),
      optax.scale(-0.05),
    ),
    learning_rate=0.05,
    b1=0.95,
  )
  values = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), PARAMS)
  state = theirs.init(values)
  for _ in range(12):
    updates, state = theirs.update(gradients(values), state, values)
    values = optax.apply_updates(values, updates)
  expected = optax.contrib.schedule_free_eval_params(state, values)
  chex.assert_trees_all_close(evaluated([0.05] * 12), expected, rtol=1e-4, atol=1e-5)


def test_schedule_free_with_a_warmup_is_the_published_algorithm_in_float64():
  """Algorithm 1 of arXiv 2405.15682, by x, y and z, with the weights of the authors' code for a warmup."""
  rates = [0.0, 0.0, 0.01, 0.02, 0.03, *[0.04] * 20]
  beta, b2, eps = 0.95, 0.9, 1e-6
  x, z = dict(PARAMS['head']), dict(PARAMS['head'])
  squares, weights = dict.fromkeys(x, 0.0), 0.0
  for step, rate in enumerate(rates, 1):
    y = {name: (1 - beta) * z[name] + beta * x[name] for name in x}
    grads = gradients({'head': y})['head']
    weights += max(rates[:step]) ** 2
    share = max(rates[:step]) ** 2 / weights if weights else 0.0
    for name, grad in grads.items():
      squares[name] = b2 * squares[name] + (1 - b2) * grad**2
      direction = grad / (np.sqrt(squares[name] / (1 - b2**step)) + eps)
      z[name] = z[name] - rate * (direction + 0.2 * y[name] * (name == 'kernel'))
      x[name] = (1 - share) * x[name] + share * z[name]
  chex.assert_trees_all_close(evaluated(rates), {'head': x}, rtol=2e-5, atol=2e-6)


CONFIG = c.Config(
  total='10 steps',
  batch_size=16,
  model=tiny.options(width=16, mlp_dim=16, depth=1, pool='gap'),
  data=c.DataConfig(image_size=(8, 8), channels=1, crop='resize', flip=False),
  schedule=c.ScheduleConfig(learning_rate=0.5, decay='constant'),
  optimizer=c.OptimizerConfig(name='sgd', momentum=0.0, sam_radius=0.3),
  mesh=c.MeshConfig(data=1),
)


def program_of(config):
  return Run(config, Dataset(160, num_classes=10), jax.devices()[: 1 if config.mesh.data == 1 else 8]).program


def changed(**options):
  return dataclasses.replace(CONFIG, optimizer=dataclasses.replace(CONFIG.optimizer, **options))


def after(config, steps):
  """(state, metrics) after steps on random images."""
  program = program_of(config)
  state, metrics = program.init(np.uint32(0)), {}
  for step in range(steps):
    state, metrics = program.step(state, run_steps.batch(program, step))
  return jax.tree.map(np.asarray, (state, metrics))


@pytest.mark.slow
def test_sam_takes_the_two_gradients_of_numpy_on_eight_devices_in_two_parts():
  """A head on frozen features is a softmax regression, whose gradients are a line of NumPy."""
  config = dataclasses.replace(
    changed(freeze=('^(?!head/)',)), mesh=c.MeshConfig(fsdp=4, min_shard_size=1), accumulation=2
  )
  program = program_of(config)
  state = program.init(np.uint32(0))
  model = nnx.merge(program.graphdef, jax.tree.map(np.asarray, state.params))
  kernel, bias = np.zeros((16, 10)), np.zeros(10)
  for step in range(3):
    batch = run_steps.batch(program, step)
    inputs = model_inputs(config, batch, step)
    features = np.asarray(model.pool(model.features(jnp.asarray(np.asarray(inputs['image'])))), np.float64)
    targets = np.eye(10)[np.asarray(batch['label'])]

    def gradient(kernel, bias, features=features, targets=targets):
      scores = np.exp(features @ kernel + bias)
      errors = (scores / scores.sum(1, keepdims=True) - targets) / 16
      return features.T @ errors, errors.sum(0)

    of_kernel, of_bias = gradient(kernel, bias)
    scale = 0.3 / np.sqrt((of_kernel**2).sum() + (of_bias**2).sum())
    of_kernel, of_bias = gradient(kernel + scale * of_kernel, bias + scale * of_bias)
    kernel, bias = kernel - 0.5 * of_kernel, bias - 0.5 * of_bias
    state, metrics = program.step(state, batch)
    norm = np.sqrt((of_kernel**2).sum() + (of_bias**2).sum())
    assert float(metrics['train/grad_norm']) == pytest.approx(norm, rel=1e-4)
  chex.assert_trees_all_close(
    jax.tree.map(np.asarray, state.params['head']), {'kernel': kernel, 'bias': bias}, rtol=1e-4, atol=2e-6
  )


@pytest.mark.nightly
@pytest.mark.slow
def test_both_passes_of_sam_drop_and_mix_the_same():
  """At no distance to speak of, the second gradient is the first one."""
  model = dataclasses.replace(CONFIG.model, dropout=0.4, stochastic_depth=0.4)
  mixed = dataclasses.replace(CONFIG, model=model, data=dataclasses.replace(CONFIG.data, mixup=0.5))
  plain, near = (
    after(dataclasses.replace(mixed, optimizer=changed(sam_radius=radius).optimizer), steps=2)
    for radius in (0.0, 1e-6)
  )
  chex.assert_trees_all_close(near[0].params, plain[0].params, atol=2e-5)
  assert near[1]['train/loss'] == pytest.approx(plain[1]['train/loss'], rel=1e-4)


class Normalised(Model):
  """A dense layer of each pixel, batch norm, and a head."""

  def __init__(self, config, rngs):
    self.config = config
    self.dense, self.head = nnx.Linear(1, 4, rngs=rngs), nnx.Linear(256, 10, rngs=rngs)
    self.norm = BatchNorm(4, momentum=0.9, epsilon=1e-3)

  def __call__(self, images, *, keys=None):
    return self.head(self.norm(self.dense(images), train=keys is not None).reshape(len(images), -1))


@dataclasses.dataclass(frozen=True)
class NormalisedConfig(MixerConfig):
  sharding_rules: ClassVar = (('.*', ()),)

  def build(self, architecture, rngs, sharding=None):
    return Normalised(self, rngs)


@pytest.mark.slow
def test_running_statistics_are_those_of_sams_first_pass():
  model = NormalisedConfig(**dataclasses.asdict(tiny.mixer()))
  plain, far = (
    after(dataclasses.replace(changed(sam_radius=radius), model=model), steps=1)[0] for radius in (0.0, 3.0)
  )
  chex.assert_trees_all_equal(far.model_state, plain.model_state)
  assert not np.array_equal(far.params['head']['kernel'], plain.params['head']['kernel'])


@pytest.mark.slow
def test_nothing_is_learnt_where_sams_second_gradient_is_not_finite():
  program = program_of(changed(sam_radius=1e30))
  state = program.init(np.uint32(0))
  before = jax.tree.map(np.array, state.params)
  state, metrics = program.step(state, run_steps.batch(program, 0))
  assert np.isfinite(metrics['train/loss']) and not metrics['finite'] and state.skipped == 1
  chex.assert_trees_all_equal(jax.tree.map(np.asarray, state.params), before)


@pytest.mark.parametrize(
  ('options', 'said'),
  [
    ({'schedule': c.ScheduleConfig(decay='constant', cooldown='2 steps')}, "'constant' without a cooldown"),
    ({'optimizer': c.OptimizerConfig('schedule_free', momentum=0.9)}, 'does not take momentum'),
    ({'optimizer': c.OptimizerConfig('schedule_free', momentum_dtype='bfloat16')}, 'momentum_dtype'),
    ({'model': tiny.efficientnet()}, 'running statistics, which would be those of other parameters'),
  ],
  ids=['cooldown', 'momentum', 'momentum_dtype', 'running statistics'],
)
def test_what_contradicts_a_schedule_free_average_is_refused(options, said):
  config = dataclasses.replace(CONFIG, optimizer=c.OptimizerConfig('schedule_free'))
  with pytest.raises(UserError, match=said):
    program_of(c.from_config_dict(c.to_config_dict(dataclasses.replace(config, **options))))


def test_a_schedule_free_state_lies_where_its_parameters_lie():
  config = dataclasses.replace(CONFIG, optimizer=c.OptimizerConfig('schedule_free'))
  program = program_of(dataclasses.replace(config, mesh=c.MeshConfig(fsdp=4, min_shard_size=1)))
  ahead, params = (pytrees.flatten(tree) for tree in (program.state.opt_state.ahead, program.state.params))
  assert {path: leaf.sharding for path, leaf in ahead.items()} == {p: v.sharding for p, v in params.items()}
