"""A head that begins as a probe, against scikit-learn; and the recipe that fits its data."""

import dataclasses
import json

import chex
import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from scipy import special
from sklearn import linear_model

import vit_jax
from vit_jax import config as c
from vit_jax import recipes
from vit_jax.data import sources
from vit_jax.data.bad_images import BadImages
from vit_jax.evaluation import logistic
from vit_jax.evaluation.features import Features
from vit_jax.foundation.errors import UserError
from vit_jax.training import console, loop, probe_head
from vit_jax.training.feature_files import FeatureFiles
from vit_jax.training.initialization import initial_state
from vit_jax.training.probe_head import with_probe
from vit_jax.training.run import evaluate, open_training
from vit_jax.training.timeline import Timeline

pytestmark = pytest.mark.slow


def examples(classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(seed)
  labels = np.repeat(np.arange(classes), 20)
  centres = np.random.default_rng(9).normal(size=(classes, 8))
  return (3 + centres[labels] + 0.7 * rng.normal(size=(len(labels), 8))).astype(np.float32), labels


@pytest.mark.parametrize('classes', [2, 4])
def test_head_of_raw_features_gives_the_probabilities_of_scikit_learns_regression(classes):
  features, labels = examples(classes)
  head = logistic.head([Features(features, labels)], classes)
  mean, scale = features.mean(axis=0, dtype=float), features.std(axis=0, dtype=float) + 1e-5
  # Of two classes scikit-learn penalises the difference of their weights, and we the weights of each: half as much.
  c_of_theirs = (2 if classes == 2 else 1) / head.l2
  theirs = linear_model.LogisticRegression(C=c_of_theirs, max_iter=5000, tol=1e-8).fit(
    (features - mean) / scale, labels
  )
  new = examples(classes, seed=1)[0]
  ours = special.softmax(new @ head.kernel + head.bias, axis=1)
  np.testing.assert_allclose(ours, theirs.predict_proba((new - mean) / scale), atol=1e-3)
  assert 0.5 < head.accuracy <= 1


def test_class_without_examples_is_never_predicted():
  features, labels = examples(3)
  head = logistic.head([Features(features, labels * 2)], 6)  # classes 0, 2 and 4
  assert set((features @ head.kernel + head.bias).argmax(axis=1)) == {0, 2, 4}


def test_few_images_that_are_easy_to_tell_apart_get_probabilities_near_one():
  """All penalties are right in cross-validation; the strongest would leave a share of hardly more than 1 / classes."""
  rng = np.random.default_rng(0)
  labels = np.repeat(np.arange(4), 18)
  centres = 3 * np.random.default_rng(1).normal(size=(4, 64))
  features = centres[labels] + rng.normal(size=(72, 64))
  head = logistic.head([Features(features, labels)], 4)
  new = np.repeat(np.arange(4), 25)
  logits = (centres[new] + rng.normal(size=(100, 64))) @ head.kernel + head.bias
  shares = special.softmax(logits, axis=1)
  assert head.accuracy == 1 and (shares.argmax(axis=1) == new).all()
  assert shares[np.arange(100), new].mean() > 0.95


def config(**changes) -> c.Config:
  model = c.ViTConfig(variant='custom', patch=4, width=32, mlp_dim=32, depth=1, heads=2, pool='gap')
  return dataclasses.replace(
    c.Config(
      total='2 steps',
      batch_size=16,
      model=model,
      data=c.DataConfig(source='digits', image_size=(8, 8), crop='resize', flip=False),
      evaluators={'test': c.ClassificationEvaluatorConfig(split='test')},
      init=c.InitConfig(head='probe'),
      ema=0.9,
    ),
    **changes,
  )


def test_probe_is_accurate_before_the_first_step_and_leaves_other_parameters_alone(tmp_path):
  run, source = open_training(config())
  before = initial_state(run.program, 0, {})
  others = jax.tree.map(np.asarray, {name: leaf for name, leaf in before.params.items() if name != 'head'})
  state, text = with_probe(run, source, before, before.variables, BadImages(), tmp_path)
  assert 'logistic regression of the features of 1,437 images' in text
  scores = evaluate(state, run.open_evaluators())
  assert scores['test/accuracy'] > 0.8 and scores['test_ema/accuracy'] == scores['test/accuracy']
  after = {name: leaf for name, leaf in state.params.items() if name != 'head'}
  jax.tree.map(np.testing.assert_array_equal, after, others)


def test_logits_of_two_heads_are_those_of_the_probe(tmp_path, monkeypatch):
  rng = np.random.default_rng(0)
  probe = logistic.Head(rng.normal(size=(32, 10)), rng.normal(size=10), 1.0, 0.5)
  monkeypatch.setattr(logistic, 'head', lambda *unused, **options: probe)
  model = c.ViTConfig(
    variant='custom', patch=4, width=32, mlp_dim=32, depth=1, heads=2, distillation_token=True, head_bias=-1.0
  )
  run, source = open_training(config(model=model))
  first = initial_state(run.program, 0, {})
  state, _ = with_probe(run, source, first, first.variables, BadImages(), tmp_path)
  module = nnx.merge(run.program.graphdef, state.variables)
  images = rng.normal(size=(8, 8, 8, 3)).astype(np.float32)
  expected = np.asarray(module.head_input(module.features(images))) @ probe.kernel + probe.bias
  np.testing.assert_allclose(module(images), expected, atol=1e-5)


@pytest.mark.nightly
def test_head_of_the_checkpoint_that_is_kept_is_not_probed(tmp_path, capsys):
  loop.train(config(total='1 steps', init=c.InitConfig()), tmp_path / 'first')
  kept = c.InitConfig(checkpoint=str(tmp_path / 'first'), head='probe', reinitialise=())
  still = c.ScheduleConfig(learning_rate=0.0)
  loop.train(config(total='1 steps', init=kept, schedule=still), tmp_path / 'second')
  assert "Head: the checkpoint's own, which config.init.reinitialise does not name" in capsys.readouterr().out
  first, second = (vit_jax.load(tmp_path / name).module for name in ('first', 'second'))
  np.testing.assert_array_equal(second.head.kernel[...], first.head.kernel[...])


@pytest.fixture
def photos(tmp_path):
  for number in range(40):
    path = tmp_path / 'photos' / 'ab'[number % 2] / f'{number}.png'
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((20, 20, 3), number, np.uint8)).save(path)
  return tmp_path / 'photos'


