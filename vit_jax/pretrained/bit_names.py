"""What the parameters of a BiT ResNet are called in its published .npz, and in transformers."""

import re

_UNIT = re.compile(r'block(\d+)/unit(\d+)/(\w+)/(\w+)')
_PUBLISHED = {
  'root/kernel': 'resnet/root_block/standardized_conv2d/kernel',
  'norm/scale': 'resnet/group_norm/gamma',
  'norm/bias': 'resnet/group_norm/beta',
  'head/kernel': 'resnet/head/conv2d/kernel',
  'head/bias': 'resnet/head/conv2d/bias',
}
_PUBLISHED_IN_UNIT = {
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
_TRANSFORMERS = {
  'root/kernel': 'embedder.convolution.weight',
  'norm/scale': 'norm.weight',
  'norm/bias': 'norm.bias',
}


def published(path: str) -> str | None:
  """'block1/unit1/conv1/kernel' -> 'resnet/block1/unit01/a/standardized_conv2d/kernel'; or None."""
  match = _UNIT.fullmatch(path)
  if match is None:
    return _PUBLISHED.get(path)
  block, unit, layer, name = match.groups()
  return f'resnet/block{block}/unit{int(unit):02d}/{_PUBLISHED_IN_UNIT[f"{layer}/{name}"]}'


def transformers(path: str) -> str:
  """'block1/unit1/conv1/kernel' -> 'encoder.stages.0.layers.0.conv1.weight', without the prefix 'bit.'."""
  match = _UNIT.fullmatch(path)
  if match is None:
    return _TRANSFORMERS[path]
  block, unit, layer, name = match.groups()
  layer = 'downsample.conv' if layer == 'projection' else layer
  name = 'bias' if name == 'bias' else 'weight'
  return f'encoder.stages.{int(block) - 1}.layers.{int(unit) - 1}.{layer}.{name}'
