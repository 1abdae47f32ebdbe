"""Zero-shot evaluation in training, and what becomes of its run: a classifier of any names, and another run's start."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import tiny
from PIL import Image

import vit_jax
from vit_jax import config as c
from vit_jax.data import sources
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.pretrained import formats
from vit_jax.training import initialization, loop
from vit_jax.training.run import open_training

PROMPTS = ('the digit {}', 'a {} by hand')
CONFIG = c.Config(
  total='10 steps',
  batch_size=32,
  model=tiny.two_towers(patch=2),
  data=c.DataConfig(image_size=(8, 8), channels=1, crop='resize', flip=False),
  objective=c.ContrastiveObjective(prompts=PROMPTS),
  schedule=c.ScheduleConfig(learning_rate=3e-3),
  evaluators={'test': c.ZeroShotEvaluatorConfig(every='10 steps')},
  ema=0.9,
)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run')
  loop.train(CONFIG, folder)
  return folder


@pytest.mark.nightly(but='ema')
@pytest.mark.slow
@pytest.mark.parametrize('weights', ['raw', 'ema'])
def test_a_runs_classifier_of_names_is_what_its_evaluation_counted(run, weights):
  model = vit_jax.load(run, classes=['the digit 3', 'a 3 by hand'], weights=weights)
  assert model.num_classes == 2 and model.link == 'sigmoid' and model.class_names[0] == 'the digit 3'
  source = sources.open_source('digits', 'test', data=CONFIG.data)
  read = formats.with_texts(run, formats.read(run, weights=weights), source.class_names, PROMPTS)
  assert read.params.keys() == {'patch_embedding', 'position_embedding', 'blocks', 'norm', 'map_pool', 'head'}
  images = model.preprocess([source[index].image for index in range(len(source))])
  features = np.asarray(vit_jax.load(run, weights=weights).embeddings(images))
  np.testing.assert_allclose(np.linalg.norm(features, axis=-1), 1, rtol=1e-5)
  logits = features @ read.params['head']['kernel'] + read.params['head']['bias']
  counted = json.loads((run / 'metrics.jsonl').read_text().splitlines()[-1])
  suffix = '_ema' if weights == 'ema' else ''
  assert counted[f'test{suffix}/accuracy'] == pytest.approx(
    (logits.argmax(-1) == source.labels()).mean(), abs=1e-6
  )


@pytest.mark.slow
def test_a_run_begins_from_both_towers_of_another_or_from_its_images_alone(run):
  both = dataclasses.replace(CONFIG, init=c.InitConfig(checkpoint=str(run), weights='raw'))
  trained = pytrees.flatten(formats.read(run, weights='raw').params)
  architecture = Architecture(CONFIG.model, (8, 8), 1, 0)
  loaded, _ = initialization.read_initial(both, architecture, ())
  jax.tree.map(np.testing.assert_array_equal, loaded, trained)
  tower = architecture.model.for_classification()
  images = dataclasses.replace(both, model=tower, objective=c.ClassificationObjective(), evaluators={})
  loaded, said = initialization.read_initial(
    images, dataclasses.replace(architecture, model=tower, num_classes=10), ()
  )
  assert loaded.keys() == {path for path in trained if not path.startswith(('text_tower/', 'logit_'))}
  assert 'text_tower/embedding' in said.partition('ignored: ')[2]


def test_captions_of_a_folder_are_the_texts_beside_its_images(tmp_path):
  for name in ('a', 'b'):
    (tmp_path / 'all' / name).mkdir(parents=True)
    Image.new('L', (8, 8)).save(tmp_path / 'all' / name / 'x.png')
    (tmp_path / 'all' / name / 'x.txt').write_text(f'this is {name}\n')
  data = dataclasses.replace(CONFIG.data, source=f'folder:{tmp_path}/all:all')
  objective = c.ContrastiveObjective(prompts=('{text}!',))
  config = dataclasses.replace(CONFIG, data=data, objective=objective, batch_size=8)
  config = dataclasses.replace(config, evaluators={'all': c.ZeroShotEvaluatorConfig(split='all')})
  opened, source = open_training(config)
  captions, rng = opened.captions(), np.random.default_rng(0)
  texts = [bytes(n - 3 for n in captions.of(source[i], rng) if n > 2).decode() for i in (0, 1)]
  assert texts == ['this is a!', 'this is b!']
  with pytest.raises(UserError, match=r'evaluators.all.prompts is \(\), and .* give one of classes'):
    opened.open_evaluators()
  (tmp_path / 'all/a/x.txt').unlink()
  with pytest.raises(UserError, match='the caption of an image, cannot be read'):
    captions.of(source[0], rng)
  digits = sources.open_source('digits', 'test', data=CONFIG.data)
  with pytest.raises(UserError, match='has no caption for'):
    captions.of(digits[0], rng)
