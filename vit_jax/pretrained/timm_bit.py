"""`config.json` and tensors of timm's ResNets of 'Big Transfer' (`resnetv2_*_bit`)."""

import re
from typing import Any

from vit_jax.models.base import Architecture
from vit_jax.models.resnet import ResNetConfig
from vit_jax.pretrained.base import UnknownModelError
from vit_jax.pretrained.huggingface import Unfit
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.timm_folder import TimmFolder
from vit_jax.pretrained.timm_names import Shapes, shape_of
from vit_jax.pretrained.torch_names import Rule
from vit_jax.pretrained.transformers_bit import stage_blocks, unit_rules

_BIT = re.compile(r'resnetv2_(\d+)x(\d+)_bit')
_STAGES: dict[tuple[int, ...], int] = {(3, 4, 6, 3): 50, (3, 4, 23, 3): 101, (3, 8, 36, 3): 152}
_HEAD = (Rule('head/kernel', 'head.fc.weight', 'conv_1x1'), Rule('head/bias', 'head.fc.bias'))
_AROUND = {'root/kernel': 'stem.conv.weight', 'norm/scale': 'norm.weight', 'norm/bias': 'norm.bias'}


class TimmBitFormat(TimmFolder):
  """A folder of a `resnetv2_*_bit` of timm's."""

  title = "a folder of timm's BiT"
  tellable = frozenset({'norm_epsilon'})
  names, model = 'resnetv2_', ResNetConfig
  first_conv, classifier = 'stem.conv', 'head.fc'
  epsilon = 1e-5

  def model_of(self, values: JsonObject, shapes: Shapes) -> tuple[ResNetConfig, int]:
    if _BIT.fullmatch(values.text('architecture')) is None:
      raise UnknownModelError("of timm's ResNets v2, vit_jax has those of BiT (resnetv2_*_bit)")
    width, channels = shape_of(shapes, 'stem.conv.weight', 4)[:2]
    return ResNetConfig('custom', stage_blocks(shapes), width), channels

  def rules(self, architecture: Architecture) -> tuple[Rule, ...]:
    units = unit_rules(architecture.shapes(), _AROUND, 'stages.{}.blocks.{}.')
    return units + (_HEAD if architecture.num_classes else ())

  def named(self, model: ResNetConfig) -> tuple[str, int, dict[str, Any]]:
    layers, factor = _STAGES.get(model.sizes.blocks), model.sizes.width / 64
    if layers is None or factor != int(factor):
      raise Unfit('it has the published sizes only')
    return f'resnetv2_{layers}x{int(factor)}_bit', 2048 * int(factor), {}
