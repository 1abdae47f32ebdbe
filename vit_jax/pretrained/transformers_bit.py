"""`config.json` and tensor names of `BitModel` and `BitForImageClassification` in transformers."""

import collections
import pathlib
import re
import reprlib
from collections.abc import Iterable, Mapping

from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.models.resnet import ResNetConfig
from vit_jax.pretrained import preprocessor_config
from vit_jax.pretrained.base import ReadOptions, with_told
from vit_jax.pretrained.huggingface import FolderFormat, config_of, link_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import Layout, Rule, check_depth, layer
from vit_jax.pretrained.transformers_family import HALF

_MODEL_TYPE = 'bit'
# What it must say, since we have but one way.
_ONLY = {
  'layer_type': 'preactivation',  # 'bottleneck' is the stem of a hybrid
  'global_padding': None,  # half the kernel on every side, as published; 'SAME' and 'VALID' are not
  'embedding_dynamic_padding': False,
  'hidden_act': 'relu',
  'num_groups': 32,
  'output_stride': 32,
  'width_factor': 1,  # the widths are those of hidden_sizes; transformers itself cannot run another factor
}
_UNIT = re.compile(r'(?:stem/)?block(\d+)/unit(\d+)/(\w+)/(\w+)')
_AROUND = {
  'root/kernel': 'embedder.convolution.weight',
  'norm/scale': 'norm.weight',
  'norm/bias': 'norm.bias',
}


class BitFormat(FolderFormat):
  """A folder of `BitModel` or `BitForImageClassification`; it can be read only.

  transformers adds 1e-8 to the variance of the weights, where the published code and ours add 1e-10: a
  difference for kernels of a deviation below 0.001 only.
  """

  title = "a folder of transformers' BiT"
  group = None  # of none that is written
  tellable = frozenset({'norm_epsilon'})

  def recognises(self, path: pathlib.Path) -> bool:
    values = config_of(path)
    return values is not None and values.raw('model_type') == _MODEL_TYPE

  def layout(self, files: TensorFiles, values: JsonObject, options: ReadOptions) -> Layout:
    folder = values.path.parent
    model = with_told(folder, _model(values), options.told)
    channels = values.integer('num_channels', 3)
    num_classes = files.shapes.get('classifier.1.bias', (0,))[0]
    preprocess, notes = preprocessor_config.read(
      folder, image_size=None, channels=channels, default=HALF, processor='Bit'
    )
    architecture = Architecture(model, preprocess.size, channels, num_classes)
    check_depth(files, architecture)
    prefix = files.prefix('bit.')
    return Layout(
      architecture=architecture,
      rules=_rules(architecture, prefix),
      tokens=None,
      preprocess=preprocess,
      class_names=values.class_names(num_classes),
      notes=notes,
      link=link_of(values, num_classes),
    )


def _model(values: JsonObject) -> ResNetConfig:
  """The ResNet that a config.json describes; UserError where we do not have it."""
  values.check_only(_ONLY, 'ResNets')
  width, blocks = values.integer('embedding_size', 64), values.raw('depths', [3, 4, 6, 3])
  if not isinstance(blocks, list) or not all(type(units) is int and 0 < units <= 1000 for units in blocks):
    raise values.error('depths', blocks, 'positive integers')
  if not 1 <= len(blocks) <= 4:  # with a fifth, transformers dilates convolutions
    raise UserError(f'{values.path} has {len(blocks)} stages; choose a checkpoint of 1 to 4.')
  wanted = [4 * width * 2**stage for stage in range(len(blocks))]
  sizes = values.raw('hidden_sizes', [256, 512, 1024, 2048])
  if sizes != wanted:
    raise UserError(
      f'{values.path} has hidden_sizes {reprlib.repr(sizes)}, and vit_jax has {wanted} above a root of {width} '
      'channels; choose another checkpoint.'
    )
  return ResNetConfig('custom', tuple(blocks), width)


def _rules(architecture: Architecture, prefix: str) -> tuple[Rule, ...]:
  around = {path: prefix + name for path, name in _AROUND.items()}
  rules = unit_rules(architecture.shapes(), around, prefix + 'encoder.stages.{}.layers.{}.')
  return rules + (layer('head', 'classifier.1') if architecture.num_classes else ())


def stage_blocks(names: Iterable[str], before: str = '') -> tuple[int, ...]:
  """How many blocks each stage has, by timm's names of tensors, which begin '{before}stages.0.blocks.1.' and so on."""
  pattern = re.compile(rf'{re.escape(before)}stages\.(\d+)\.blocks\.(\d+)\.')
  units = {(int(match[1]), match[2]) for name in names if (match := pattern.match(name))}
  blocks = collections.Counter(stage for stage, _ in units)
  return tuple(blocks[number] for number in range(len(blocks)))


def unit_rules(paths: Iterable[str], around: Mapping[str, str], unit: str) -> tuple[Rule, ...]:
  """Of all but the head: names of what is in no unit, and how those of a unit begin, by the numbers from 0."""
  rules = []
  for path in paths:
    match = _UNIT.fullmatch(path)
    if match is not None:
      block, number, layer_name, leaf = match.groups()
      layer_name = layer_name.replace('projection_norm', 'downsample.norm').replace(
        'projection', 'downsample.conv'
      )
      leaf = 'bias' if leaf == 'bias' else 'weight'
      name = f'{unit.format(int(block) - 1, int(number) - 1)}{layer_name}.{leaf}'
    elif path in around:
      name = around[path]
    else:
      continue
    rules.append(Rule(path, name, 'conv' if path.endswith('/kernel') else 'same'))
  return tuple(rules)
