"""Configs that earlier versions wrote (config.json, checkpoints), in terms of this version.

The first edition had one flat section for four architectures, one for all objectives and one for all
evaluators. Each function here changes a copy of the JSON; a config of this version passes through unchanged, since it
has none of the values that earlier versions took and this one refuses.
"""

import copy
from collections.abc import Mapping
from typing import Any

_RENAMED = {'average': 'ema'}
_RENAMED_MODEL = {'representation_size': 'pre_logits_size', 'gelu': 'activation'}
_ACTIVATIONS = {'tanh': 'gelu_tanh', 'erf': 'gelu'}  # of the option 'gelu'
_RENAMED_DATA = {'grow': 'progressive_resizing'}
# Options of the flat model section that an architecture does not have; 'mlp' is what became of 'mlp_locality'.
_NOT_OF_MIXER = (
  *('heads', 'stem_blocks', 'stem_width', 'resnet_blocks', 'pool', 'class_token', 'position'),
  *('register_tokens', 'mask_token', 'pre_logits_size', 'layer_scale', 'axial', 'qk_norm', 'mlp'),
  *('dropout', 'attention_dropout', 'attention'),
)
_NOT_OF_RESNET = (
  *(name for name in _NOT_OF_MIXER if name != 'resnet_blocks'),
  *('patch', 'mlp_dim', 'depth', 'tokens_mlp_dim', 'activation', 'stochastic_depth'),
)

# Objectives that take no data.repeats.
_COMPARING = ('contrastive', 'contrastive_views', 'self_distillation')


def migrated(values: Mapping[str, Any]) -> dict[str, Any]:
  """The values of a config, with the sections and names of this version."""
  result = copy.deepcopy(dict(values))
  _rename(result, _RENAMED)
  for section, names in (('model', _RENAMED_MODEL), ('data', _RENAMED_DATA)):
    if isinstance(result.get(section), dict):
      _rename(result[section], names)
  if isinstance(result.get('model'), dict):
    _rename_values(result['model'])
  if isinstance(result.get('data'), dict) and 'value_range' in result['data']:
    result['data'] = _data(result['data'])
  if isinstance(result.get('model'), dict) and 'name' not in result['model']:
    result['model'] = _model(result['model'])
  if isinstance(result.get('init'), dict) and 'ignore' in result['init']:
    ignore = result['init']['ignore']
    result['init']['ignore'] = [str(p).replace('^representation/', '^pre_logits/') for p in ignore]
  if 'loss' in result and 'objective' not in result:
    result['objective'] = _objective(result.pop('loss'))
  _drop_refused(result)
  if isinstance(result.get('evaluators'), dict):
    result['evaluators'] = {name: _evaluator(item) for name, item in result['evaluators'].items()}
  if isinstance(result.get('optimizer'), dict):
    _drop_unused_decays(result['optimizer'])
  best = result.get('checkpoint', {}).get('best') if isinstance(result.get('checkpoint'), dict) else None
  if isinstance(best, str):
    # Only the evaluator's name has the suffix: there is the metric mean_average_precision.
    evaluator, _, metric = best.rpartition('/')
    evaluator = f'{evaluator}/'.replace('_average/', '_ema/').replace('_average_', '_ema_')
    result['checkpoint']['best'] = f'{evaluator}{metric}'
  return result


def _rename(section: dict[str, Any], names: Mapping[str, str]) -> None:
  for old, new in names.items():
    if old in section and new not in section:
      section[new] = section.pop(old)


def _rename_values(model: dict[str, Any]) -> None:
  if model.get('activation') in _ACTIVATIONS:
    model['activation'] = _ACTIVATIONS[model['activation']]
  if model.get('mlp') == 'gelu':
    model['mlp'] = 'dense'
  if model.pop('mlp_locality', False):
    model['mlp'] = 'local'


def _model(model: dict[str, Any]) -> dict[str, Any]:
  """The flat section of four architectures as that of the one it describes."""
  variant = str(model.get('variant', ''))
  if model.get('resnet_blocks') is not None or (variant[:1] == 'R' and 'x' in variant):
    model = {name: value for name, value in model.items() if name not in _NOT_OF_RESNET}
    blocks = model.pop('resnet_blocks', None)
    return {'name': 'resnet', **model, 'blocks': blocks}
  model.pop('resnet_blocks', None)
  if model.get('tokens_mlp_dim') is not None or variant.startswith('Mixer'):
    return {'name': 'mixer', **{n: value for n, value in model.items() if n not in _NOT_OF_MIXER}}
  model.pop('tokens_mlp_dim', None)
  return {'name': 'vit', **model}


def _data(data: dict[str, Any]) -> dict[str, Any]:
  """Until mean and std there was one range for all channels, and one interpolation."""
  data = dict(data)
  low, high = data.pop('value_range')
  return {**data, 'mean': [-low / (high - low)], 'std': [1 / (high - low)], 'interpolation': 'bilinear'}


def _objective(loss: dict[str, Any]) -> dict[str, Any]:
  """The first edition's section `loss`."""
  kind, smoothing = loss.get('name', 'softmax'), loss.get('label_smoothing', 0.0)
  if kind == 'masked_patches':
    return {'name': 'masked_patches', 'label_smoothing': smoothing}
  return {'name': 'classification', 'loss': kind, 'label_smoothing': smoothing}


def _evaluator(evaluator: Any) -> Any:
  """An evaluator that had the options of all types, those of few-shot probes in a section of their own."""
  if not isinstance(evaluator, dict) or 'fewshot' not in evaluator:
    return evaluator
  evaluator = dict(evaluator)
  probe = evaluator.pop('fewshot')
  if evaluator.get('type', 'classification') == 'fewshot':
    evaluator.pop('real_labels', None)
    evaluator |= probe
  return {'type': 'classification', **evaluator}


def _drop_refused(config: dict[str, Any]) -> None:
  """Values that earlier versions took, and this one refuses, so that their runs can still be read."""
  schedule, objective, data = (config.get(name) for name in ('schedule', 'objective', 'data'))
  if isinstance(schedule, dict):
    decay = schedule.get('decay', 'cosine')
    if decay in ('constant', 'rsqrt', 'staircase'):
      schedule.pop('end_value', None)
    if decay != 'rsqrt':
      schedule.pop('timescale', None)
  if isinstance(objective, dict) and objective.get('teacher_targets') == 'hard':
    objective.pop('temperature', None)
  # It was not ignored: an image was among its own negatives.
  if isinstance(objective, dict) and isinstance(data, dict) and objective.get('name') in _COMPARING:
    data.pop('repeats', None)


def _drop_unused_decays(optimizer: dict[str, Any]) -> None:
  """The first edition, which had no `arguments`, wrote the decays of all optimizers."""
  if 'arguments' in optimizer:
    return
  if optimizer.get('name', 'adam') == 'adam':
    optimizer.pop('momentum', None)
  elif optimizer.get('name') == 'sgd':
    optimizer.pop('b1', None)
    optimizer.pop('b2', None)
