"""Options that are wrong or contradict each other: one sentence that names the option, the value and the remedy."""

import math
import re

import pytest

from vit_jax import config as c
from vit_jax.foundation.errors import UserError


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    ({'modle': {}}, 'config.modle is not an option; did you mean config.model?'),
    ({'model': {'ptach': 3}}, 'config.model.ptach is not an option; did you mean config.model.patch?'),
    ({'batch_size': 'many'}, "config.batch_size is 'many', which is not of type int."),
    ({'batch_size': True}, 'config.batch_size is True, which is not of type int.'),
    ({'batch_size': 0}, 'config.batch_size is 0; it must be at least 1.'),
    ({'batch_size': 10, 'accumulation': 3}, 'config.batch_size 10 does not … parts; change one of them.'),
    ({'total': '3 weeks'}, "config.total is '3 weeks'; it must be a … as '90 epochs', '500 steps' or '5%'."),
    ({'total': '0 steps'}, "config.total is '0 steps'; it must be more than nothing."),
    ({'model': {'pool': 'max'}}, "config.model.pool is 'max'; choose one … 'token_gap', 'map', 'none']."),
    (
      {'model': {'pool': 'none'}},
      "config.model.pool is 'none', which gives an image no logits; choose token, gap or map.",
    ),
    (
      {'model': {'pool': 'token', 'class_token': False}},
      "config.model.pool is 'token' but class_token is False; choose pool 'gap' or 'map'.",
    ),
    ({'model': {'axial': True}}, "config.model.axial attends along rows … none; choose pool 'gap' or 'map'."),
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
    ({'model': {'pool': 'token_gap', 'class_token': False}}, "config.model.pool is 'token_gap' but … 'map'."),
    (
      {'model': {'distillation_token': True, 'pool': 'gap'}},
      "config.model.distillation_token goes with pool 'token' and no pre_logits_size; change these, or leave it out.",
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
    (
      {'model': {'name': 'swin'}},
      "config.model.name is 'swin'; choose one of ['vit', 'mixer', 'resnet', 'efficientnet'].",
    ),
    ({'schedule': {'learning_rate': -1.0}}, 'config.schedule.learning_rate is -1.0; it must be at least 0.'),
    ({'schedule': {'decay': 'linear', 'cooldown': '5%'}}, 'config.schedule.cooldown … which ends by itself.'),
    ({'schedule': {'decay': 'exponential'}}, 'config.schedule.decay is … 0; set it above 0.'),
    *(
      (
        {'optimizer': {'lr_multipliers': [['.', factor]]}},
        f'config.optimizer.lr_multipliers is {factor}; it must be at least 0.',
      )
      for factor in (-1.0, math.nan)
    ),
    *(
      (
        {section: {option: 'test/accuracy'}},
        f"config.{section}.{option} is 'test/accuracy', and config.evaluators is empty, so that no metric is ever "
        'there; add an evaluator, or leave it out.',
      )
      for section, option in (('stop', 'metric'), ('checkpoint', 'best'))
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
    ({'data': {'image_size': [0, 8]}}, 'config.data.image_size is 0; it must be at least 1.'),
    (
      {'data': {'area': [0.5, 0.1]}},
      'config.data.area is (0.5, 0.1); it must be two shares with 0 < low <= high <= 1.',
    ),
    (
      {'data': {'mean': [0.5, 0.4]}},
      'config.data.mean is (0.5, 0.4); give one number, or one for each of the 3 channels.',
    ),
    ({'data': {'crop': 'random', 'resize': 100}}, 'config.data.resize is 100 … be cut; make it 224 or more.'),
    ({'data': {'crop': 'random', 'resize': 100, 'padding': 8}}, 'config.data.resize is … it 208 or more.'),
    (
      {'data': {'crop': 'central', 'resize': 40, 'image_size': [32, 48]}},
      'config.data.resize is 40 pixels, out of which no 32 × 48 (config.data.image_size) can be cut; make it '
      '48 or more.',
    ),
    ({'data': {'crop': 'central', 'resize': 216, 'padding': 8}}, 'config.data.resize is … it 224 or more.'),
    (
      {'evaluators': {'val': {'type': 'classification', 'crop': 'central', 'resize': 200}}},
      'config.evaluators.val.resize is 200 pixels, out of which no 224 × 224 (config.data.image_size) can be cut; '
      'make it 224 or more.',
    ),
    (
      {
        'data': {'image_size': [32, 64]},
        'evaluators': {'val': {'type': 'classification', 'crop': 'resize', 'resize': 16}},
      },
      'config.evaluators.val.resize is 16 pixels, out of which no 32 × 64 (config.data.image_size) can be cut; '
      'make it 32 or more.',
    ),
    ({'data': {'image_size': [8, 8, 3]}}, 'config.data.image_size is [8, 8, … not of type tuple[int, int].'),
    ({'data': {'max_per_class': 0}}, 'config.data.max_per_class is 0; it must be at least 1.'),
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
    ({'optimizer': {'freeze': ['(']}}, "config.optimizer.freeze is '('; it … subpattern at position 0)."),
    ({'optimizer': {'name': 'lyon'}}, "config.optimizer: there is no optimizer 'lyon'; did you mean 'lion'?"),
    (
      {'evaluators': {'val': {'crop': 'inception', 'type': 'classification'}}},
      "config.evaluators.val.crop is 'inception'; choose one of ['resize', … 'timm_border'].",
    ),
    (
      {'evaluators': {'val': {'type': 'classification', 'splt': 'test'}}},
      'config.evaluators.val.splt is not an option; did you mean config.evaluators.val.split?',
    ),
    (
      {'evaluators': {'val': {'type': 'classification', 'batch_size': 0}}},
      'config.evaluators.val.batch_size is 0; it must be at least 1.',
    ),
    ({'evaluators': {'val': {'type': 'knn'}}}, "config.evaluators.val.type is … 'fewshot']."),
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
    ({'model': {'name': 'resnet', 'blokcs': (1,)}}, 'config.model.blokcs is not … mean config.model.blocks?'),
    ({'model': {'name': 'rasnet'}}, "config.model.name is 'rasnet'; did you mean 'resnet'?"),
    ({'model': {'name': 'vit', 'blocks': [1, 2]}}, "config.model.blocks is an … it out, or choose 'resnet'."),
    ({'model': {'name': 'mixer', 'heads': 4}}, "config.model.heads is an option … it out, or choose 'vit'."),
    ({'seed': -1}, 'config.seed is -1; it must be between 0 and 4294967295.'),
    ({'ema': 1.0}, 'config.ema is 1.0; it must be between 0 and 0.999999999.'),
    ({'nonfinite': 'go on'}, "config.nonfinite is 'go on'; choose one of ['stop', 'skip']."),
    ({'data': {'channels': 4}}, 'config.data.channels is 4; choose one of [1, 3].'),
    ({'objective': {'name': 'classify'}}, "config.objective.name is … did you mean 'classification'?"),
    (
      {'objective': {'name': 'masked_patches', 'loss': 'sigmoid'}},
      "config.objective.loss is an option of the objective 'classification', and config.objective.name is "
      "'masked_patches'; leave it out, or choose 'classification'.",
    ),
    (
      {'evaluators': {'val': {'type': 'classification'}}, 'checkpoint': {'best': 'val_ema/accuracy'}},
      "config.checkpoint.best is 'val_ema/accuracy', which no evaluator gives; choose one of val/accuracy, val/loss.",
    ),
  ],
)
def test_a_wrong_option_is_refused_in_one_sentence(change, said):
  with pytest.raises(UserError) as raised:
    c.from_config_dict(change)
  begin, _, end = said.partition(' … ')  # of a sentence that is long
  expected = f'{re.escape(begin)} (.* )?{re.escape(end)}' if end else re.escape(said)
  assert re.fullmatch(expected, str(raised.value)), raised.value


@pytest.mark.parametrize(
  'values',
  [
    {'loss': 'softmax'},
    {'data': {'value_range': [0, 0]}},
    {'data': {'value_range': 5}},
    {'data': {'value_range': 'ab'}},
    {'init': {'ignore': 5}},
    {'evaluators': {'val': {'type': 'fewshot', 'fewshot': 3}}},
    {'checkpoint': {'best': 3}},
    {'model': []},
    {'optimizer': 'adam'},
  ],
  ids=str,
)
def test_json_that_is_no_config_is_refused_in_a_sentence(values):
  with pytest.raises(UserError):
    c.from_config_dict(values)


@pytest.mark.parametrize('values', [[], 'model', None])
def test_json_that_is_no_object_is_refused(values):
  with pytest.raises(UserError, match='A config is a JSON object'):
    c.from_config_dict(values)
