"""The ResNets of 'Big Transfer' (BiT) in their published .npz files."""

import re

from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.models.resnet import ResNetConfig
from vit_jax.pretrained.released_names import USUAL_SIZE, Naming, ReleasedNames, Tensors

_PREFIX = 'resnet/'
_HEAD = f'{_PREFIX}head/conv2d/kernel'
_UNIT = re.compile(r'block(\d+)/unit(\d+)/(\w+)/(\w+)')
_AROUND = {
  'root/kernel': f'{_PREFIX}root_block/standardized_conv2d/kernel',
  'norm/scale': f'{_PREFIX}group_norm/gamma',
  'norm/bias': f'{_PREFIX}group_norm/beta',
  'head/kernel': _HEAD,
  'head/bias': f'{_PREFIX}head/conv2d/bias',
}
_IN_UNIT = {
  'conv1/kernel': 'a/standardized_conv2d/kernel',
  'conv2/kernel': 'b/standardized_conv2d/kernel',
  'conv3/kernel': 'c/standardized_conv2d/kernel',
  'projection/kernel': 'a/proj/standardized_conv2d/kernel',
  'norm1/scale': 'a/group_norm/gamma',
  'norm1/bias': 'a/group_norm/beta',
  'norm2/scale': 'b/group_norm/gamma',
  'norm2/bias': 'b/group_norm/beta',
  'norm3/scale': 'c/group_norm/gamma',
  'norm3/bias': 'c/group_norm/beta',
}


class BitNames(ReleasedNames[ResNetConfig]):
  """Of `ResNetConfig`."""

  marks = (_PREFIX,)

  def architecture(self, tensors: Tensors, image_size: tuple[int, int] | None) -> Architecture:
    """Takes images of 224 pixels where no size is given: a ResNet was trained with several, and takes any."""
    _, _, channels, width = tensors.shape(_AROUND['root/kernel'], 4)
    blocks = tensors.stages(_PREFIX)
    if not blocks or not all(blocks):
      raise UserError(
        f'{tensors.name} lacks a stage of its ResNet; it holds a model that vit_jax does not have.'
      )
    classes = tensors.shape(_HEAD, 4)[-1] if _HEAD in tensors.shapes else 0
    return Architecture(ResNetConfig('custom', blocks, width), image_size or USUAL_SIZE, channels, classes)

  def name(self, path: str, naming: Naming) -> str | None:
    """'block1/unit1/conv1/kernel' -> 'resnet/block1/unit01/a/standardized_conv2d/kernel'."""
    match = _UNIT.fullmatch(path)
    if match is None:
      return _AROUND.get(path)
    block, unit, layer, name = match.groups()
    return f'{_PREFIX}block{block}/unit{int(unit):02d}/{_IN_UNIT[f"{layer}/{name}"]}'

  def leading_ones(self, name: str) -> int:
    return 2 if name == _HEAD else 0  # its kernel is that of a 1 × 1 convolution
