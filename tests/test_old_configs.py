"""Configs that the first edition wrote into its workdirs mean what they meant then.

The files of fixtures/old_configs are of commit 2314a29: config.json of three runs, and in recipes.json what
config.json would be of runs of 'FILE:ARGUMENT' in configs/.
"""

import dataclasses
import json
import pathlib

import pytest
from config_files import load

from vit_jax import config as config_lib
from vit_jax.foundation.errors import UserError
from vit_jax.models.mixer import MixerConfig
from vit_jax.models.resnet import ResNetConfig
from vit_jax.models.vit_config import ViTConfig
from vit_jax.options import old_configs
from vit_jax.training import preprocessing

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / 'tests' / 'fixtures' / 'old_configs'


def old(name):
  return json.loads((FOLDER / f'{name}.json').read_text())


RECIPES = old('recipes')


@pytest.mark.parametrize('recipe', RECIPES)
def test_a_recipe_is_the_same_run(recipe):
  name, _, argument = recipe.partition(':')
  there, here = config_lib.from_config_dict(RECIPES[recipe]), load(name, argument or None)
  here = preprocessing.as_begun(here, there)
  assert config_lib.differing_options(there, here) == []
  # The first edition spelled out the decays of the optimizer.
  there, here = (
    dataclasses.replace(config, optimizer=config.optimizer.with_defaults()) for config in (there, here)
  )
  differing = dict(config_lib.flatten(there).items() ^ config_lib.flatten(here).items())
  chosen_at_the_start = {'accumulation', 'mesh.fsdp', 'model.remat', 'model.unroll', 'data.threads'}
  assert differing.keys() <= chosen_at_the_start | {'data.cache'}  # a cache changes no bit


@pytest.mark.parametrize(
  ('name', 'argument', 'changed_on_the_command_line'),
  [
    ('quickstart', None, set()),
    ('masked_patch', 'cifar10', {'total', 'data.max_per_class', 'evaluators.probe.every'}),
  ],
)
def test_a_run_of_the_first_edition_is_the_same_run(name, argument, changed_on_the_command_line):
  there, here = config_lib.from_config_dict(old(name)), preprocessing.resolved(load(name, argument))
  assert isinstance(there.objective, type(here.objective))
  assert set(config_lib.differing_options(there, here)) == changed_on_the_command_line


def test_renamed_options_keep_their_values():
  config = config_lib.from_config_dict(old('sgd_ema_pre_logits'))
  assert config.ema == 0.9
  assert config.optimizer.name == 'sgd'
  assert isinstance(config.model, ViTConfig)
  assert config.model.pre_logits_size == old('sgd_ema_pre_logits')['model']['representation_size'] > 0


@pytest.mark.parametrize(
  ('variant', 'kind'),
  [('B/16', ViTConfig), ('R50+B/16', ViTConfig), ('Mixer-B/16', MixerConfig), ('R50x1', ResNetConfig)],
)
def test_flat_model_section_becomes_that_of_its_architecture(variant, kind):
  values = old('quickstart')
  flat = dict.fromkeys(values['model'])  # of the first edition's options, those that decide the architecture
  model = {name: value for name, value in flat.items() if value is not None} | {'variant': variant}
  assert config_lib.from_config_dict({'model': model, 'data': {'image_size': [224, 224]}}).model == kind(
    variant=variant
  )


@pytest.mark.parametrize('name', ['quickstart', 'masked_patch', 'sgd_ema_pre_logits'])
def test_migration_is_done_once(name):
  config = config_lib.from_config_dict(old(name))
  assert config_lib.from_config_dict(json.loads(json.dumps(config_lib.as_json(config)))) == config


def test_the_section_of_few_shot_probes_becomes_the_evaluators_own():
  evaluator = old('masked_patch')['evaluators']['probe']
  assert evaluator['type'] == 'fewshot' and evaluator['fewshot']['pool'] == 'gap'
  config = config_lib.from_config_dict(old('masked_patch'))
  probe = {
    name: tuple(value) if isinstance(value, list) else value for name, value in evaluator['fewshot'].items()
  }
  given = {name: evaluator[name] for name in ('source', 'split', 'crop', 'resize', 'batch_size', 'every')}
  assert config.evaluators['probe'] == config_lib.FewShotEvaluatorConfig(**given, **probe)


def test_a_loss_becomes_its_objective():
  loss = {'loss': {'name': 'sigmoid', 'label_smoothing': 0.1}}
  objective = config_lib.from_config_dict(old('quickstart') | loss).objective
  assert objective == config_lib.ClassificationObjective('sigmoid', 0.1)


def test_a_mixer_keeps_its_sizes():
  sizes = {'patch': 4, 'width': 32, 'mlp_dim': 48, 'depth': 2, 'tokens_mlp_dim': 24}
  model = old('quickstart')['model'] | sizes | {'variant': 'custom', 'heads': None, 'pool': 'gap'}
  config = config_lib.from_config_dict(old('quickstart') | {'model': model})
  assert config.model == MixerConfig('custom', **sizes, unroll=False, remat='none')


@pytest.mark.parametrize('locality, mlp', [(True, 'local'), (False, 'dense')])
def test_mlps_with_locality_have_a_name(locality, mlp):
  model = old('quickstart')['model'] | {'mlp_locality': locality}
  config = config_lib.from_config_dict(old('quickstart') | {'model': model})
  assert isinstance(config.model, ViTConfig)
  assert config.model.mlp == mlp


def test_a_config_of_this_version_is_not_changed():
  """Such as the momentum of an optimizer that has none, which must not be passed over."""
  values = config_lib.as_json(load('quickstart'))
  values['optimizer']['momentum'] = 0.9
  with pytest.raises(UserError, match="the optimizer 'adam' does not take momentum"):
    config_lib.from_config_dict(values)


@pytest.mark.parametrize(
  ('old', 'new'),
  [
    ('test_average/accuracy', 'test_ema/accuracy'),
    ('web_average_5shot/accuracy', 'web_ema_5shot/accuracy'),
    ('test/mean_average_precision', 'test/mean_average_precision'),
  ],
)
def test_only_the_evaluator_of_the_best_metric_is_renamed(old, new):
  assert old_configs.migrated({'checkpoint': {'best': old}})['checkpoint']['best'] == new


def test_a_value_range_is_a_mean_and_a_deviation():
  config = config_lib.from_config_dict({'data': {'value_range': [0.0, 255.0]}})
  assert config.data.value_range == pytest.approx((0.0, 255.0))
  assert config.data.interpolation == 'bilinear'
