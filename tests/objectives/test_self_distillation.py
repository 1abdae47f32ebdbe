"""Self-distillation: losses against NumPy in float64, over devices; its teacher; a collapse; what is refused."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import run_steps
import tiny
from flax import nnx
from scipy.special import erf, log_softmax, softmax

import vit_jax
from vit_jax import config as c
from vit_jax import recipes
from vit_jax.data.pipeline import TrainPipeline
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.objectives import self_distillation
from vit_jax.objectives import self_distillation_losses as losses
from vit_jax.training import initialization, loop
from vit_jax.training.run import Dataset, Run, open_training
from vit_jax.training.step import model_inputs

MODEL = tiny.dino(patch=2)
CONFIG = c.Config(
  total='4 steps',
  batch_size=16,
  model=MODEL,
  data=c.DataConfig(image_size=(8, 8), channels=1, area=(0.5, 1), augment='dino(0.5,0.5)'),
  objective=c.SelfDistillationObjective(
    local_crops=2, local_size=(4, 4), masked=(0.2, 0.5), held_prototypes=0
  ),
  optimizer=c.OptimizerConfig(name='sgd', clip_norm=1.0),
  ema=0.9,
  ema_schedule='cosine',
)
B, K = 6, 40


def close(found, expected, rtol=1e-6):
  np.testing.assert_allclose(np.float64(found), expected, rtol=rtol)


def drawn(*shape, seed=0):
  return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


# The twins: a term after the other, in float64.


def crop_loss(students, targets):
  terms = [
    -(targets[:, t] * log_softmax(students[:, s] / 0.1, axis=-1)).sum(axis=-1).mean()
    for s in range(students.shape[1])
    for t in range(2)
    if s != t
  ]
  return np.mean(terms)


def patch_loss(students, targets, chosen):
  total = 0
  for i in range(len(students)):
    terms = [-(targets[i, j] * log_softmax(students[i, j] / 0.1)).sum() for j in np.flatnonzero(chosen[i])]
    total += np.mean(terms) if terms else 0
  return total / (2 * len(students))


def koleo_loss(features):
  x = features / np.linalg.norm(features, axis=1, keepdims=True)
  nearest = [min(np.linalg.norm(one - other) for other in np.delete(x, i, 0)) for i, one in enumerate(x)]
  return -np.log(nearest).mean()


def sinkhorn(scores, temperature):
  q = np.exp(scores / temperature).T
  q /= q.sum()
  for _ in range(3):
    q /= q.sum(axis=1, keepdims=True) * len(q)
    q /= q.sum(axis=0, keepdims=True) * q.shape[1]
  return (q * q.shape[1]).T


def projected(x, layers):
  for name in ('first', 'second', 'third'):
    x = x @ layers[name]['kernel'] + layers[name]['bias']
    x = x if name == 'third' else x * (1 + erf(x / math.sqrt(2))) / 2
  kernel = layers['prototypes']['kernel']
  return x / np.linalg.norm(x, axis=-1, keepdims=True) @ (kernel / np.linalg.norm(kernel, axis=0))


def test_each_loss_is_that_of_numpy():
  students, targets = drawn(B, 5, K), softmax(np.float64(drawn(B, 2, K, seed=1)) / 0.04, axis=-1)
  close(losses.crop_loss(students, np.float32(targets)), crop_loss(np.float64(students), targets))
  students, targets = drawn(B, 7, K), softmax(np.float64(drawn(B, 7, K, seed=2)) / 0.04, axis=-1)
  chosen = np.random.default_rng(0).random((B, 7)) < 0.6
  chosen[0] = False
  close(
    losses.patch_loss(students, np.float32(targets), chosen),
    patch_loss(np.float64(students), targets, chosen),
  )
  features = drawn(B, 24)
  close(losses.koleo_loss(features), koleo_loss(np.float64(features)))
  scores, counted = drawn(20, K), np.arange(20) % 3 > 0
  np.testing.assert_allclose(losses.sinkhorn(scores, 0.07), sinkhorn(np.float64(scores), 0.07), atol=1e-6)
  some = np.asarray(losses.sinkhorn(scores, 0.07, counted))
  np.testing.assert_allclose(some[counted], sinkhorn(np.float64(scores[counted]), 0.07), atol=1e-6)
  assert not some[~counted].any()


@pytest.mark.slow
@pytest.mark.parametrize('balance', ['centring', 'sinkhorn'])
def test_the_whole_loss_is_that_of_numpy_and_the_centre_moves(balance):
  """Given the tokens of student and teacher; of a teacher that is another network."""
  objective = dataclasses.replace(CONFIG.objective, balance=balance)
  graphdef, params = tiny.build(MODEL, image_size=(8, 8), channels=1, num_classes=0)
  others = jax.tree.map(lambda leaf: leaf + 0.05 * drawn(*leaf.shape, seed=5), params)
  batch = {'image': tiny.images(B, (8, 8), 1), 'key': tiny.keys(B)}
  batch |= {'second': drawn(B, 1, 8, 8, 1, seed=3), 'local': drawn(B, 2, 4, 4, 1, seed=4)}

  @jax.jit
  def compute(params, others, batch):
    student, teacher = nnx.merge(graphdef, params), nnx.merge(graphdef, others)
    taught = objective.taught(batch, teacher, jnp.float32(0.15))
    loss, metrics = objective.loss_and_metrics(student, taught, batch['key'], CONFIG.data)
    hidden = taught['hidden'].reshape(2 * B, -1)
    tokens = student.tokens(taught['large'], hidden), student.tokens(batch['local'].reshape(2 * B, 4, 4, 1))
    return loss, metrics, (*tokens, teacher.tokens(taught['large'])), hidden, student.centre.images[...]

  with jax.default_matmul_precision('highest'):
    loss, metrics, tokens, hidden, centre = compute(params, others, batch)
  large, local, taught = (np.float64(each) for each in tokens)
  hidden, before = np.asarray(hidden), np.float64(params['centre']['images'])
  heads = [jax.tree.map(np.float64, each['projection']) for each in (params, others)]
  assert (hidden.reshape(B, 2, -1).any(axis=2).sum(axis=1) == 1).all()  # one crop of each image

  def targets(scores, place):
    centre = np.float64(params['centre'][place])
    return sinkhorn(scores, 0.055) if balance == 'sinkhorn' else softmax((scores - centre) / 0.055, axis=-1)

  scores = projected(taught[:, 0], heads[1])
  of_images = targets(scores, 'images').reshape(B, 2, -1)
  students = np.concatenate([large[:, 0].reshape(B, 2, -1), local[:, 0].reshape(B, 2, -1)], axis=1)
  expected = crop_loss(projected(students, heads[0]), of_images)
  close(metrics['crop_loss'], expected)
  of_patches = targets(projected(taught[:, 1:][hidden], heads[1]), 'patches')
  students, total = projected(large[:, 1:], heads[0]), 0
  for crop in range(2 * B):
    if hidden[crop].any():
      rows = of_patches[hidden[:crop].sum() :][: hidden[crop].sum()]
      total += -(rows * log_softmax(students[crop][hidden[crop]] / 0.1, axis=-1)).sum(axis=-1).mean() / (
        2 * B
      )
  close(metrics['patch_loss'], total)
  koleo = koleo_loss(large[::2, 0]) + koleo_loss(large[1::2, 0])
  close(loss, expected + total + 0.1 * koleo)
  moved = before if balance == 'sinkhorn' else 0.9 * before + 0.1 * scores.mean(axis=0)
  np.testing.assert_allclose(centre, moved, atol=1e-6)
  flat = of_images.reshape(2 * B, -1)
  entropy = -(flat * np.log(flat)).sum(axis=1).mean()
  close(metrics['teacher_entropy'], entropy, 1e-5)
  mean = flat.mean(axis=0)
  close(metrics['teacher_information'], -(mean * np.log(mean)).sum() - entropy, 1e-5)


def test_masks_are_blocks_of_a_share_of_one_crop():
  draw = jax.jit(jax.vmap(lambda key: losses.hidden_patches(key, (14, 14), (0.1, 0.5))))
  masks = np.asarray(draw(jax.random.split(jax.random.key(0), 1000)))
  sums = masks.sum(axis=2)
  assert (sums.min(axis=1) == 0).all() and 0.4 < (sums[:, 0] > 0).mean() < 0.6
  share = sums.max(axis=1) / 196
  assert share.max() <= 0.5 and share.min() > 0.05 and share.mean() == pytest.approx(0.3, abs=0.03)
  cells = masks.max(axis=1).reshape(-1, 14, 14)
  beside = (cells[:, :, 1:] & cells[:, :, :-1]).sum() / cells[:, :, :-1].sum()
  assert beside > 0.75  # where they are strewn, 0.3


@pytest.mark.nightly(but='centring')
@pytest.mark.slow
@pytest.mark.parametrize('balance', ['centring', 'sinkhorn'])
def test_eight_devices_give_the_loss_and_the_centre_of_one(balance):
  config = dataclasses.replace(
    CONFIG,
    model=dataclasses.replace(MODEL, patch_projection=True),
    objective=dataclasses.replace(CONFIG.objective, balance=balance),
  )

  def compute(params, batch, graphdef):
    student, teacher = (
      nnx.merge(graphdef, each) for each in (params, jax.tree.map(lambda x: 0.9 * x, params))
    )
    inputs = config.objective.taught(model_inputs(config, batch, 0), teacher, jnp.float32(0.5))
    loss, metrics = config.objective.loss_and_metrics(student, inputs, inputs['key'], config.data)
    return {'loss': loss, **metrics}, student.centre.images[...]

  found = []
  for devices in (1, 8):
    program = Run(config, Dataset(160, num_classes=10), jax.devices()[:devices]).program
    _, params = tiny.build(config.model, image_size=(8, 8), channels=1, num_classes=0)
    graphdef, batch = program.graphdef, run_steps.batch(program, 0)
    found.append(jax.jit(functools.partial(compute, graphdef=graphdef))(params, batch))
  (one, centre), (eight, same) = found
  for name, value in one.items():
    np.testing.assert_allclose(value, eight[name], rtol=1e-6 if 'loss' in name else 1e-4, err_msg=name)
  np.testing.assert_allclose(centre, same, atol=1e-6)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_teacher_follows_by_a_cosine_loads_and_is_fine_tuned_and_a_collapse_is_said_once(
  tmp_path, capfd, monkeypatch
):
  monkeypatch.setattr(self_distillation, '_COLLAPSED', math.inf)
  objective = dataclasses.replace(CONFIG.objective, local_crops=0)
  config = dataclasses.replace(CONFIG, objective=objective, log_every='1 steps', total='6 steps')
  seen = []

  def look(step, state, values):
    seen.append(
      [np.asarray(tree['blocks']['mlp']['dense_in']['kernel']) for tree in (state.params, state.ema)]
    )

  loop.train(config, tmp_path / 'run', on_step=look)
  for step, ((_, before), (student, teacher)) in enumerate(itertools.pairwise(seen), 1):
    momentum = 1 - 0.1 * (1 + math.cos(math.pi * step / 6)) / 2  # DINOv2's CosineScheduler
    np.testing.assert_allclose(teacher, momentum * before + (1 - momentum) * student, atol=1e-7)
  assert not np.array_equal(teacher, student)
  assert capfd.readouterr().out.count('Warning: The self-distillation has collapsed') == 1
  loaded = nnx.to_pure_dict(nnx.state(vit_jax.load(tmp_path / 'run').module))
  np.testing.assert_array_equal(loaded['blocks']['mlp']['dense_in']['kernel'], teacher)
  tuned = recipes.fitted(str(tmp_path / 'run'), 'digits', 'head')
  assert type(tuned.model) is c.ViTConfig and not tuned.model.mask_token
  arrays, said = initialization.read_initial(tuned, Architecture(tuned.model, (8, 8), 1, 10), ())
  np.testing.assert_array_equal(arrays['blocks/mlp/dense_in/kernel'], teacher)
  assert 'projection/prototypes/kernel' in said.partition('ignored: ')[2] and 'mask_token' in said


def test_extra_crops_are_a_function_of_step_and_image():
  run, source = open_training(CONFIG)
  crops = CONFIG.objective.extra_crops(CONFIG.data)
  sharding = run.program.batch['image'].sharding
  pipelines = [
    TrainPipeline(source, CONFIG.data, batch_size=16, seed=0, sharding=sharding, extra_crops=crops)
    for _ in range(2)
  ]
  batch, again = pipelines[0].batch(3), pipelines[1].batch(3)
  assert {name: (leaf.shape, leaf.dtype) for name, leaf in batch.items()} == {
    name: (leaf.shape, leaf.dtype) for name, leaf in run.program.batch.items()
  }
  for name, leaf in batch.items():
    np.testing.assert_array_equal(leaf, again[name])
  local = np.asarray(batch['local'])
  assert not np.array_equal(local[:, 0], local[:, 1]) and local.std(axis=(2, 3)).mean() > 10


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'model': tiny.options()}, 'it needs a Vision Transformer with prototypes, --config.model.name=dino'),
    ({'model': dataclasses.replace(MODEL, pool='gap')}, "needs 'token'; leave it out"),
    ({'objective': c.ClassificationObjective()}, 'has no head for classes; choose --config.objective.name'),
    ({'ema': 0.0}, 'whose teacher is the EMA, and config.ema is 0; set it'),
    (
      {'data': dataclasses.replace(CONFIG.data, cutmix=1.0)},
      'cannot be with config.data.cutmix 1.0; leave it',
    ),
    ({'objective': dataclasses.replace(CONFIG.objective, masked=(0.0, 0.5))}, 'two shares with 0 < low'),
    (
      {'objective': dataclasses.replace(CONFIG.objective, local_size=(5, 5))},
      r'local_size \(5, 5\) does not',
    ),
  ],
  ids=['a ViT', 'a pool', 'classes', 'no teacher', 'mixed', 'no mask', 'local size'],
)
def test_what_it_cannot_train_is_refused(changes, said):
  with pytest.raises(UserError, match=said):
    c.from_config_dict(c.as_json(dataclasses.replace(CONFIG, **changes)))