@pytest.mark.nightly
def test_damaged_photographs_stop_the_head_or_are_left_out_and_listed_as_in_training(photos, tmp_path):
  for number in (2, 7):
    (photos / 'ab'[number % 2] / f'{number}.png').write_bytes(b'')
  data = c.DataConfig(source=f'folder:{photos}', image_size=(8, 8), crop='resize', val_fraction=0.1)
  damaged = config(data=data, evaluators={}, ema=0.0, batch_size=8, total='10 steps')
  with pytest.raises(
    UserError, match=r"png is empty .*, or train without it: config.data.bad_images='replace'"
  ):
    loop.train(damaged, tmp_path / 'stopped')
  data = dataclasses.replace(data, bad_images='replace')
  loop.train(dataclasses.replace(damaged, data=data), tmp_path / 'run')
  listed = [json.loads(line) for line in (tmp_path / 'run/report/bad_images.jsonl').read_text().splitlines()]
  in_training = {str(photos / name) for name in ('a/2.png', 'b/7.png')} & set(_names(data))
  assert {line['name'] for line in listed} == in_training and in_training
  assert all(line['step'] == 0 for line in listed)


def _names(data: c.DataConfig) -> list[str]:
  """The paths of the training images."""
  source = sources.open_training(data, 0)
  return [source[number].name for number in range(len(source))]


def test_recipe_of_a_folder_fits_its_images_and_the_papers_stays_by_name(photos):
  head, every, paper = (
    recipes.chosen_finetuning(f'b16,folder:{photos}{recipe}') for recipe in ('', ',all', ',paper')
  )
  assert head == recipes.chosen_finetuning(f'b16,folder:{photos},head')
  assert (head.total, head.batch_size, head.data.image_size) == ('0 steps', 16, (224, 224))
  assert head.init.head == every.init.head == 'probe' and paper.init.head == 'constant'
  assert head.optimizer.freeze and not every.optimizer.freeze
  assert every.total == '20 epochs' and head.evaluators['val'].split == 'val'
  assert (paper.total, paper.batch_size, paper.data.image_size) == ('2500 steps', 512, (384, 384))
  assert recipes.chosen_finetuning('b16,cifar10') == recipes.finetuning('b16', 'cifar10')


@pytest.mark.parametrize('recipe', ['', ',paper'])
def test_of_data_with_no_split_but_train_a_tenth_is_held_out(recipe, tmp_path):
  for number in range(40):
    path = tmp_path / 'train' / 'ab'[number % 2] / f'{number}.jpg'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
  config = recipes.chosen_finetuning(f'b16,folder:{tmp_path}{recipe}')
  (evaluator,) = config.evaluators.values()
  held = sources.open_source(config.data.source, evaluator.split, data=config.data)
  assert evaluator.split == 'val' and len(held) == 4
  assert not {held[number].name for number in range(4)} & set(_names(config.data))
  config = recipes.chosen_finetuning(f'b16,folder:{tmp_path}:train[:90%]{recipe}')
  assert config.data.fold is None  # the rest is named by an option


