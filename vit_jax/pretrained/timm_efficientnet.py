"""`config.json` and tensor names of timm's EfficientNets with TensorFlow's padding (`tf_efficientnet_*`)."""

import dataclasses
import re
from typing import Any

from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.models.efficientnet import VARIANTS, EfficientNetConfig
from vit_jax.pretrained import efficientnet_names
from vit_jax.pretrained.efficientnet_names import StageNames
from vit_jax.pretrained.huggingface import Unfit
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.timm_folder import TimmFolder
from vit_jax.pretrained.timm_names import Shapes
from vit_jax.pretrained.torch_names import Rule

# The endings are of earlier versions of timm.
_NAME = re.compile(
  r'tf_efficientnet(_(b[0-8]|l2|lite[0-4]|e[sml])|v2_(b[0-3]|[sml]|xl))(_ap|_ns|_ns_475|_in21k|_in21ft1k)?'
)
_EPSILON = 1e-3  # of `tf_*`, where model_args say no other
_AROUND = {
  'stem': 'conv_stem',
  'stem_norm': 'bn1',
  'top': 'conv_head',
  'top_norm': 'bn2',
  'head': 'classifier',
}
_LAYERS = {
  'expand': 'conv_pw',
  'expand_norm': 'bn1',
  'depthwise': 'conv_dw',
  'depthwise_norm': 'bn2',
  'squeeze': 'se.conv_reduce',
  'excite': 'se.conv_expand',
  'project': 'conv_pwl',
  'project_norm': 'bn3',
}
# Of the first stage, which expands nothing.
_FIRST_LAYERS = {
  'depthwise': 'conv_dw',
  'depthwise_norm': 'bn1',
  'squeeze': 'se.conv_reduce',
  'excite': 'se.conv_expand',
  'project': 'conv_pw',
  'project_norm': 'bn2',
}

_FUSED = {'expand': 'conv_exp', 'expand_norm': 'bn1', 'project': 'conv_pwl', 'project_norm': 'bn2'}
_CONV = {'project': 'conv', 'project_norm': 'bn1'}


class TimmEfficientNetFormat(TimmFolder):
  """A folder of a `tf_efficientnet_*` of timm's."""

  title = "a folder of timm's EfficientNet"
  names, model = 'tf_efficientnet', EfficientNetConfig
  first_conv, classifier = 'conv_stem', 'classifier'
  known = ('bn_eps',)

  def model_of(self, values: JsonObject, shapes: Shapes) -> tuple[EfficientNetConfig, int]:
    name, arguments = values.text('architecture'), values.section('model_args')
    match = _NAME.fullmatch(name)
    if match is None:
      raise UserError(
        f"{values.path.parent} holds {name}, which vit_jax does not have; of timm's EfficientNets it reads "
        'tf_efficientnet_b0 to b8, l2, lite0 to lite4, es, em and el, and tf_efficientnetv2_b0 to b3, s, m, l and xl.'
      )
    variant = next(variant for variant in VARIANTS if _timm_name(variant) == f'tf_efficientnet{match[1]}')
    model = EfficientNetConfig(variant, norm_epsilon=arguments.number('bn_eps', _EPSILON))
    return model.resolved(), arguments.integer('in_chans', 3)

  def rules(self, architecture: Architecture) -> tuple[Rule, ...]:
    model: Any = architecture.model

    def stage_names(number: int) -> StageNames:
      stage = model.stages[number]
      layers = _LAYERS if stage.expansion > 1 else _FIRST_LAYERS
      return StageNames(
        f'blocks.{number}.{{}}', 0, {'mbconv': layers, 'fused': _FUSED, 'conv': _CONV}[stage.kind]
      )

    head = architecture.num_classes > 0
    return efficientnet_names.rules(architecture.shapes(), _AROUND, stage_names, head=head)

  def named(self, model: EfficientNetConfig) -> tuple[str, int, dict[str, Any]]:
    arguments = {} if model.norm_epsilon == _EPSILON else {'bn_eps': model.norm_epsilon}
    return _timm_name(_variant(model)), model.top_channels, arguments


def _variant(model: EfficientNetConfig) -> str:
  """The name of a size; Unfit where it has none."""
  sizes = model.sizes
  for name, named in VARIANTS.items():
    if named == dataclasses.replace(sizes, dropout=named.dropout, stochastic_depth=named.stochastic_depth):
      return name
  raise Unfit(
    f'it has the published sizes only, none of width_multiplier {sizes.width_multiplier} and depth_multiplier '
    f'{sizes.depth_multiplier}'
  )


def _timm_name(variant: str) -> str:
  """'B0' -> 'tf_efficientnet_b0', 'V2-S' -> 'tf_efficientnetv2_s'."""
  family, _, size = variant.lower().partition('-')
  return (
    f'tf_efficientnet{family}_{size}'
    if family == 'v2'
    else f'tf_efficientnet_{"e" + size if size else family}'
  )
