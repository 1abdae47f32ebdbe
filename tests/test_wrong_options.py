"""Options that are wrong or contradict each other: one sentence that names the option, the value and the remedy.

What every option has in common (types, names, kinds of sections) is in test_options.py.
"""

import math
import re

import pytest

from vit_jax import config as c
from vit_jax.foundation.errors import UserError


def assert_refused(change: object, said: str) -> None:
  """A config of these values is refused with one sentence, of which ' … ' stands for any part."""
  with pytest.raises(UserError) as raised:
    c.from_config_dict(change)
  begin, _, end = said.partition(' … ')
  expected = f'{re.escape(begin)} (.* )?{re.escape(end)}' if end else re.escape(said)
  assert re.fullmatch(expected, str(raised.value)), raised.value


@pytest.mark.parametrize(
  ('option', 'value', 'must'),
  [
    ('batch_size', 0, 'it must be at least 1.'),
    ('seed', -1, 'it must be between 0 and 4294967295.'),
    ('ema', 1.0, 'it must be between 0 and 0.999999999.'),
    ('nonfinite', 'go on', "choose one of ['stop', 'skip']."),
    ('total', '3 weeks', "it must be a … as '90 epochs', '500 steps' or '5%'."),
    ('total', '-1 steps', "it must be a … as '90 epochs', '500 steps' or '5%'."),
    ('model.pool', 'max', "choose one … 'none']."),
    ('model.activation', 'exact', "choose one of ['gelu_tanh', 'gelu', 'quick_gelu', 'silu', 'relu']."),
    ('model.norm_epsilon', 0.0, 'it must be at least 1e-12.'),
    ('model.layer_scale', -1.0, 'it must be at least 0.'),
    ('model.register_tokens', -1, 'it must be at least 0.'),
    ('model.dropout', 1.5, 'it must be between 0 and 0.999.'),
    (
      'model.name',
      'swin',
      "choose one of ['vit', 'mae', 'dino', 'moco', 'two_towers', 'mixer', 'resnet', 'efficientnet'].",
    ),
    ('schedule.learning_rate', -1.0, 'it must be at least 0.'),
    ('data.image_size', 0, 'it must be at least 1.'),
    ('data.max_per_class', 0, 'it must be at least 1.'),
    ('data.channels', 4, 'choose one of [1, 3].'),
    ('evaluators.val.crop', 'inception', "choose one of ['resize', … 'timm_border']."),
    ('evaluators.val.batch_size', 0, 'it must be at least 1.'),
    ('evaluators.web.probe', 'svm', "choose one of ['ridge', 'logistic', 'knn', 'weighted_knn']."),
    ('evaluators.web.pool', 'max', "choose one of ['token', 'gap', 'token_gap', 'map']."),
    ('evaluators.web.grid', [0.0], 'it must be at least 1e-12.'),
  ],
)
def test_value_beyond_the_limits_of_its_option_is_refused(option, value, must):
  tags = {'evaluators.val': {'type': 'classification'}, 'evaluators.web': {'type': 'fewshot'}}
  *sections, name = option.split('.')
  change = {**tags.get('.'.join(sections), {}), name: value}
  for section in reversed(sections):
    change = {section: change}
  shown = value[0] if isinstance(value, list) else value
  assert_refused(change, f'config.{option} is {shown!r}; {must}')


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    ({'model': {'ptach': 3}}, 'config.model.ptach is not an option; did you mean config.model.patch?'),
    ({'batch_size': 10, 'accumulation': 3}, 'config.batch_size 10 does not … parts; change one of them.'),
    (
      {'model': {'pool': 'none'}},
      "config.model.pool is 'none', which gives an image no logits; choose token, gap or map.",
    ),
    (
      {'model': {'pool': 'token', 'class_token': False}},
      "config.model.pool is 'token' but class_token is False; choose pool 'gap' or 'map'.",
    ),
    ({'model': {'pool': 'token_gap', 'class_token': False}}, "config.model.pool is 'token_gap' but … 'map'."),
    ({'model': {'axial': True}}, "config.model.axial attends along rows … none; choose pool 'gap' or 'map'."),
    (
      {'model': {'axial': True, 'pool': 'gap', 'register_tokens': 1}},
      'config.model.axial attends along rows and columns of patches, and '
      'config.model.register_tokens brings a token that is in none; leave them out.',
    ),
    (
      {'model': {'distillation_token': True, 'pool': 'gap'}},
      "config.model.distillation_token goes with pool 'token' and no pre_logits_size; change these, or leave it out.",
    ),
    ({'schedule': {'decay': 'linear', 'cooldown': '5%'}}, 'config.schedule.cooldown … which ends by itself.'),
    ({'schedule': {'decay': 'exponential'}}, 'config.schedule.decay is … 0; set it above 0.'),
    (
      {'optimizer': {'lr_multipliers': [['.', math.nan]]}},
      'config.optimizer.lr_multipliers is nan; it must be at least 0.',
    ),
    (
      {'optimizer': {'name': 'lyon'}},
      "config.optimizer: there is no optimizer 'lyon' (did you mean 'lion'?); choose one … where 'adam' is AdamW with "
      'weight_decay',
    ),
    *(
      (
        {section: {option: 'test/accuracy'}},
        f"config.{section}.{option} is 'test/accuracy', and config.evaluators is empty, so that no metric is ever "
        'there; add an evaluator, or leave it out.',
      )
      for section, option in (('stop', 'metric'), ('checkpoint', 'best'))
    ),
    (
      {'init': {'head': 'probe'}, 'objective': {'name': 'classification', 'loss': 'sigmoid'}},
      "config.init.head is 'probe', a head of probabilities that sum to one, and … gives each class its own; set it to "
      "'constant', or the loss to 'softmax'.",
    ),
    *(
      (
        {'init': {'head': 'probe'}, **options},
        "config.init.head is 'probe', which needs images of one class each; set it to 'constant'.",
      )
      for options in (
        {'data': {'max_labels': 2}, 'objective': {'name': 'classification', 'loss': 'sigmoid'}},
        {
          'model': {'name': 'vit', 'pool': 'none', 'mask_token': True},
          'objective': {'name': 'masked_patches'},
        },
      )
    ),
    (
      {'adapter': {'dora': True}},
      'config.adapter.dora is True, and config.adapter.rank 0 has no adapter, but trains the whole model; set it to '
      '16, or leave dora out.',
    ),
    (
      {'model': {'name': 'mae', 'head_bias': -10.0}, 'objective': {'name': 'mae'}},
      'config.model.head_bias is -10.0, which is of a head that a masked autoencoder does not have; leave it out, or '
      'choose --config.model.name=vit.',
    ),
    (
      {'data': {'area': [0.5, 0.1]}},
      'config.data.area is (0.5, 0.1); it must be two shares with 0 < low <= high <= 1.',
    ),
    (
      {'data': {'mean': [0.5, 0.4]}},
      'config.data.mean is (0.5, 0.4); give one number, or one for each of the 3 channels.',
    ),
    ({'data': {'crop': 'random', 'resize': 100, 'padding': 8}}, 'config.data.resize is … it 208 or more.'),
    ({'data': {'crop': 'central', 'resize': 216, 'padding': 8}}, 'config.data.resize is … it 224 or more.'),
    (
      {
        'data': {'image_size': [32, 64]},
        'evaluators': {'val': {'type': 'classification', 'crop': 'resize', 'resize': 16}},
      },
      'config.evaluators.val.resize is 16 pixels, out of which no 32 × 64 (config.data.image_size) can be cut; '
      'make it 32 or more.',
    ),
    ({'data': {'repeats': 3}}, 'config.batch_size 512 does not divide by … 3; change one of them.'),
    ({'data': {'max_labels': 4}}, "config.data.max_labels is 4, so images … is 'softmax'; choose 'sigmoid'."),
    ({'data': {'label_weights': True}}, 'config.data.label_weights is on and … length of the longest list.'),
    (
      {'data': {'mixture': [['digits', 0.0]]}},
      "config.data.mixture: 'digits' has the weight 0.0; it must be more than 0.",
    ),
    (
      {'data': {'mixture': [['digits', 1]]}, 'evaluators': {'test': {'type': 'classification'}}},
      'config.evaluators.test.source is not given; name the data to evaluate on, since '
      'config.data.mixture has several.',
    ),
    ({'mesh': {'data': -1, 'fsdp': -1}}, "config.mesh is {'replica': 1, … 1, and at most one may be -1."),
    (
      {'evaluators': {'val': {'type': 'fewshot', 'shots': []}}},
      'config.evaluators.val.shots is (); give at least one number.',
    ),
    (
      {'evaluators': {'web': {'type': 'fewshot'}}, 'checkpoint': {'best': 'web/accuracy'}},
      "config.checkpoint.best is 'web/accuracy', which no evaluator gives; choose one of web_5shot/accuracy.",
    ),
    (
      {'evaluators': {'val': {'type': 'classification'}}, 'checkpoint': {'best': 'val_ema/accuracy'}},
      "config.checkpoint.best is 'val_ema/accuracy', which no evaluator gives; choose one of val/accuracy, val/loss.",
    ),
  ],
)
def test_options_that_contradict_each_other_are_refused(change, said):
  assert_refused(change, said)


@pytest.mark.parametrize(
  'values',
  [
    {'loss': 'softmax'},
    {'data': {'value_range': [0, 0]}},
    {'data': {'value_range': 'ab'}},
    {'init': {'ignore': 5}},
    {'evaluators': {'val': {'type': 'fewshot', 'fewshot': 3}}},
    {'checkpoint': {'best': 3}},
    [],
    None,
  ],
  ids=str,
)
def test_json_that_is_no_config_is_refused_in_a_sentence(values):
  with pytest.raises(UserError):
    c.from_config_dict(values)
