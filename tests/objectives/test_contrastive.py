"""SigLIP's and CLIP's loss against NumPy in float64, over devices and in memory; the texts of a batch; refusals."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import run_steps
import tiny

from vit_jax import config as c
from vit_jax.foundation.errors import UserError
from vit_jax.objectives import contrastive
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.pretrained import tokenizing
from vit_jax.pretrained.captions import Captions
from vit_jax.training.run import Dataset, Run, open_training

CONFIG = c.Config(
  total='6 steps',
  batch_size=16,
  model=tiny.two_towers(patch=2),
  data=c.DataConfig(image_size=(8, 8), channels=1),
  objective=c.ContrastiveObjective(prompts=('the digit {}', '{} by hand')),
  optimizer=c.OptimizerConfig(name='sgd', clip_norm=1.0),  # Adam makes full steps of rounding errors
  evaluators={'test': c.ZeroShotEvaluatorConfig()},
)


def features(batch=24, width=20, seed=0):
  """Images and texts that belong together, each of length 1."""
  rng = np.random.default_rng(seed)
  images = rng.standard_normal((batch, width))
  texts = images + rng.standard_normal((batch, width))
  return [np.float32(each / np.linalg.norm(each, axis=1, keepdims=True)) for each in (images, texts)]


def reference(images, texts, scale, bias, loss):
  """Pair by pair in float64."""
  images, texts = np.float64(images), np.float64(texts)
  logits = scale * images @ texts.T + bias
  if loss == 'sigmoid':
    pairs = [np.log1p(np.exp(-(1 if i == j else -1) * logits[i, j])) for i, j in np.ndindex(*logits.shape)]
    return sum(pairs) / len(images)
  of_images = [np.log(np.exp(row).sum()) - row[i] for i, row in enumerate(logits)]
  of_texts = [np.log(np.exp(row).sum()) - row[i] for i, row in enumerate(logits.T)]
  return (np.mean(of_images) + np.mean(of_texts)) / 2


def loss_of(loss, sharding):
  if loss == 'softmax':
    return lambda images, texts, scale, bias: contrastive.softmax_loss(images, texts, scale)
  return lambda *arguments: contrastive.sigmoid_loss(*arguments, sharding)


def on(devices, tensor=1):
  return mesh_lib.batch_sharding(
    mesh_lib.make_mesh(c.MeshConfig(fsdp=1 + (devices > 2), tensor=tensor), jax.devices()[:devices])
  )


@pytest.mark.parametrize('loss', ['sigmoid', 'softmax'])
def test_the_loss_is_that_of_numpy_and_its_gradient_that_of_the_loss(loss):
  images, texts = features()
  arguments = images, texts, np.float32(10), np.float32(-10)
  compute = jax.jit(jax.value_and_grad(loss_of(loss, None), argnums=(0, 1, 2, 3)))
  value, gradients = compute(*arguments)
  np.testing.assert_allclose(value, reference(*arguments, loss), rtol=1e-6)
  rng, step = np.random.default_rng(1), 1e-5
  for number, gradient in enumerate(gradients):
    direction = rng.standard_normal(np.shape(gradient))
    moved = [
      [np.float64(each) + (sign * step * direction if i == number else 0) for i, each in enumerate(arguments)]
      for sign in (1, -1)
    ]
    slope = (reference(*moved[0], loss) - reference(*moved[1], loss)) / (2 * step)
    np.testing.assert_allclose(np.vdot(gradient, direction), slope, rtol=1e-5, atol=1e-7)


# The float32 of ln 100, at which a fine-tuned CLIP often is, and somewhat less.
@pytest.mark.parametrize('logarithm', [np.log(np.float32(100)), np.float32(4.5)])
@pytest.mark.parametrize('belong_together', [False, True])
def test_a_scale_at_its_cap_goes_down_again_where_the_loss_asks_for_it(logarithm, belong_together):
  images, texts = features()
  texts = texts[::-1]
  if belong_together:  # and all are close to each other, so that a larger scale has much to gain
    images = texts = (5 + images) / np.linalg.norm(5 + images, axis=1, keepdims=True)

  def expected(by):
    return reference(images, texts, np.exp(np.float64(logarithm) + by), 0, 'softmax')

  slope = (expected(1e-5) - expected(-1e-5)) / 2e-5
  assert (slope < 0) == belong_together
  if belong_together and logarithm > 4.6:
    slope = 0
  found = jax.grad(lambda s: contrastive.softmax_loss(images, texts, jnp.exp(s)))(logarithm)
  np.testing.assert_allclose(found, slope, rtol=1e-4)


@pytest.mark.parametrize('loss', ['sigmoid', 'softmax'])
def test_devices_change_neither_loss_nor_gradients(loss):
  arguments = *features(), np.float32(10), np.float32(-10)
  expected = jax.jit(jax.value_and_grad(loss_of(loss, None), argnums=(0, 1, 2, 3)))(*arguments)
  for sharding in (on(2), on(8), on(4, tensor=2)):
    placed = [jax.device_put(each, sharding) for each in arguments[:2]]
    found = jax.jit(jax.value_and_grad(loss_of(loss, sharding), argnums=(0, 1, 2, 3)))(
      *placed, *arguments[2:]
    )
    jax.tree.map(
      lambda ours, one: np.testing.assert_allclose(ours, one, rtol=1e-6, atol=1e-6), found, expected
    )


def test_memory_of_the_sigmoid_is_that_of_the_pairs_of_one_device():
  """As many images a device, on two devices and on eight."""
  needed, local = {}, 64
  for devices in (2, 8):
    sharding, batch = on(devices), local * devices
    side = jax.ShapeDtypeStruct((batch, 16), jnp.float32, sharding=sharding)
    number = jax.ShapeDtypeStruct((), jnp.float32)
    compute = jax.jit(jax.value_and_grad(loss_of('sigmoid', sharding), argnums=(0, 1)))
    compiled = compute.lower(side, side, number, number).compile()
    needed[devices] = compiled.memory_analysis().temp_size_in_bytes
    text = compiled.as_text()
    assert not re.search(rf'f32\[({batch}|{local}),{batch}\]|f32\[{batch},({local}|16)\]', text)
    assert f'f32[{local},{local}]' in text and 'collective-permute' in text
  assert needed[8] <= 1.1 * needed[2]


@pytest.mark.nightly  # what the loss adds to other steps is tested above
@pytest.mark.slow
def test_a_step_on_eight_devices_is_that_on_one():
  states = []
  for devices in (1, 8):
    program = Run(CONFIG, Dataset(160, num_classes=10), jax.devices()[:devices]).program
    text, batch = program.batch['text'], run_steps.batch(program, 0)
    numbers = np.random.default_rng(0).integers(0, 259, text.shape, np.int32)
    batch['text'] = jax.device_put(numbers, text.sharding)
    states.append(program.step(program.init(np.uint32(0)), batch))
  (one, logged), (eight, logged_too) = states
  np.testing.assert_allclose(logged['train/loss'], logged_too['train/loss'], rtol=1e-6)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), one.params, eight.params)


def test_a_batch_has_a_text_of_the_class_of_each_image():
  transformers = pytest.importorskip('transformers')
  run, source = open_training(CONFIG)
  captions, tokenizer = run.captions(), transformers.ByT5Tokenizer()
  assert isinstance(captions, Captions)
  rng, seen = np.random.default_rng(0), set()
  for index in range(20):
    text = tokenizer.decode(captions.of(source[index], rng), skip_special_tokens=True)
    name = source.class_names[source[index].label]
    assert text in (f'the digit {name}'[:11], f'{name} by hand')
    seen.add(text.endswith('hand'))
  assert seen == {True, False}
  theirs = tokenizer(['the digit é'], padding='max_length', max_length=20, return_tensors='np')['input_ids']
  np.testing.assert_array_equal(tokenizing.byte_tokens(['the digit é'], 20), theirs)


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'model': tiny.options(patch=2)}, 'it needs a text tower, --config.model.name=two_towers'),
    ({'data': dataclasses.replace(CONFIG.data, mixup=0.2)}, 'texts cannot be mixed'),
    ({'data': dataclasses.replace(CONFIG.data, num_classes=12)}, 'leave config.data.num_classes out'),
    ({'objective': c.ContrastiveObjective(prompts=())}, 'prompts is'),
    ({'model': tiny.two_towers(patch=2, text_causal=True)}, r'set config.model.text_end \(1 of bytes\)'),
    ({'model': tiny.two_towers(patch=2, pool='none')}, 'gives an image no features'),
    ({'model': tiny.two_towers(patch=2, mask_token=True)}, 'which two towers do not have'),
    (
      {'objective': c.ClassificationObjective(), 'evaluators': {}},
      'choose --config.objective.name=contrastive',
    ),
    (
      {'evaluators': {'test': c.ClassificationEvaluatorConfig()}},
      "choose 'zero_shot' or 'retrieval' or 'fewshot'",
    ),
  ],
)
def test_what_it_cannot_train_is_refused(changes, said):
  with pytest.raises(UserError, match=said):
    c.from_config_dict(c.as_json(dataclasses.replace(CONFIG, **changes)))


def test_a_token_beyond_the_vocabulary_is_refused():
  config = dataclasses.replace(CONFIG, model=tiny.two_towers(patch=2, text_vocabulary=100))
  with pytest.raises(UserError, match='to the number of the tokens'):
    Run(config, Dataset(160, ('a', 'b'))).captions()


def test_texts_of_classes_that_are_cut_to_the_same_are_refused():
  """By a run, by an evaluator and by a classifier of their names; 'Crane' and 'crane' may be the same."""
  prompts = ('a picture of the digit {}',)  # of which the model has eleven bytes
  refused = pytest.raises(
    UserError, match=r"texts 'a picture of the digit 0' and .* 1' have the same 12 tokens"
  )
  run, _ = open_training(dataclasses.replace(CONFIG, objective=c.ContrastiveObjective(prompts=prompts)))
  with refused:
    run.captions()
  evaluators = {'test': c.ZeroShotEvaluatorConfig(prompts=prompts)}
  run, _ = open_training(dataclasses.replace(CONFIG, evaluators=evaluators))
  with refused:
    run.open_evaluators()
  texts = ['Crane', 'crane', 'crane', 'sea lion', 'sea-lion']
  assert len(tokenizing.distinct(texts, lambda _: np.array([[1], [1], [1], [2], [2]]))) == 5
  with pytest.raises(UserError, match="'crane' and 'sea lion' have the same 1 tokens"):
    tokenizing.distinct(['crane', 'sea lion'], lambda texts: np.ones((len(texts), 1)))
