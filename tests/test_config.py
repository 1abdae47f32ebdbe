"""The schema: round trips, overrides, and the messages of wrong options."""

import dataclasses
import json

import pytest

from vit_jax import config as c
from vit_jax import durations, options
from vit_jax.errors import UserError
from vit_jax.evaluation.base import EVALUATORS
from vit_jax.models.base import MODELS
from vit_jax.objectives.base import OBJECTIVES

FULL = c.Config(
  evaluators={'val': c.ClassificationEvaluatorConfig(split='test', batch_size=8)},
  optimizer=c.OptimizerConfig(lr_multipliers=(('^head', 10.0),), freeze=('^blocks',), clip_norm=1.0),
)


@pytest.mark.parametrize('config', [c.Config(), FULL])
def test_round_trips(config):
  assert c.from_config_dict(c.to_config_dict(config)) == config
  assert c.from_config_dict(json.loads(json.dumps(c.as_json(config)))) == config


def test_none_can_be_overridden():
  values = c.to_config_dict(c.Config())
  values.model.patch = 8
  values.model.stem_blocks = (3, 4, 9)
  values.schedule.learning_rate = 1  # an int where a float belongs
  config = c.from_config_dict(values)
  assert config.model.patch == 8
  assert config.model.stem_blocks == (3, 4, 9)
  assert config.schedule.learning_rate == 1.0 and isinstance(config.schedule.learning_rate, float)


