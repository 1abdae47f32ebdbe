"""Contrastive learning of views: losses against NumPy in float64, over devices; its encoders; what is refused."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import run_steps
import tiny
from flax import nnx
from scipy.special import log_softmax

import vit_jax
from vit_jax import config as c
from vit_jax import recipes
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.objectives import contrastive_views
from vit_jax.pretrained import adapt, formats
from vit_jax.training import loop
from vit_jax.training.run import Dataset, Run
from vit_jax.training.step import model_inputs

MODEL = tiny.moco(patch=2)
CONFIG = c.Config(
  total='6 steps',
  batch_size=16,
  model=MODEL,
  data=c.DataConfig(image_size=(8, 8), channels=1, area=(0.5, 1), augment='dino(0.5,0.5)'),
  objective=c.ContrastiveViewsObjective(),
  optimizer=c.OptimizerConfig(name='sgd', clip_norm=1.0),
  ema=0.9,
  ema_schedule='cosine',
)
SIMCLR = dataclasses.replace(
  CONFIG,
  model=dataclasses.replace(MODEL, predictor=False),
  objective=c.ContrastiveViewsObjective(momentum_encoder=False),
  ema=0.0,
)
BOTH = pytest.mark.parametrize('config', [CONFIG, SIMCLR], ids=['moco', 'simclr'])
B = 6


# The twins, in float64.


def heads(x, layers):
  """Dense layers and batch norm, and the moved running statistics of the last one."""
  last = len(layers) // 2 - 1
  for i in range(last + 1):
    x, norm = x @ layers[f'dense_{i}']['kernel'], layers[f'norm_{i}']
    mean, var = x.mean(axis=0), x.var(axis=0)
    moved = 0.9 * norm['mean'] + 0.1 * mean, 0.9 * norm['var'] + 0.1 * x.var(axis=0, ddof=1)
    x = (x - mean) / np.sqrt(var + 1e-5)
    x = x if i == last else np.maximum(x * norm['scale'] + norm['bias'], 0)
  return x, moved


def unit(x):
  return x / np.linalg.norm(x, axis=-1, keepdims=True)


def moco_loss(students, teachers, temperature=0.2):
  """Algorithm 1; students and teachers: (B, P) of the first view, and of the second."""
  (q1, q2), (k1, k2) = (map(unit, each) for each in (students, teachers))
  pairs = ((q1, k2), (q2, k1))
  return sum(2 * temperature * -np.diag(log_softmax(q @ k.T / temperature, axis=1)).mean() for q, k in pairs)


def nt_xent(first, second, temperature=0.2):
  """SimCLR's equation 1, pair by pair."""
  z, total = unit(np.concatenate([first, second])), 0.0
  for i in range(2 * B):
    others = np.delete(np.exp(z @ z[i] / temperature), i)
    total -= math.log(math.exp(z[i] @ z[(i + B) % (2 * B)] / temperature) / others.sum()) / (2 * B)
  return total


@pytest.mark.slow
@BOTH
def test_the_whole_loss_is_that_of_numpy_and_running_statistics_move(config):
  """Given the features of both encoders, which are different networks.

  Both views are one batch, as in the loss: in another batch a processor may add in another order, which norms over few
  examples multiply (3e-6 of the loss on an Intel Xeon).
  """
  objective = config.objective
  graphdef, params = tiny.build(config.model, image_size=(8, 8), channels=1, num_classes=0)
  others = jax.tree.map(lambda leaf: 0.8 * leaf + 0.05, params)
  batch = {'image': tiny.images(B, (8, 8), 1), 'second': 0.5 * tiny.images(B, (8, 8), 1)[::-1, None]}

  @jax.jit
  def compute(params, others, batch):
    student, teacher = nnx.merge(graphdef, params), nnx.merge(graphdef, others)
    taught = objective.taught(batch, teacher, jnp.float32(0)) if objective.learns_from_ema else batch
    loss, metrics = objective.loss_and_metrics(student, taught, tiny.keys(B), config.data)
    views = jnp.stack([batch['image'], batch['second'][:, 0]], axis=1).reshape(2 * B, 8, 8, 1)
    features = [each.view_features(views).reshape(B, 2, -1).swapaxes(0, 1) for each in (student, teacher)]
    return loss, metrics, features, nnx.to_pure_dict(nnx.state(student.projection))

  with jax.default_matmul_precision('highest'):
    loss, metrics, features, moved = compute(params, others, batch)
  own, teachers = jax.tree.map(np.float64, features)
  params, others = jax.tree.map(np.float64, (params, others))
  if objective.momentum_encoder:
    projected, statistics = [], params['projection']
    for view in own:
      x, (mean, var) = heads(view, statistics)
      statistics = statistics | {'norm_2': {'mean': mean, 'var': var}}
      projected.append(heads(x, params['predictor'])[0])
    expected = moco_loss(projected, [heads(view, others['projection'])[0] for view in teachers])
    entropy, candidates = expected / 0.8, B
  else:
    x, (mean, var) = heads(np.concatenate(own), params['projection'])
    expected = entropy = nt_xent(x[:B], x[B:])
    candidates = 2 * B - 1
  np.testing.assert_allclose(loss, expected, rtol=1e-6)
  np.testing.assert_allclose(math.log(candidates) - metrics['information'], entropy, rtol=1e-6)
  for name, value in (('mean', mean), ('var', var)):
    np.testing.assert_allclose(moved['norm_2'][name], value, rtol=1e-5, atol=1e-6)


