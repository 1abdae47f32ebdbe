"""`config.json` and tensor names of `BitModel` and `BitForImageClassification` in transformers."""

import dataclasses
import pathlib
from typing import Any

from vit_jax import config, pytrees
from vit_jax.errors import UserError
from vit_jax.pretrained import bit_names, config_json, preprocessor_config
from vit_jax.pretrained.released_architecture import BIT_NORM_EPSILON
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import Layout, Rule, layer

MODEL_TYPE = 'bit'
# Of config.json, where it says nothing.
_DEFAULTS = {
  'num_channels': 3,
  'embedding_size': 64,
  'hidden_sizes': [256, 512, 1024, 2048],
  'depths': [3, 4, 6, 3],
}
# How images are prepared where no file says it: as of the published checkpoints there.
_PREPROCESS = {'mean': (0.5, 0.5, 0.5), 'std': (0.5, 0.5, 0.5), 'antialias': True}
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


def layout(files: TensorFiles, folder: pathlib.Path, values: dict[str, Any], told: dict[str, Any]) -> Layout:
  """What a folder holds; arguments as of `transformers_folder.layout`.

  transformers adds 1e-8 to the variance of the weights, where the published code and ours add 1e-10: a
  difference for kernels of a deviation below 0.001 only.

  Raises:
    UserError: config.json describes a ResNet that we do not have, or is damaged.
  """
  for name, only in _ONLY.items():
    if values.get(name, only) != only:
      raise UserError(
        f'{folder}/config.json has {name} {values[name]!r}, and vit_jax has ResNets with {only!r} only; '
        'choose another checkpoint.'
      )
  values = _DEFAULTS | values
  width, blocks = config_json.integer(folder, values, 'embedding_size'), values['depths']
  if not isinstance(blocks, list) or not all(type(units) is int and units > 0 for units in blocks):
    raise UserError(f'{folder}/config.json has depths {blocks!r}, which must be positive integers.')
  if not 1 <= len(blocks) <= 4:  # with a fifth, transformers dilates convolutions
    raise UserError(f'{folder}/config.json has {len(blocks)} stages; choose a checkpoint of 1 to 4.')
  wanted = [4 * width * 2**stage for stage in range(len(blocks))]
  if values['hidden_sizes'] != wanted:
    raise UserError(
      f'{folder}/config.json has hidden_sizes {values["hidden_sizes"]!r}, and vit_jax has {wanted} above a '
      f'root of {width} channels; choose another checkpoint.'
    )
  model = config.Model(
    variant='custom', width=width, resnet_blocks=tuple(blocks), pool='gap', norm_epsilon=BIT_NORM_EPSILON
  )
  model = dataclasses.replace(model, **told)
  channels = config_json.integer(folder, values, 'num_channels')
  num_classes = files.shapes.get('classifier.1.bias', (0,))[0]
  preprocess, notes = preprocessor_config.read(
    folder, image_size=None, channels=channels, default=_PREPROCESS
  )
  prefix = 'bit.' if any(name.startswith('bit.') for name in files.shapes) else ''
  return Layout(
    model=model,
    image_size=preprocess.size,
    channels=channels,
    num_classes=num_classes,
    rules=_rules(model, prefix, channels, num_classes),
    tokens=None,
    preprocess=preprocess,
    position_resize='linear',
    class_names=config_json.class_names(folder, values, num_classes),
    notes=notes,
  )


def _rules(model: config.Model, prefix: str, channels: int, num_classes: int) -> tuple[Rule, ...]:
  _, shapes = pytrees.shapes(model, (32, 32), channels, num_classes)
  rules = tuple(
    Rule(path, prefix + bit_names.transformers(path), 'conv' if path.endswith('/kernel') else 'same')
    for path in shapes
    if not path.startswith('head/')
  )
  return rules + (layer('head', 'classifier.1') if num_classes else ())