def test_flatten_names_options_as_on_the_command_line():
  assert c.flatten(FULL)['evaluators.val.batch_size'] == 8


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    ({'modle': {}}, 'config.modle is not an option; did you mean config.model?'),
    ({'model': {'ptach': 3}}, 'config.model.ptach is not an option; did you mean config.model.patch?'),
    ({'batch_size': 'many'}, "config.batch_size is 'many', which is not of type int."),
    ({'batch_size': True}, 'config.batch_size is True, which is not of type int.'),
    ({'batch_size': 0}, 'config.batch_size is 0; it must be at least 1.'),
    (
      {'batch_size': 10, 'accumulation': 3},
      'config.batch_size 10 does not divide into config.accumulation 3 equal parts; change one of them.',
    ),
    (
      {'total': '3 weeks'},
      "config.total is '3 weeks'; it must be a duration such as '90 epochs', '500 steps' or '5%'.",
    ),
    ({'total': '0 steps'}, "config.total is '0 steps'; it must be more than nothing."),
    (
      {'model': {'pool': 'max'}},
      "config.model.pool is 'max'; choose one of ['token', 'gap', 'token_gap', 'map', 'none'].",
    ),
    (
      {'model': {'pool': 'none'}},
      "config.model.pool is 'none', which gives an image no logits; choose token, gap or map.",
    ),
    (
      {'model': {'pool': 'token', 'class_token': False}},
      "config.model.pool is 'token' but class_token is False; choose pool 'gap' or 'map'.",
    ),
    (
      {'model': {'axial': True}},
      'config.model.axial attends along rows and columns of patches, and config.model.pool '
      "'token' brings a token that is in none; choose pool 'gap' or 'map'.",
    ),
    (
      {'model': {'axial': True, 'pool': 'gap', 'class_token': True}},
      'config.model.axial attends along rows and columns of patches, and '
      'config.model.class_token brings a token that is in none; leave it out.',
    ),
    (
      {'model': {'axial': True, 'pool': 'gap', 'register_tokens': 1}},
      'config.model.axial attends along rows and columns of patches, and '
      'config.model.register_tokens brings a token that is in none; leave them out.',
    ),
    (
      {'model': {'pool': 'token_gap', 'class_token': False}},
      "config.model.pool is 'token_gap' but class_token is False; choose pool 'gap' or 'map'.",
    ),
    ({'model': {'gelu': 'exact'}}, "config.model.gelu is 'exact'; choose one of ['tanh', 'erf']."),
    ({'model': {'norm_epsilon': 0.0}}, 'config.model.norm_epsilon is 0.0; it must be at least 1e-12.'),
    ({'model': {'layer_scale': -1.0}}, 'config.model.layer_scale is -1.0; it must be at least 0.'),
    ({'model': {'register_tokens': -1}}, 'config.model.register_tokens is -1; it must be at least 0.'),
    (
      {'model': {'name': 'mixer', 'tokens_mlp_dim': 0}},
      'config.model.tokens_mlp_dim is 0; it must be at least 1.',
    ),
    ({'model': {'stem_blocks': [3, 4.5]}}, 'config.model.stem_blocks is 4.5, which is not of type int.'),
    ({'model': {'dropout': 1.5}}, 'config.model.dropout is 1.5; it must be between 0 and 0.999.'),
    ({'model': {'name': 'swin'}}, "config.model.name is 'swin'; choose one of ['vit', 'mixer', 'resnet']."),
    ({'schedule': {'learning_rate': -1.0}}, 'config.schedule.learning_rate is -1.0; it must be at least 0.'),
    (
      {'schedule': {'decay': 'linear', 'cooldown': '5%'}},
      'config.schedule.cooldown is for decay constant and rsqrt, and decay is linear, which '
      'ends at end_value by itself.',
    ),
    ({'data': {'image_size': [0, 8]}}, 'config.data.image_size is 0; it must be at least 1.'),
    (
      {'data': {'area': [0.5, 0.1]}},
      'config.data.area is (0.5, 0.1); it must be two shares with 0 < low <= high <= 1.',
    ),
    (
      {'data': {'value_range': [1, -1]}},
      'config.data.value_range is (1.0, -1.0); the first must be the smaller one.',
    ),
    (
      {'data': {'crop': 'random', 'resize': 100}},
      'config.data.resize is 100 pixels, smaller than image_size (224, 224).',
    ),
    (
      {'data': {'image_size': [8, 8, 3]}},
      'config.data.image_size is [8, 8, 3], which is not of type tuple[int, int].',
    ),
    ({'data': {'max_per_class': 0}}, 'config.data.max_per_class is 0; it must be at least 1.'),
    (
      {'data': {'repeats': 3}},
      'config.batch_size 512 does not divide by config.data.repeats 3; change one of them.',
    ),
    (
      {'data': {'max_labels': 4}},
      'config.data.max_labels is 4, so images have lists of classes, and '
      "config.objective.loss is 'softmax'; choose 'sigmoid'.",
    ),
    (
      {'data': {'mixture': [['digits', 0.0]]}},
      "config.data.mixture: 'digits' has the weight 0.0; it must be more than 0.",
    ),
    (
      {'data': {'mixture': [['digits', 1]]}, 'evaluators': {'test': {'type': 'classification'}}},
      'config.evaluators.test.source is not given; name the data to evaluate on, since '
      'config.data.mixture has several.',
    ),
    (
      {'mesh': {'data': -1, 'fsdp': -1}},
      "config.mesh is {'replica': 1, 'data': -1, 'fsdp': -1, 'tensor': 1}; each axis must be "
      'at least 1, and at most one may be -1.',
    ),
    (
      {'optimizer': {'freeze': ['(']}},
      "config.optimizer.freeze is '('; it must be a regular expression (missing ), "
      'unterminated subpattern at position 0).',
    ),
    ({'optimizer': {'name': 'lyon'}}, "config.optimizer: there is no optimizer 'lyon'; did you mean 'lion'?"),
    (
      {'evaluators': {'val': {'crop': 'inception', 'type': 'classification'}}},
      "config.evaluators.val.crop is 'inception'; choose one of ['resize', 'central'].",
    ),
    (
      {'evaluators': {'val': {'type': 'classification', 'splt': 'test'}}},
      'config.evaluators.val.splt is not an option; did you mean config.evaluators.val.split?',
    ),
    (
      {'evaluators': {'val': {'type': 'classification', 'batch_size': 0}}},
      'config.evaluators.val.batch_size is 0; it must be at least 1.',
    ),
    (
      {'evaluators': {'val': {'type': 'knn'}}},
      "config.evaluators.val.type is 'knn'; choose one of ['classification', 'fewshot'].",
    ),
    (
      {'evaluators': {'val': {'type': 'fewshot', 'real_labels': 'download'}}},
      "config.evaluators.val.real_labels is an option of the evaluator 'classification', and "
      "config.evaluators.val.type is 'fewshot'; leave it out, or choose 'classification'.",
    ),
    (
      {'evaluators': {'val': {'type': 'fewshot', 'probe': 'svm'}}},
      "config.evaluators.val.probe is 'svm'; choose one of ['ridge', 'logistic', 'knn'].",
    ),
    (
      {'evaluators': {'val': {'type': 'fewshot', 'pool': 'max'}}},
      "config.evaluators.val.pool is 'max'; choose one of ['token', 'gap', 'token_gap', 'map'].",
    ),
    (
      {'evaluators': {'val': {'type': 'fewshot', 'shots': []}}},
      'config.evaluators.val.shots is (); give at least one number.',
    ),
    (
      {'evaluators': {'val': {'type': 'fewshot', 'grid': [0.0]}}},
      'config.evaluators.val.grid is 0.0; it must be at least 1e-12.',
    ),
    (
      {'evaluators': {'web': {'type': 'fewshot'}}, 'checkpoint': {'best': 'web/accuracy'}},
      "config.checkpoint.best is 'web/accuracy', which no evaluator gives; choose one of web_5shot/accuracy.",
    ),
    (
      {'evaluators': {'val': {}}},
      "config.evaluators.val is {}; it must be a section with the option 'type'.",
    ),
    ({'model': 3}, "config.model is 3; it must be a section with the option 'name'."),
    ({'evaluators': [1]}, "config.evaluators is [1]; it must be a section with the option 'type'."),
  ],
)
def test_what_is_wrong_is_said_in_one_sentence(change, said):
  with pytest.raises(UserError) as raised:
    c.from_config_dict(change)
  assert str(raised.value) == said


