"""The architecture of a released checkpoint, read off the names and shapes of its tensors."""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from vit_jax import config
from vit_jax.errors import UserError
from vit_jax.models.variants import resolve

Shapes = Mapping[str, tuple[int, ...]]

_BLOCK = 'Transformer/encoderblock_'
_RESNET = 'resnet/'
BIT_NORM_EPSILON = 1e-5  # of the published ResNets


class Architecture(NamedTuple):
  """Everything that decides the shapes of a model's parameters."""

  model: config.Model
  image_size: tuple[int, int]
  channels: int
  num_classes: int  # 0: no head


class Tensors:
  """The shapes of a file, with an error for what is not there."""

  def __init__(self, name: object, shapes: Shapes):
    """
    Args:
      name: of the file, for errors.
      shapes: of the tensors, by the names of the original.
    """
    self.name = name
    self.shapes = shapes

  def shape(self, key: str, rank: int) -> tuple[int, ...]:
    """The shape of a tensor that must be there, with `rank` dimensions.

    Raises:
      UserError: it is not.
    """
    if key not in self.shapes:
      raise UserError(f'{self.name} has no tensor {key}; the file is incomplete, get it again.')
    if len(self.shapes[key]) != rank:
      raise self.misfit(key, f'{rank} dimensions are expected')
    return self.shapes[key]

  def misfit(self, key: str, why: str) -> UserError:
    return UserError(
      f'{self.name} has {key} of shape {self.shapes[key]}, which fits no architecture we know ({why}).'
    )

  def depth(self, prefix: str) -> int:
    """How many blocks there are, named prefix0, prefix1, …"""
    pattern = re.compile(re.escape(prefix) + r'(\d+)/')
    return 1 + max((int(match[1]) for match in map(pattern.match, self.shapes) if match), default=-1)


def infer(name: object, shapes: Shapes, image_size: tuple[int, int] | None) -> Architecture:
  """The architecture of a file.

  Args:
    name: of the file, for errors.
    shapes: of its tensors, by the names of the original, without prefix.
    image_size: that it was trained with; None: a square, and of a ResNet, which has any, 224 pixels.

  Raises:
    UserError: tensors that are of no model we know.
  """
  tensors = Tensors(name, shapes)
  if not any(key.startswith((_BLOCK, 'MixerBlock_', 'embedding/', 'stem/', _RESNET)) for key in shapes):
    some = ', '.join(sorted(shapes)[:3]) or 'nothing at all'
    raise UserError(f'{name} holds no Vision Transformer: its tensors are {some} …; choose another file.')
  if any(key.startswith(_RESNET) for key in shapes):
    return _resnet(tensors, image_size)
  return (_mixer if 'stem/kernel' in shapes else _vit)(tensors, image_size)


def _vit(tensors: Tensors, image_size: tuple[int, int] | None) -> Architecture:
  patch, channels, width = _patches(tensors, 'embedding/kernel')
  stem = {}
  if 'conv_root/kernel' in tensors.shapes:
    _, _, channels, stem_width = tensors.shape('conv_root/kernel', 4)
    stem = {'stem_blocks': _stages(tensors), 'stem_width': stem_width}
  depth = tensors.depth(_BLOCK)
  if depth == 0:
    raise UserError(f'{tensors.name} has no {_BLOCK}0; the file is incomplete, get it again.')
  linen = f'{_BLOCK}0/MlpBlock_0/Dense_0/kernel' in tensors.shapes
  attention, mlp = (f'{_BLOCK}0/{n}' for n in _ATTENTION_AND_MLP[linen])
  query = f'{attention}/query/kernel'
  _, heads, head_width = tensors.shape(query, 3)
  if heads * head_width != width:
    raise tensors.misfit(query, f'its heads do not make up the width of {width}')
  _, mlp_dim = tensors.shape(f'{mlp}/Dense_0/kernel', 2)
  class_token = 'cls' in tensors.shapes
  model = config.Model(
    variant='custom',
    patch=patch,
    width=width,
    mlp_dim=mlp_dim,
    depth=depth,
    heads=heads,
    pool='token' if class_token else 'gap',
    representation_size=_representation(tensors),
    **stem,
  )
  _, positions, _ = tensors.shape('Transformer/posembed_input/pos_embedding', 3)
  pixels = patch * resolve(model).stem_stride
  size = _image_size(tensors, positions - class_token, pixels, image_size)
  return Architecture(model, size, channels, _classes(tensors))


