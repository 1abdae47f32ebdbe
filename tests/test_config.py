"""The config of a run: round trips, overrides, and what may change on resume."""

import contextlib
import dataclasses
import json

import pytest

from vit_jax import config as c
from vit_jax import options
from vit_jax.evaluation.base import EVALUATORS
from vit_jax.foundation import durations
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import MODELS
from vit_jax.models.efficientnet import EfficientNetConfig
from vit_jax.models.moco import MocoConfig
from vit_jax.objectives.base import OBJECTIVES
from vit_jax.objectives.contrastive_views import ContrastiveViewsObjective

FULL = c.Config(
  evaluators={
    'val': c.ClassificationEvaluatorConfig(split='test', batch_size=8),
    'web': c.FewShotEvaluatorConfig(shots=(1, 5), grid=(1.0, 0.1)),
  },
  optimizer=c.OptimizerConfig(lr_multipliers=(('^head', 10.0),), freeze=('^blocks',), clip_norm=1.0),
)
MIXER = c.MixerConfig('custom', 4, 32, 48, 2, 24, unroll=True)
RESNET = dataclasses.replace(FULL, model=c.ResNetConfig('R50x1', blocks=(1, 2)))
MASKED = c.Config(
  model=c.ViTConfig(pool='none', mask_token=True), objective=c.MaskedPatchesObjective(label_smoothing=0.1)
)
DISTILLED = c.Config(objective=c.DistillationObjective(teachers='runs/one,runs/other', teacher_size=(96, 96)))


@pytest.mark.parametrize(
  'config',
  [c.Config(), FULL, dataclasses.replace(FULL, model=MIXER), RESNET, MASKED, DISTILLED],
  ids=['default', 'full', 'mixer', 'resnet', 'masked_patches', 'distillation'],
)
def test_a_config_survives_ml_collections_and_json(config):
  assert c.from_config_dict(c.to_config_dict(config)) == config
  assert c.from_config_dict(json.loads(json.dumps(c.as_json(config)))) == config


@pytest.mark.parametrize(
  ('names', 'ema', 'said'),
  [
    ({'train': c.ClassificationEvaluatorConfig()}, 0.0, 'would write train/… to metrics.jsonl'),
    (
      {'a': c.ClassificationEvaluatorConfig(), 'a_ema': c.ClassificationEvaluatorConfig()},
      *(0.9, 'would write a_ema/… to metrics.jsonl'),
    ),
    (
      {'a': c.FewShotEvaluatorConfig(shots=(5, 1)), 'a_5shot': c.ClassificationEvaluatorConfig()},
      *(0.0, 'would write a_5shot/… to metrics.jsonl'),
    ),
    ({'a/b': c.ClassificationEvaluatorConfig()}, 0.0, "a/b has a '/' in its name"),
    ({'a': c.ClassificationEvaluatorConfig(), 'a_ema': c.FewShotEvaluatorConfig()}, 0.0, ''),
    ({'train_all': c.FewShotEvaluatorConfig(shots=(5, 5))}, 0.9, ''),
  ],
)
def test_evaluators_whose_metrics_lie_in_the_place_of_others_are_refused(names, ema, said):
  config = c.Config(evaluators=names, ema=ema)
  with pytest.raises(UserError, match=said) if said else contextlib.nullcontext():
    config.check_evaluator_names()


def test_a_section_has_the_options_of_its_own_kind_only():
  assert 'model.blocks' in c.flatten(RESNET) and 'model.heads' not in c.flatten(RESNET)
  assert 'evaluators.val.shots' not in c.flatten(FULL) and 'evaluators.web.real_labels' not in c.flatten(FULL)


@pytest.mark.parametrize(
  'best', ['val_ema/loss', 'val/accuracy', 'web_ema_5shot/accuracy', 'web_1shot/accuracy']
)
def test_best_may_name_what_evaluators_give_of_the_parameters_or_their_ema(best):
  config = dataclasses.replace(FULL, ema=0.9, checkpoint=c.CheckpointConfig(best=best))
  assert c.from_config_dict(c.to_config_dict(config)) == config