def test_absurd_number_of_epochs_is_said_with_the_remedy():
  timeline = Timeline.of('2500 steps', batch_size=512, examples=300)
  assert '300 images are seen 4,267 times each' in console.length_warning(timeline)


def head_alone(**changes) -> c.Config:
  """The head fitted to features of digits, which are seven files, and no step behind it."""
  return config(total='0 steps', ema=0.0, **changes)


@pytest.mark.nightly
@pytest.mark.slow
def test_features_that_a_killed_run_had_computed_are_not_computed_again_and_the_head_has_the_same_bits(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(probe_head, '_FILE', 208)
  undisturbed = loop.train(head_alone(), tmp_path / 'undisturbed')
  assert not (tmp_path / 'undisturbed/features').exists()
  append, kept = FeatureFiles.append, []

  def kill(self, part):
    if len(kept) == 3:
      raise KeyboardInterrupt
    append(self, part)
    kept.append(len(part.labels))

  with monkeypatch.context() as patched:
    patched.setattr(FeatureFiles, 'append', kill)
    with pytest.raises(KeyboardInterrupt):
      loop.train(head_alone(), tmp_path / 'killed')
  newest = sorted((tmp_path / 'killed/features').glob('*/*.npz'))[-1]
  newest.write_bytes(newest.read_bytes()[:-400])  # a disk that lost a part of the last file
  monkeypatch.setattr(FeatureFiles, 'append', lambda self, part: kept.append(part) or append(self, part))
  capsys.readouterr()
  resumed = loop.train(head_alone(), tmp_path / 'killed')
  assert 'the features of 416 images were there from before' in capsys.readouterr().out
  assert kept[:3] == [208] * 3 and len(kept[3:]) == 5  # of seven
  chex.assert_trees_all_equal(resumed.params, undisturbed.params)
  kept.clear()
  again = loop.train(head_alone(), tmp_path / 'killed')
  assert not kept
  chex.assert_trees_all_equal(again.params, undisturbed.params)
  lines = [json.loads(line) for line in (tmp_path / 'killed/metrics.jsonl').read_text().splitlines()]
  assert [line['step'] for line in lines] == [0] and lines[0]['test/accuracy'] > 0.8


@pytest.mark.slow
def test_features_beyond_the_bound_of_memory_give_the_same_head(monkeypatch):
  features, labels = examples(4)
  order = np.random.default_rng(0).permutation(len(labels))
  parts = [Features(features[rows], labels[rows]) for rows in np.array_split(order, 5)]
  weights = np.array([1.0, 2.0, 0.5, 1.0])
  in_memory = logistic.head(parts, 4, weights=weights)
  monkeypatch.setattr(logistic, '_MEMORY', 0)
  chex.assert_trees_all_equal(logistic.head(parts, 4, weights=weights), in_memory)
  scale = logistic.Standard([features])
  theirs = linear_model.LogisticRegression(
    C=1 / in_memory.l2, max_iter=5000, tol=1e-8, class_weight=dict(enumerate(weights))
  ).fit(scale(features), labels)
  logits = features @ in_memory.kernel + in_memory.bias
  ours = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  np.testing.assert_allclose(ours, theirs.predict_proba(scale(features)), atol=2e-3)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_fine_tuning_that_ends_below_where_it_began_says_so_and_keeps_the_beginning(tmp_path, capsys):
  harmful = config(
    total='6 steps',
    ema=0.0,
    schedule=c.ScheduleConfig(learning_rate=0.5),
    checkpoint=c.CheckpointConfig(best='test/accuracy', keep=1),
  )
  loop.train(harmful, tmp_path)
  first, *_, last = (json.loads(line) for line in (tmp_path / 'metrics.jsonl').read_text().splitlines())
  assert first['step'] == 0 and last['test/accuracy'] < first['test/accuracy']
  began, ended = (f'{line["test/accuracy"]:.2%}' for line in (first, last))
  out = capsys.readouterr().out
  assert f'step 0: test/accuracy {began} of 360 images' in out
  assert f'Training did harm: test/accuracy ends at {ended} and was {began} before the first step' in out
  assert sorted(path.name for path in (tmp_path / 'checkpoints').iterdir()) == ['0', '6']


@pytest.mark.slow
def test_a_head_that_is_trained_on_crops_says_that_its_features_are_computed_in_each_epoch(tmp_path, capsys):
  run, _ = open_training(config(optimizer=c.OptimizerConfig(freeze=('^(?!head/)',))))
  assert 'only the head is trained, and its features are computed in each epoch anew' in console.length_text(
    run
  )
  assert 'only the head' not in console.length_text(open_training(config())[0])


def test_a_run_without_steps_or_probe_is_refused():
  with pytest.raises(
    UserError, match=r"config.total is '0 steps', in which nothing is learned; .*init.head='probe'"
  ):
    c.from_config_dict(c.as_json(c.Config(total='0 steps')))