_ATTENTION_AND_MLP = (
  ('MultiHeadDotProductAttention_1', 'MlpBlock_3'),
  ('MultiHeadDotProductAttention_0', 'MlpBlock_0'),
)


def _mixer(tensors: Tensors, image_size: tuple[int, int] | None) -> Architecture:
  patch, channels, width = _patches(tensors, 'stem/kernel')
  tokens, tokens_mlp_dim = tensors.shape('MixerBlock_0/token_mixing/Dense_0/kernel', 2)
  _, mlp_dim = tensors.shape('MixerBlock_0/channel_mixing/Dense_0/kernel', 2)
  model = config.Model(
    variant='custom',
    patch=patch,
    width=width,
    mlp_dim=mlp_dim,
    depth=tensors.depth('MixerBlock_'),
    tokens_mlp_dim=tokens_mlp_dim,
    pool='gap',
  )
  return Architecture(model, _image_size(tensors, tokens, patch, image_size), channels, _classes(tensors))


def _resnet(tensors: Tensors, image_size: tuple[int, int] | None) -> Architecture:
  _, _, channels, width = tensors.shape(f'{_RESNET}root_block/standardized_conv2d/kernel', 4)
  blocks = _stages(tensors, _RESNET)
  if not blocks or not all(blocks):
    raise UserError(f'{tensors.name} lacks a stage of its ResNet; the file is incomplete, get it again.')
  model = config.Model(
    variant='custom', width=width, resnet_blocks=blocks, pool='gap', norm_epsilon=BIT_NORM_EPSILON
  )
  head = f'{_RESNET}head/conv2d/kernel'
  classes = tensors.shape(head, 4)[3] if head in tensors.shapes else 0
  return Architecture(model, image_size or (224, 224), channels, classes)


def _patches(tensors: Tensors, key: str) -> tuple[int, int, int]:
  """Side, input channels and width of the kernel that embeds patches."""
  height, patch, channels, width = tensors.shape(key, 4)
  if height != patch:
    raise tensors.misfit(key, 'a patch is a square')
  return patch, channels, width


def _stages(tensors: Tensors, prefix: str = '') -> tuple[int, ...]:
  """Bottlenecks in each stage of a ResNet."""
  pattern = re.compile(prefix + r'block(\d+)/unit(\d+)/')
  found = [match for match in map(pattern.match, tensors.shapes) if match]
  stages = 1 + max((int(match[1]) for match in found), default=0)
  return tuple(
    max((int(match[2]) for match in found if int(match[1]) == stage), default=0) for stage in range(1, stages)
  )


def _representation(tensors: Tensors) -> int | None:
  if not any(key.startswith('pre_logits/') for key in tensors.shapes):
    return None
  return tensors.shape('pre_logits/kernel', 2)[1]


def _classes(tensors: Tensors) -> int:
  if not any(key.startswith('head/') for key in tensors.shapes):
    return 0
  return tensors.shape('head/kernel', 2)[1]


def _image_size(tensors: Tensors, tokens: int, pixels: int, told: tuple[int, int] | None) -> tuple[int, int]:
  """Height and width of images that give `tokens` patches of `pixels` × `pixels`."""
  side = math.isqrt(max(tokens, 0))
  if side * side == tokens and side:
    return side * pixels, side * pixels
  if told is None:
    raise UserError(
      f'{tensors.name} has positions for {tokens} patches of {pixels} pixels, which are no square; '
      'give the image_size (height, width) it was trained with, unless a class token is missing.'
    )
  if (told[0] // pixels) * (told[1] // pixels) != tokens or any(side % pixels for side in told):
    raise UserError(
      f'{tensors.name} has positions for {tokens} patches of {pixels} pixels, which image_size '
      f'{tuple(told)} does not give; give the one it was trained with.'
    )
  return told