def test_the_logits_say_which_view_is_right():
  rng = np.random.default_rng(0)
  views = np.float32(unit(rng.standard_normal((B, 1, 8)) + 0.01 * rng.standard_normal((B, 2, 8))))
  for logits, right in (
    contrastive_views.momentum_logits(views, views, 0.1),
    contrastive_views.pair_logits(views, 0.1),
  ):
    np.testing.assert_array_equal(logits.argmax(axis=-1), right)


@pytest.mark.nightly(but='moco')
@pytest.mark.slow
@BOTH
def test_two_four_and_eight_devices_give_the_loss_and_the_gradient_of_one(config):
  def compute(params, batch, graphdef):
    teacher = nnx.merge(graphdef, jax.tree.map(lambda x: 0.9 * x, params))
    inputs, objective = model_inputs(config, batch, 0), config.objective
    if objective.learns_from_ema:
      inputs = objective.taught(inputs, teacher, jnp.float32(0.5))

    def loss(params):
      model = nnx.merge(graphdef, params)
      return objective.loss_and_metrics(model, inputs, inputs['key'], config.data)

    (found, metrics), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return {'loss': found, **metrics}, grads['blocks']['mlp']['dense_in']['kernel']

  found = []
  for devices in (1, 2, 4, 8):
    program = Run(config, Dataset(160, num_classes=10), jax.devices()[:devices]).program
    _, params = tiny.build(config.model, image_size=(8, 8), channels=1, num_classes=0)
    batch = run_steps.batch(program, 0)
    assert len(batch['image'].sharding.device_set) == devices
    found.append(jax.jit(functools.partial(compute, graphdef=program.graphdef))(params, batch))
  (one, gradient), *others = found
  for several, same in others:
    np.testing.assert_allclose(several['loss'], one['loss'], rtol=1e-6)
    np.testing.assert_allclose(same, gradient, atol=1e-5 * np.abs(gradient).max())
    for name, value in one.items():
      np.testing.assert_allclose(several[name], value, rtol=1e-4, err_msg=name)


@pytest.mark.nightly
def test_the_momentum_encoder_loads_and_is_fine_tuned_frozen_patches_stay_and_a_collapse_is_said(
  tmp_path, capfd, monkeypatch
):
  monkeypatch.setattr(contrastive_views, '_COLLAPSED', math.inf)
  freeze = dataclasses.replace(CONFIG.optimizer, freeze=('^patch_embedding/',))
  config = dataclasses.replace(
    CONFIG, optimizer=freeze, log_every='1 steps', tensorboard=c.TensorBoardConfig(pictures=False)
  )
  seen = []
  loop.train(config, tmp_path / 'run', on_step=lambda step, state, values: seen.append(jax.device_get(state)))
  first, last = seen[0], seen[-1]
  for path in ('kernel', 'bias'):
    np.testing.assert_array_equal(last.params['patch_embedding'][path], first.params['patch_embedding'][path])
  teacher = last.ema['blocks']['mlp']['dense_in']['kernel']
  assert not np.array_equal(teacher, last.params['blocks']['mlp']['dense_in']['kernel'])
  assert not np.array_equal(last.model_state['projection']['norm_0']['mean'], np.zeros(24))
  assert capfd.readouterr().out.count('Warning: The contrastive learning has collapsed') == 1
  loaded = nnx.to_pure_dict(nnx.state(vit_jax.load(tmp_path / 'run').module))
  np.testing.assert_array_equal(loaded['blocks']['mlp']['dense_in']['kernel'], teacher)
  tuned = recipes.fitted(str(tmp_path / 'run'), 'digits', 'head')
  assert type(tuned.model) is c.ViTConfig
  pretrained = formats.read(tmp_path / 'run')
  architecture = Architecture(tuned.model, CONFIG.data.image_size, CONFIG.data.channels, 10)
  _, report = adapt.adapt(pretrained, architecture, tuned.init)
  assert any(path.startswith('predictor/dense_0/kernel') for path in report.ignored)


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'model': tiny.options()}, 'it needs a Vision Transformer with a projection, --config.model.name=moco'),
    ({'model': dataclasses.replace(MODEL, pool='none')}, 'which leaves nothing to project'),
    ({'objective': c.ClassificationObjective()}, 'choose --config.objective.name=contrastive_views'),
    ({'objective': SIMCLR.objective}, 'SimCLR, which has no predictor; set --config.model.predictor=False'),
    ({'ema': 0.0}, 'whose teacher is the EMA, and config.ema is 0; set it'),
    ({'data': dataclasses.replace(CONFIG.data, mixup=0.2)}, 'cannot be with config.data.mixup 0.2; leave it'),
  ],
  ids=['a ViT', 'no pool', 'classes', 'predictor', 'no teacher', 'mixed'],
)
def test_what_it_cannot_train_is_refused(changes, said):
  with pytest.raises(UserError, match=said):
    c.from_config_dict(c.as_json(dataclasses.replace(CONFIG, **changes)))
