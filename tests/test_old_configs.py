"""Configs that the first edition wrote into its workdirs mean what they meant then.

The files of fixtures/old_configs are config.json of runs of commit 2314a29.
"""

import dataclasses
import json
import pathlib
import runpy

import pytest

from vit_jax import config as config_lib
from vit_jax.models.mixer import MixerConfig
from vit_jax.models.resnet import ResNetConfig
from vit_jax.models.vit_config import ViTConfig
from vit_jax.objectives.masked_patches import MaskedPatchesObjective

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / 'tests' / 'fixtures' / 'old_configs'


def old(name):
  return json.loads((FOLDER / f'{name}.json').read_text())


def from_file(name, argument=None):
  get_config = runpy.run_path(str(ROOT / 'configs' / f'{name}.py'))['get_config']
  return config_lib.from_config_dict(get_config(argument) if argument else get_config())


def test_quickstart_is_the_same_run():
  assert (
    config_lib.differing_options(config_lib.from_config_dict(old('quickstart')), from_file('quickstart'))
    == []
  )


def test_masked_patches_are_the_same_run():
  there, here = config_lib.from_config_dict(old('masked_patch')), from_file('masked_patch', 'cifar10')
  assert isinstance(there.objective, MaskedPatchesObjective)
  changed_on_the_command_line = {'total', 'data.max_per_class', 'evaluators.probe.every'}
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
  assert dataclasses.is_dataclass(config.model)
