"""The schema: round trips, overrides, and the messages of wrong options."""

import dataclasses
import json

import pytest

from vit_jax import config as c
from vit_jax import durations, validation
from vit_jax.errors import UserError

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
    ({'modle': {}}, 'did you mean model'),
    ({'model': {'ptach': 3}}, 'did you mean model.patch'),
    ({'batch_size': 'many'}, 'not of type int'),
    ({'batch_size': True}, 'not of type int'),
    ({'batch_size': 0}, 'config.batch_size is 0; it must be at least 1'),
    ({'batch_size': 10, 'accumulation': 3}, 'does not divide'),
    ({'total': '3 weeks'}, 'is not a duration'),
    ({'total': '0 steps'}, 'more than nothing'),
    ({'model': {'pool': 'max'}}, "choose one of ['token', 'gap', 'token_gap', 'map', 'none']"),
    ({'model': {'pool': 'none'}}, 'gives an image no logits'),
    ({'model': {'pool': 'token', 'class_token': False}}, 'class_token is False'),
    (
      {'model': {'axial': True}},
      "config.model.pool 'token' brings a token that is in none; choose pool 'gap'",
    ),
    ({'model': {'axial': True, 'pool': 'gap', 'class_token': True}}, 'config.model.class_token brings'),
    ({'model': {'axial': True, 'pool': 'gap', 'register_tokens': 1}}, 'config.model.register_tokens brings'),
    ({'model': {'pool': 'token_gap', 'class_token': False}}, "pool is 'token_gap' but class_token is False"),
    ({'model': {'gelu': 'exact'}}, "choose one of ['tanh', 'erf']"),
    ({'model': {'norm_epsilon': 0.0}}, 'config.model.norm_epsilon is 0.0; it must be between'),
    ({'model': {'layer_scale': -1.0}}, 'config.model.layer_scale is -1.0; it must be at least 0'),
    ({'model': {'register_tokens': -1}}, 'config.model.register_tokens is -1; it must be at least 0'),
    ({'model': {'tokens_mlp_dim': 0}}, 'config.model.tokens_mlp_dim is 0; it must be at least 1'),
    ({'model': {'stem_blocks': [3, 4.5]}}, 'config.model.stem_blocks is 4.5, which is not of type int'),
    ({'model': {'dropout': 1.5}}, 'config.model.dropout is 1.5; it must be between'),
    ({'schedule': {'learning_rate': -1.0}}, 'config.schedule.learning_rate is -1.0'),
    ({'schedule': {'decay': 'linear', 'cooldown': '5%'}}, 'ends at end_value by itself'),
    ({'data': {'image_size': [0, 8]}}, 'at least 1 pixel'),
    ({'data': {'area': [0.5, 0.1]}}, 'config.data.area'),
    ({'data': {'value_range': [1, -1]}}, 'config.data.value_range'),
    ({'data': {'crop': 'random', 'resize': 100}}, 'smaller than image_size'),
    ({'data': {'image_size': [8, 8, 3]}}, 'not of type tuple[int, int]'),
    ({'data': {'max_per_class': 0}}, 'config.data.max_per_class is 0; it must be at least 1'),
    ({'data': {'repeats': 3}}, 'config.batch_size 512 does not divide by config.data.repeats 3'),
    ({'data': {'max_labels': 4}}, "config.loss.name is 'softmax'; choose 'sigmoid'"),
    ({'data': {'mixture': [['digits', 0.0]]}}, "'digits' has the weight 0.0; it must be more than 0"),
    (
      {'data': {'mixture': [['digits', 1]]}, 'evaluators': {'test': {}}},
      'config.evaluators.test.source is not given',
    ),
    ({'mesh': {'data': -1, 'fsdp': -1}}, 'at most one may be -1'),
    ({'optimizer': {'freeze': ['(']}}, 'not a regular expression'),
    ({'evaluators': {'val': {'crop': 'inception'}}}, "choose 'resize' or 'central'"),
    ({'evaluators': {'val': {'splt': 'test'}}}, 'did you mean evaluators.val.split'),
    ({'evaluators': {'val': {'batch_size': 0}}}, 'config.evaluators.val.batch_size is 0'),
    ({'evaluators': {'val': {'type': 'knn'}}}, "choose one of ['classification', 'fewshot']"),
    (
      {'evaluators': {'val': {'type': 'fewshot', 'real_labels': 'download'}}},
      "config.evaluators.val.real_labels is for type 'classification'",
    ),
    ({'evaluators': {'val': {'fewshot': {'probe': 'svm'}}}}, "choose one of ['ridge', 'logistic', 'knn']"),
    ({'evaluators': {'val': {'fewshot': {'pool': 'max'}}}}, 'config.evaluators.val.fewshot.pool'),
    ({'evaluators': {'val': {'fewshot': {'shots': []}}}}, 'give at least one number'),
    ({'evaluators': {'val': {'fewshot': {'grid': [0.0]}}}}, 'all of it must be above 0'),
    (
      {'evaluators': {'web': {'type': 'fewshot'}}, 'checkpoint': {'best': 'web/accuracy'}},
      'choose one of web_5shot/accuracy',
    ),
  ],
)
def test_what_is_wrong_is_said_in_one_sentence(change, said):
  with pytest.raises(UserError) as raised:
    c.from_config_dict(change)
  text = str(raised.value)
  assert said in text
  assert '\n' not in text


def test_every_choice_and_range_names_an_option():
  flat = c.flatten(FULL)
  assert set(validation._CHOICES) <= set(flat)
  assert {path for path, _, _ in validation._ranges(FULL)} <= set(flat)
  assert any(c.MAY_CHANGE.match(path) for path in flat)


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


def test_options_have_one_type():
  # An option of a type that the schema cannot check would pass unchecked.
  for section in (
    c.ViTConfig,
    c.DataConfig,
    c.ClassificationEvaluatorConfig,
    c.FewShot,
    c.Loss,
    c.OptimizerConfig,
    c.ScheduleConfig,
    c.MeshConfig,
    c.CheckpointConfig,
  ):
    defaults = dataclasses.asdict(section())
    assert c._section(section, defaults, '') == section()