@pytest.mark.parametrize(
  ('change', 'differing'),
  [
    ({'mesh.fsdp': 4, 'checkpoint.keep': 9, 'log_every': '1 steps', 'step_limit': 5.0}, []),
    ({'model.remat': 'block', 'mesh.fsdp': 2}, []),
    ({'model.unroll': True, 'model.attention': 'xla', 'data.threads': 9, 'data.prefetch': 1}, []),
    ({'model.attention_dropout': 0.1}, ['model.attention_dropout']),  # whose name begins as model.attention
    ({'model.depth': 2, 'seed': 1}, ['model.depth', 'seed']),
    ({'optimizer.b1': 0.9, 'optimizer.b2': 0.999}, []),  # the optimizer's own
    ({'optimizer.b1': 0.8}, ['optimizer.b1']),
    (
      {'optimizer.name': 'sgd', 'optimizer.momentum': 0.9},
      ['optimizer.b1', 'optimizer.b2', 'optimizer.momentum', 'optimizer.name'],
    ),
    ({'evaluators.val.every': '2 epochs'}, ['evaluators.val.every']),
    ({'ema': 0.9}, ['ema']),
  ],
)
def test_a_run_may_be_resumed_with_other_options_that_change_no_result(change, differing):
  values = c.to_config_dict(FULL)
  values.update_from_flattened_dict(change)
  assert c.differing_options(FULL, c.from_config_dict(values)) == differing


@pytest.mark.parametrize(
  ('config', 'learns_by_parts'),
  [
    (c.Config(), False),
    (c.Config(model=EfficientNetConfig(variant='B0')), True),  # running statistics
    (c.Config(model=MocoConfig(), objective=ContrastiveViewsObjective(), ema=0.99), True),  # negatives
  ],
)
def test_a_run_that_learns_by_parts_of_a_batch_keeps_their_number(config, learns_by_parts):
  whole, parts = (dataclasses.replace(config, accumulation=number) for number in (1, 8))
  assert c.differing_options(config, whole) == []
  assert c.differing_options(config, parts) == (['accumulation'] if learns_by_parts else [])


@pytest.mark.parametrize('name', [each for each in OBJECTIVES.names() if OBJECTIVES[each].compares_examples])
def test_repeats_are_refused_where_examples_are_compared_and_dropped_where_an_older_run_has_them(name):
  models = {'contrastive': 'two_towers', 'contrastive_views': 'moco', 'self_distillation': 'dino'}
  config = c.Config(model=MODELS[models[name]](), objective=OBJECTIVES[name](), ema=0.99)
  repeated = dataclasses.replace(config, data=c.DataConfig(repeats=2))
  with pytest.raises(UserError, match=r'^config\.data\.repeats is 2, and .* the same; set it to 1\.$'):
    c.from_config_dict(c.to_config_dict(repeated))
  assert c.from_config_dict(c.as_json(repeated)) == config


def test_resumable_options_are_options():
  flat = [name for config in (FULL, dataclasses.replace(FULL, model=MIXER)) for name in c.flatten(config)]
  for name in options.resumable(c.Config):
    assert any(each == name or (name.endswith('.') and each.startswith(name)) for each in flat), name


@pytest.mark.parametrize(
  ('text', 'steps'),
  [
    ('90 epochs', 900),
    ('20000 steps', 20000),
    ('1e6 examples', 10000),
    ('5%', 50),
    ('0.26 epochs', 3),
  ],
)
def test_durations_in_steps_are_rounded_to_the_nearest(text, steps):
  assert durations.nearest(durations.steps(text, batch_size=100, examples=1000, total=1000)) == steps


def test_a_total_in_percent_is_refused():
  with pytest.raises(UserError, match=r'config\.total'):
    durations.steps('5%', batch_size=1, examples=1)


@pytest.mark.parametrize(
  'section',
  [
    *(registry[name] for registry in (MODELS, OBJECTIVES, EVALUATORS) for name in registry.names()),
    c.Config,
    c.DataConfig,
    c.InitConfig,
    c.OptimizerConfig,
    c.ScheduleConfig,
    c.MeshConfig,
    c.CheckpointConfig,
  ],
)
def test_every_option_has_a_type_that_is_checked(section):
  values = options.as_dict(section())
  assert options.from_dict(section, values) == section()
  for option in values:
    with pytest.raises(UserError, match=rf'config\.{option} is '):
      options.from_dict(section, values | {option: object()})
