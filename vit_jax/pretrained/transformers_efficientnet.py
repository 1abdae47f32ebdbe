"""`config.json` and tensor names of `EfficientNetModel` and `EfficientNetForImageClassification` in transformers."""

import pathlib
from collections.abc import Iterable
from typing import Any

from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.models.efficientnet import EfficientNetConfig
from vit_jax.models.efficientnet_families import FAMILIES
from vit_jax.pretrained import efficientnet_names, preprocessor_config
from vit_jax.pretrained.base import Pretrained, ReadOptions, with_told
from vit_jax.pretrained.efficientnet_names import StageNames, step_counts
from vit_jax.pretrained.huggingface import FolderFormat, Unfit, config_of, link_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import HEAD_PATHS, Export, Layout, Rule
from vit_jax.pretrained.transformers import written_classes
from vit_jax.pretrained.transformers_family import IMAGENET

_MODEL_TYPE = 'efficientnet'
_PREFIX = 'efficientnet.'
# What it must say, since all published sizes do.
_B0 = FAMILIES['B'].stages
_ONLY = {
  'depth_divisor': 8,
  'expand_ratios': [stage.expansion for stage in _B0],
  'hidden_act': 'swish',
  'in_channels': [stage.inputs for stage in _B0],
  'kernel_sizes': [stage.kernel for stage in _B0],
  'num_block_repeats': [stage.blocks for stage in _B0],
  'out_channels': [stage.outputs for stage in _B0],
  'pooling_type': 'mean',
  'squeeze_expansion_ratio': 0.25,
  'strides': [stage.stride for stage in _B0],
}
_AROUND = {
  'stem': 'embeddings.convolution',
  'stem_norm': 'embeddings.batchnorm',
  'top': 'encoder.top_conv',
  'top_norm': 'encoder.top_bn',
}
_LAYERS = {
  'expand': 'expansion.expand_conv',
  'expand_norm': 'expansion.expand_bn',
  'depthwise': 'depthwise_conv.depthwise_conv',
  'depthwise_norm': 'depthwise_conv.depthwise_norm',
  'squeeze': 'squeeze_excite.reduce',
  'excite': 'squeeze_excite.expand',
  'project': 'projection.project_conv',
  'project_norm': 'projection.project_bn',
}


class EfficientNetFormat(FolderFormat):
  """A folder of `EfficientNetModel` or `EfficientNetForImageClassification`."""

  title = "a folder of transformers' EfficientNet"

  def recognises(self, path: pathlib.Path) -> bool:
    values = config_of(path)
    return values is not None and values.raw('model_type') == _MODEL_TYPE

  def layout(self, files: TensorFiles, values: JsonObject, options: ReadOptions) -> Layout:
    folder = values.path.parent
    model = with_told(folder, _model(values), options.told)
    image_size, channels = values.sides('image_size', 600), values.integer('num_channels', 3)
    num_classes = files.shapes.get('classifier.bias', (0,))[0]
    preprocess, notes = preprocessor_config.read(
      folder, image_size=image_size, channels=channels, default=IMAGENET, processor='EfficientNet'
    )
    architecture = Architecture(model, image_size, channels, num_classes)
    prefix = files.prefix(_PREFIX)
    return Layout(
      architecture=architecture,
      rules=_rules(model, architecture.shapes(), prefix, head=num_classes > 0),
      tokens=None,
      preprocess=preprocess,
      class_names=values.class_names(num_classes),
      notes=notes + _padding_notes(values, model, image_size),
      link=link_of(values, num_classes),
    )

  def export(self, pretrained: Pretrained) -> Export:
    architecture = pretrained.architecture
    model = architecture.model
    if type(model) is not EfficientNetConfig:
      raise Unfit(f'it is for EfficientNets, and this is {model.title}')
    if model.sizes.family != 'B':
      raise Unfit(f'it is for the family of B0, and this is {model.sizes.family}')
    if _adds_input_in_first_block(model):
      raise Unfit('the first block of a stage never adds its input there')
    head = bool(architecture.num_classes)
    params = pytrees.flatten(pretrained.params)
    rules = _rules(model, params, _PREFIX if head else '', head=head)
    text, notes = preprocessor_config.write(pretrained.preprocess)
    padded = padded_evenly(model, architecture.image_size)
    if padded is None:
      notes += (_other_padding(architecture.image_size),)
    return Export(
      rules=rules,
      tokens=None,
      config=_written_config(pretrained, model, padded or []),
      texts={preprocessor_config.FILE: text},
      constants=step_counts(rules, params),
      dropped=frozenset() if head else HEAD_PATHS,
      notes=notes,
    )


