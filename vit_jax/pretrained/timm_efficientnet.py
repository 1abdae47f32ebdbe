"""`config.json` and tensor names of timm's EfficientNets with TensorFlow's padding (`tf_efficientnet_*`)."""

import dataclasses
import pathlib
import re
from collections.abc import Iterable
from typing import Any

from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.models.efficientnet import VARIANTS, EfficientNetConfig
from vit_jax.pretrained import efficientnet_names, timm_config
from vit_jax.pretrained.base import SIGMOID_LOST, Pretrained, ReadOptions, with_told
from vit_jax.pretrained.efficientnet_names import StageNames, step_counts
from vit_jax.pretrained.huggingface import FolderFormat, Unfit, config_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import HEAD_PATHS, Export, Layout, Rule

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


class TimmEfficientNetFormat(FolderFormat):
  """A folder of a `tf_efficientnet_*` of timm's."""

  title = "a folder of timm's EfficientNet"

  def recognises(self, path: pathlib.Path) -> bool:
    return timm_config.names(config_of(path), 'tf_efficientnet')

  def layout(self, files: TensorFiles, values: JsonObject, options: ReadOptions) -> Layout:
    folder = values.path.parent
    arguments = values.section('model_args')
    timm_config.check(values, 'bn_eps')
    published = timm_config.published(values)
    model = with_told(folder, _model(folder, values.text('architecture'), arguments), options.told)
    image_size = timm_config.image_size(published) or (224, 224)
    channels = arguments.integer('in_chans', 3)
    num_classes = files.shapes.get('classifier.bias', (0,))[0]
    architecture = Architecture(model, image_size, channels, num_classes)
    return timm_config.layout(
      architecture, _rules(model, architecture.shapes(), head=num_classes > 0), published
    )

  def export(self, pretrained: Pretrained) -> Export:
    architecture = pretrained.architecture
    model = architecture.model
    if type(model) is not EfficientNetConfig:
      raise Unfit(f'it is for EfficientNets, and this is {model.title}')
    published, notes = timm_config.written(pretrained, first_conv='conv_stem', classifier='classifier')
    if pretrained.link == 'sigmoid':
      notes += (SIGMOID_LOST,)
    params = pytrees.flatten(pretrained.params)
    rules = _rules(model, params, head=architecture.num_classes > 0)
    arguments: dict[str, Any] = {'in_chans': architecture.channels}
    if model.norm_epsilon != _EPSILON:
      arguments['bn_eps'] = model.norm_epsilon
    name = _timm_name(_variant(model))
    return Export(
      rules=rules,
      tokens=None,
      config=timm_config.config(
        name, architecture, published, features=model.top_channels, arguments=arguments
      ),
      constants=step_counts(rules, params),
      dropped=frozenset() if architecture.num_classes else HEAD_PATHS,
      notes=notes,
    )


def _model(folder: pathlib.Path, name: str, arguments: JsonObject) -> EfficientNetConfig:
  """The EfficientNet of a name; UserError where we do not have it."""
  match = _NAME.fullmatch(name)
  if match is None:
    raise UserError(
      f"{folder} holds {name}, which vit_jax does not have; of timm's EfficientNets it reads tf_efficientnet_b0 to b8, "
      'l2, lite0 to lite4, es, em and el, and tf_efficientnetv2_b0 to b3, s, m, l and xl.'
    )
  variant = next(variant for variant in VARIANTS if _timm_name(variant) == f'tf_efficientnet{match[1]}')
  model = EfficientNetConfig(variant, norm_epsilon=arguments.number('bn_eps', _EPSILON))
  return model.resolved()


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


def _rules(model: EfficientNetConfig, paths: Iterable[str], *, head: bool) -> tuple[Rule, ...]:
  stages = model.stages

  def stage_names(number: int) -> StageNames:
    stage = stages[number]
    layers = _LAYERS if stage.expansion > 1 else _FIRST_LAYERS
    return StageNames(
      f'blocks.{number}.{{}}', 0, {'mbconv': layers, 'fused': _FUSED, 'conv': _CONV}[stage.kind]
    )

  return efficientnet_names.rules(paths, _AROUND, stage_names, head=head)
