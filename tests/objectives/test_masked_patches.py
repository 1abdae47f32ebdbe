"""Masked patch prediction: what is corrupted, what is predicted, and a fine-tuning that begins from it."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny
from flax import nnx
from scipy.special import log_softmax

from vit_jax import config as c
from vit_jax import load
from vit_jax.foundation.errors import UserError
from vit_jax.objectives import masked_patches
from vit_jax.training import loop

CONFIG = c.Config(
  total='12 steps',
  batch_size=16,
  model=tiny.options(patch=2, pool='none', mask_token=True, class_token=True, register_tokens=1),
  data=c.DataConfig(image_size=(8, 8), channels=1, crop='random', padding=1, flip=False),
  objective=c.MaskedPatchesObjective(label_smoothing=0.1),
  optimizer=c.OptimizerConfig(name='sgd'),
  schedule=c.ScheduleConfig(learning_rate=0.1),
  evaluators={'probe': c.FewShotEvaluatorConfig(pool='gap', seeds=1, shots=(2,))},
  mesh=c.MeshConfig(),
)


@jax.jit
def corrupt(patches, mask_token, keys):
  """(patches with the corruption of these keys, which of them are corrupted)."""
  corruption = masked_patches.draw_corruption(keys, patches.shape[1])
  return corruption.apply(patches, mask_token), corruption.corrupted


@pytest.mark.slow
def test_half_of_the_patches_are_masked_exchanged_or_kept():
  b, n = 400, 20
  patches = np.arange(b * n, dtype=np.float32).reshape(b, n, 1)
  result, corrupted = map(np.asarray, corrupt(patches, np.full((1, 1, 1), -1.0), tiny.keys(b)))
  assert (corrupted.sum(axis=1) == n // 2).all()
  np.testing.assert_allclose(corrupted.mean(axis=0), 0.5, atol=0.11)  # four deviations of 400 draws
  np.testing.assert_array_equal(result[~corrupted], patches[~corrupted])

  masked = result[..., 0] == -1
  exchanged = ~masked & (result != patches)[..., 0]
  assert (exchanged <= corrupted).all()
  image = np.broadcast_to(np.arange(b)[:, None], (b, n))
  np.testing.assert_array_equal(result[exchanged][:, 0] // n, image[exchanged])  # of the same image
  shares = [masked.sum(), exchanged.sum(), (corrupted & ~masked & ~exchanged).sum()]
  np.testing.assert_allclose(np.divide(shares, corrupted.sum()), [0.8, 0.1, 0.1], atol=0.025)

  alone, _ = corrupt(patches[7:8], np.full((1, 1, 1), -1.0), tiny.keys(b)[7:8])
  np.testing.assert_array_equal(alone[0], result[7])  # an image's own keys decide


def test_colours_are_three_bits_of_each_channels_mean():
  rng = np.random.default_rng(0)
  pixels = rng.integers(0, 256, (2, 6, 8, 3)).astype(np.uint8)
  pixels[0, :3, :2] = 255  # the brightest colour of all
  found = masked_patches.colours(pixels / np.float32(127.5) - 1, (2, 4), (-1.0, 1.0))
  for b, row, column in np.ndindex(2, 2, 4):
    mean = pixels[b, 3 * row : 3 * row + 3, 2 * column : 2 * column + 2].astype(float).mean(axis=(0, 1))
    red, green, blue = np.minimum(np.floor(mean / 255 * 8), 7)
    assert found[b, 4 * row + column] == 64 * red + 8 * green + blue
  assert found[0, 0] == 511
  with pytest.raises(UserError, match='does not divide into 4 × 4 patches'):
    masked_patches.colours(np.zeros((1, 6, 8, 3)), (4, 4), (-1.0, 1.0))


@pytest.mark.slow
def test_the_loss_is_the_mean_over_images_of_their_corrupted_patches():
  graphdef, params = tiny.build(dataclasses.replace(CONFIG.model, patch=4), num_classes=512)
  model = nnx.merge(graphdef, params)
  images, keys = tiny.images(), tiny.keys()
  loss, metrics = CONFIG.objective.loss_and_metrics(model, {'image': images}, keys, c.DataConfig())
  patches, corrupted = corrupt(
    model.patches(images), model.mask_token[...], jax.vmap(jax.random.split)(keys)[:, 0]
  )
  tokens = model.encode(model.add_positions(patches, images))
  logits = np.asarray(model.head(tokens), np.float64)[:, 2:]
  labels = np.asarray(masked_patches.colours(images, (3, 2), (-1.0, 1.0)))
  losses, hits = [], []
  for b in range(3):
    log_probabilities = log_softmax(logits[b], axis=-1)[np.asarray(corrupted[b])]
    own = labels[b][np.asarray(corrupted[b])]
    expected = -0.9 * log_probabilities[np.arange(3), own] - 0.1 * log_probabilities.mean(axis=-1)
    losses.append(expected.mean())
    hits.append((log_probabilities.argmax(axis=-1) == own).mean())
  np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-5)
  np.testing.assert_allclose(metrics['accuracy'], np.mean(hits), rtol=1e-6)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_can_be_fine_tuned_to_classify(tmp_path, capsys):
  loop.train(CONFIG, tmp_path / 'masked')
  assert 'probe_2shot/accuracy' in (tmp_path / 'masked/metrics.jsonl').read_text()
  model = load(tmp_path / 'masked')
  assert model(tiny.images(2, (8, 8), 1)).shape == (2, 18, 8) and model.class_names is None

  labelled = dataclasses.replace(
    CONFIG,
    total='2 steps',
    model=dataclasses.replace(CONFIG.model, pool='token', mask_token=False),
    objective=c.ClassificationObjective(),
    evaluators={},
    init=c.InitConfig(checkpoint=str(tmp_path / 'masked')),
  )
  capsys.readouterr()
  loop.train(labelled, tmp_path / 'labelled')
  output = capsys.readouterr().out
  assert 'ignored: head/bias (8,), head/kernel (32, 8), mask_token (1, 1, 32)' in output
  assert 'reinitialised: head/bias (10,), head/kernel (32, 10)' in output


NEEDED = 'it needs a Vision Transformer with --config.model.pool=none and --config.model.mask_token=True'


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'model.pool': 'gap'}, NEEDED),
    ({'data.num_classes': 5}, 'whose classes are colours; leave config.data.num_classes out'),
    ({'objective.name': 'classification', 'evaluators': {}}, 'which gives an image no logits'),
  ],
)
def test_options_that_it_cannot_train_are_refused(changes, message):
  values = c.to_config_dict(CONFIG)
  with values.unlocked():
    values.update_from_flattened_dict(changes)
  with pytest.raises(UserError, match=message):
    c.from_config_dict(values)


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    (
      {'evaluators': {'test': c.ClassificationEvaluatorConfig()}},
      r"evaluators\.test\.type is 'classification', .* of masked patch prediction; choose 'fewshot'\.",
    ),
    ({'model': tiny.mixer()}, 'it needs a Vision Transformer'),
  ],
  ids=['evaluator of classes', 'model without a mask token'],
)
def test_evaluators_and_models_that_do_not_fit_are_refused(change, said):
  with pytest.raises(UserError, match=said):
    c.from_config_dict(c.as_json(dataclasses.replace(CONFIG, **change)))