def _model(values: JsonObject) -> EfficientNetConfig:
  """The EfficientNet that a config.json describes; UserError where we do not have it."""
  silu = {'hidden_act': 'silu'} if values.raw('hidden_act') == 'silu' else {}  # the same by another name
  values.check_only(_ONLY | silu, 'EfficientNets')
  model = EfficientNetConfig(
    'custom',
    width_multiplier=values.number('width_coefficient', 2.0, low=0.1, high=20),
    depth_multiplier=values.number('depth_coefficient', 3.1, low=0.1, high=20),
    dropout=values.number('dropout_rate', 0.5, low=0, high=0.999),
    stochastic_depth=values.number('drop_connect_rate', 0.2, low=0, high=0.999),
    norm_epsilon=values.number('batch_norm_eps', 1e-3),
  )
  if values.integer('hidden_dim', 2560) != model.top_channels:
    raise UserError(
      f'{values.path} has hidden_dim {values.raw("hidden_dim")}, and vit_jax has {model.top_channels} at this '
      'width_coefficient; choose another checkpoint.'
    )
  if _adds_input_in_first_block(model):
    raise UserError(
      f'{values.path} has a width_coefficient of {model.width_multiplier}, at which vit_jax adds the input in the '
      'first block of a stage, and transformers does not; choose another checkpoint.'
    )
  return model


def _adds_input_in_first_block(model: EfficientNetConfig) -> bool:
  """Whether a stage's first block adds its input, which no published width does, and transformers never."""
  return any(stage.stride == 1 and stage.inputs == stage.outputs for stage in model.stages)


def _written_config(
  pretrained: Pretrained, model: EfficientNetConfig, depthwise_padding: list[int]
) -> dict[str, Any]:
  architecture, sizes = pretrained.architecture, model.sizes
  height, width = architecture.image_size
  head = bool(architecture.num_classes)
  return {
    **_ONLY,
    'architectures': ['EfficientNetForImageClassification' if head else 'EfficientNetModel'],
    'batch_norm_eps': model.norm_epsilon,
    'depth_coefficient': sizes.depth_multiplier,
    'depthwise_padding': depthwise_padding,
    'drop_connect_rate': sizes.stochastic_depth,
    'dropout_rate': sizes.dropout,
    'dtype': 'float32',
    'hidden_dim': model.top_channels,
    'image_size': height if height == width else [height, width],
    'model_type': _MODEL_TYPE,
    'num_channels': architecture.channels,
    'width_coefficient': sizes.width_multiplier,
    **written_classes(pretrained, head=head),
  }


def _rules(model: EfficientNetConfig, paths: Iterable[str], prefix: str, *, head: bool) -> tuple[Rule, ...]:
  around = {ours: prefix + theirs for ours, theirs in _AROUND.items()} | {'head': 'classifier'}

  def stage_names(stage: int) -> StageNames:
    before = sum(each.blocks for each in model.stages[:stage])
    return StageNames(prefix + 'encoder.blocks.{}', before, _LAYERS)

  return efficientnet_names.rules(paths, around, stage_names, head=head)


def padded_evenly(model: EfficientNetConfig, image_size: tuple[int, int]) -> list[int] | None:
  """transformers' `depthwise_padding` for an image size.

  TensorFlow pads the input of a convolution of stride 2 on all sides alike where its height and width are odd, and
  more at the end where they are even. In transformers it is fixed in which blocks it is the former.

  Returns:
    The numbers of those blocks; None: transformers has no such padding, of odd images or an odd side beside an even.
  """
  cells, number, result = image_size, 0, []
  if any(side % 2 for side in cells):
    return None
  cells = cells[0] // 2, cells[1] // 2
  for stage in model.stages:
    if stage.stride == 2:
      if cells[0] % 2 != cells[1] % 2:
        return None
      if cells[0] % 2:
        result.append(number)
      cells = -(-cells[0] // 2), -(-cells[1] // 2)
    number += stage.blocks
  return result


def _padding_notes(
  values: JsonObject, model: EfficientNetConfig, image_size: tuple[int, int]
) -> tuple[str, ...]:
  """A sentence where transformers pads otherwise than the published code, which is how ours pads."""
  given = values.raw('depthwise_padding', [])
  if not isinstance(given, list) or not all(type(number) is int for number in given):
    raise values.error('depthwise_padding', given, 'a list of integers')
  starts = {sum(stage.blocks for stage in model.stages[:s]) for s in range(len(model.stages))}
  if padded_evenly(model, image_size) == sorted(starts & set(given)):
    return ()
  return (_other_padding(image_size),)


def _other_padding(image_size: tuple[int, int]) -> str:
  return (
    f'Images of {image_size[0]} x {image_size[1]} are padded as by the published code; transformers pads them '
    'otherwise, so that its logits differ.'
  )