def test_resumable_options_are_those_that_change_no_result():
  changed = dataclasses.replace(
    FULL,
    log_every='7 steps',
    mesh=c.MeshConfig(fsdp=2),
    data=dataclasses.replace(FULL.data, threads=3, prefetch=5, bad_images='skip'),
    checkpoint=c.CheckpointConfig(keep=9),
  )
  assert c.differing_options(FULL, changed) == []
  other = dataclasses.replace(changed, batch_size=64)
  assert c.differing_options(FULL, other) == ['batch_size']


@pytest.mark.parametrize(
  ('text', 'steps'),
  [
    ('90 epochs', 900),
    ('1 epoch', 10),
    ('20000 steps', 20000),
    ('1e6 examples', 10000),
    ('5%', 50),
    ('0 steps', 0),
    ('0.26 epochs', 3),
  ],
)
def test_durations(text, steps):
  assert durations.steps(text, batch_size=100, examples=1000, total=1000) == steps


def test_a_share_of_the_whole_is_no_total():
  with pytest.raises(UserError, match=r'config\.total'):
    durations.steps('5%', batch_size=1, examples=1)


@pytest.mark.parametrize('registry', [MODELS, OBJECTIVES, EVALUATORS], ids=lambda registry: registry.what)
def test_every_option_has_a_type_that_is_checked(registry):
  for name in registry.names():
    section = registry[name]()
    values = options.as_dict(section)
    assert options.from_dict(registry[name], values) == section
    for option in values:
      with pytest.raises(UserError, match=f'config.{option} is '):
        options.from_dict(registry[name], values | {option: object()})
