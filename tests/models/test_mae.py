"""Masked autoencoders: the loss against NumPy, what is refused, and a fine-tuning that begins from one."""

import dataclasses

import jax
import numpy as np
import numpy_vit
import pytest
import tiny
from flax import nnx

from vit_jax import config as c
from vit_jax import recipes
from vit_jax.checkpoint.manager import Manager
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.training import initialization, loop

MODEL = tiny.mae(patch=2)
CONFIG = c.Config(
  total='4 steps',
  batch_size=8,
  model=MODEL,
  data=c.DataConfig(image_size=(8, 8), channels=1),
  objective=c.MaeObjective(),
  optimizer=c.OptimizerConfig(name='sgd', clip_norm=1.0),
  evaluators={'probe': c.FewShotEvaluatorConfig(pool='gap', seeds=1, shots=(2,))},
)


def loss_of(model, images, keys, **options):
  graphdef, params = tiny.build(model, num_classes=0)
  objective = c.MaeObjective(**options)

  def loss(params):
    network = nnx.merge(graphdef, params)
    return objective.loss_and_metrics(network, {'image': images}, keys, c.DataConfig())[0]

  with jax.default_matmul_precision('highest'):
    return params, jax.jit(loss)(params)


def waves(grid, width, class_token):
  """MAE's sines and cosines, one number after the other."""
  table = np.zeros((class_token + grid[0] * grid[1], width))
  for patch, (row, column) in enumerate(np.ndindex(*grid)):
    for i in range(width):
      part, number = divmod(i, width // 4)
      angle = (column, column, row, row)[part] / 10_000 ** (number / (width // 4))
      table[class_token + patch, i] = np.cos(angle) if part % 2 else np.sin(angle)
  return table


def reference(params, images, keys, *, normalise, depth, rate=0.75):
  """The loss in float64: what the encoder sees is cut out by hand, and the decoder is a loop over examples."""
  images, (b, height, width, _) = np.asarray(images, np.float64), images.shape
  side = len(params['patch_embedding']['kernel'])
  grid = height // side, width // side
  n = grid[0] * grid[1]
  noise = [jax.random.uniform(jax.random.fold_in(key, depth + 1), (n,)) for key in keys]
  seen = np.argsort(np.asarray(noise), axis=1)[:, : int(n * (1 - rate))]

  def drop(place, layer, z):
    if place != 'embedding':
      return z
    z = z + waves(grid, z.shape[-1], 1)
    return np.stack([z[i][[0, *(1 + seen[i])]] for i in range(b)])

  encoder = params | {'head': {'kernel': np.zeros((params['norm']['bias'].size, 1)), 'bias': 0}}
  tokens = numpy_vit.forward(encoder, images, pool='none', drop=drop)['tokens']
  params = numpy_vit.float64(params)
  decoder, losses = params['decoder'], []
  for i in range(b):
    embedded = numpy_vit.dense(tokens[i], decoder['embedding'])
    z = np.repeat(decoder['mask_token'][0], 1 + n, axis=0)
    z[0] = embedded[0]
    z[1 + seen[i]] = embedded[1:]
    z = (z + waves(grid, z.shape[-1], 1))[None]
    for layer in range(len(decoder['blocks']['attention_norm']['scale'])):
      block = numpy_vit.layer_of(decoder['blocks'], layer)
      z = numpy_vit._block(z, block, layer, 1e-6, 'gelu_tanh', lambda _, __, x: x, grid, False, None, False)
    predicted = numpy_vit.dense(numpy_vit.norm(z, decoder['norm'], 1e-6)[0, 1:], params['head'])
    of_patches = []
    for patch, (row, column) in enumerate(np.ndindex(*grid)):
      target = images[i, row * side :, column * side :][:side, :side].reshape(-1)
      if normalise:
        target = (target - target.mean()) / np.sqrt(target.var(ddof=1) + 1e-6)
      if patch not in seen[i]:
        of_patches.append(((predicted[patch] - target) ** 2).mean())
    losses.append(np.mean(of_patches))
  return np.mean(losses)


@pytest.mark.slow
@pytest.mark.parametrize('normalise', [True, False])
def test_the_loss_is_that_of_numpy(normalise):
  images, keys = tiny.images(), tiny.keys()
  params, loss = loss_of(MODEL, images, keys, normalise_patches=normalise)
  expected = reference(params, images, keys, normalise=normalise, depth=2)
  np.testing.assert_allclose(loss, expected, rtol=1e-6)
  _, alone = loss_of(MODEL, images[:1], keys[:1], normalise_patches=normalise)
  of_first = reference(params, images[:1], keys[:1], normalise=normalise, depth=2)
  np.testing.assert_allclose(alone, of_first, rtol=1e-6)  # an image's mask depends on its own key


@pytest.mark.nightly(but='False')
@pytest.mark.slow
@pytest.mark.parametrize('trained', [False, True])
def test_a_run_is_fine_tuned_by_the_encoder_alone(tmp_path, trained):
  if trained:
    loop.train(dataclasses.replace(CONFIG, evaluators={}), tmp_path / 'mae')
  else:
    _, params = tiny.build(MODEL, image_size=(8, 8), channels=1, num_classes=0)
    meta = {'config': c.as_json(CONFIG), 'class_names': [], 'examples': 9}
    with Manager(tmp_path / 'mae/checkpoints', CONFIG.checkpoint) as manager:
      manager.save(4, {'params': params}, meta)
  config = recipes.fitted(str(tmp_path / 'mae'), 'digits', 'head')
  assert type(config.model) is c.ViTConfig and config.model.position == 'learned'
  loaded, said = initialization.read_initial(config, Architecture(config.model, (8, 8), 1, 10), ())
  assert 'decoder/mask_token (1, 1, 24)' in said.partition('ignored: ')[2] and 'loaded: 22 tensors' in said
  np.testing.assert_array_equal(loaded['position_embedding'][0], np.float32(waves((4, 4), 32, 1)))


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'model': tiny.options()}, "'mae'; it needs a masked autoencoder, --config.model.name=mae"),
    ({'model': dataclasses.replace(MODEL, patch_dropout=0.0)}, r'hides none of the patches \(16\)'),
    ({'model': dataclasses.replace(MODEL, patch=8)}, r'hides none of the patches \(1\)'),
    (
      {'model': dataclasses.replace(MODEL, pool='gap')},
      'which a masked autoencoder does not have; leave it out',
    ),
    ({'model': dataclasses.replace(MODEL, position='rotary')}, "position 'rotary', of which attention knows"),
    ({'objective': c.ClassificationObjective(), 'evaluators': {}}, 'which gives an image no logits'),
    ({'data': c.DataConfig(num_classes=5)}, 'which has no classes'),
  ],
  ids=['a ViT', 'nothing hidden', 'one patch', 'a pool', 'rotary', 'classes', 'num_classes'],
)
def test_what_it_cannot_train_is_refused(changes, said):
  with pytest.raises(UserError, match=said):
    c.from_config_dict(c.as_json(dataclasses.replace(CONFIG, **changes)))
