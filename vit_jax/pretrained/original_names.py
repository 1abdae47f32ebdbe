"""Lone .safetensors files under the names of the code that their models were published with.

DINOv2, DINOv3, MAE with its decoder, and torchvision. Sizes are read off the tensors; what no tensor tells is taken as
published, and said. They are read only: transformers or timm has a folder for each of these models.
"""

import abc
import dataclasses
import math
import pathlib
import re
from typing import Any, ClassVar

from vit_jax.models.base import Grid
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained import safetensors_files
from vit_jax.pretrained.base import Pretrained, ReadOptions, UnknownModelError
from vit_jax.pretrained.huggingface import Unfit, config_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import Export, Layout, Rule, Tokens, attention, fused, layer, norm
from vit_jax.pretrained.transformers import TransformersFormat
from vit_jax.pretrained.transformers_family import IMAGENET, Family

# Heads of the widths that have not 64 channels each, as all these projects have them.
_HEADS = {1280: 16, 1408: 16, 1664: 16}
_QKV = (
  *attention('blocks/attention/query', 'blocks.{}.attn.qkv', (0, 3)),
  *attention('blocks/attention/key', 'blocks.{}.attn.qkv', (1, 3)),
  *attention('blocks/attention/value', 'blocks.{}.attn.qkv', (2, 3)),
)
BLOCKS = (
  *layer('patch_embedding', 'patch_embed.proj', 'conv'),
  *norm('norm', 'norm'),
  *norm('blocks/attention_norm', 'blocks.{}.norm1'),
  *_QKV,
  *layer('blocks/attention/out', 'blocks.{}.attn.proj', 'out'),
  Rule('blocks/attention_scale', 'blocks.{}.ls1.gamma'),
  *norm('blocks/mlp_norm', 'blocks.{}.norm2'),
  Rule('blocks/mlp_scale', 'blocks.{}.ls2.gamma'),
)
DENSE = (
  *layer('blocks/mlp/dense_in', 'blocks.{}.mlp.fc1'),
  *layer('blocks/mlp/dense_out', 'blocks.{}.mlp.fc2'),
)
# SwiGLU with both layers in one tensor, and in two.
_PACKED = (
  *fused(('blocks/mlp/dense_gate', 'blocks/mlp/dense_in'), 'blocks.{}.mlp.w12'),
  *layer('blocks/mlp/dense_out', 'blocks.{}.mlp.w3'),
)
_SPLIT = (
  *layer('blocks/mlp/dense_gate', 'blocks.{}.mlp.w1'),
  *layer('blocks/mlp/dense_in', 'blocks.{}.mlp.w2'),
  *layer('blocks/mlp/dense_out', 'blocks.{}.mlp.w3'),
)
_TOKENS = Tokens('pos_embed', 'cls_token', 'register_tokens')
_UNUSED: dict[str, str | None] = {
  'mask_token': 'The mask token, which only pre-training uses, is left out.',
  r'decoder_.*': 'The decoder, which only pre-training uses, is left out.',
  r'rope_embed\.periods|.*\.bias_mask': None,  # which follow from the sizes
}


class NamedFormat(TransformersFormat):
  """A lone file, recognised by the names of its tensors."""

  tellable = frozenset({'activation', 'norm_epsilon', 'heads'})
  # Names that tell it.
  marks: ClassVar[tuple[str, ...]] = ()
  # Tensors by which sizes are found, of which a file has one: of the patch embedding, and of a block's first MLP layer.
  patches: ClassVar[tuple[str, ...]] = ('patch_embed.proj.weight',)
  hidden: ClassVar[tuple[str, ...]] = ('blocks.0.mlp.fc1.weight',)
  # Start of the names of a block's tensors, a regex whose group is its number.
  block: ClassVar[str] = r'blocks\.(\d+)\.'

  @abc.abstractmethod
  def described(self, files: TensorFiles) -> dict[str, Any]:
    """The values that a config.json would have, beside the sizes; UnknownModelError: it is another model."""

  def recognises(self, path: pathlib.Path) -> bool:
    if path.suffix != '.safetensors' or path.is_dir() or config_of(path) is not None:
      return False
    names = safetensors_files.names(path)
    return all(mark in names for mark in self.marks)

  def layout(self, files: TensorFiles, values: JsonObject, options: ReadOptions) -> Layout:
    described = self.sizes(files) | self.described(files)
    layout = super().layout(files, JsonObject(values.path, described), options)
    return dataclasses.replace(layout, notes=(*layout.notes, *self.guesses(files, layout)))

  def guesses(self, files: TensorFiles, layout: Layout) -> tuple[str, ...]:
    """Sentences on what no tensor tells."""
    model: Any = layout.architecture.model
    size = layout.architecture.image_size
    return (
      f'{files.source.name} has no config.json: heads {model.heads}, activation {model.activation!r}, norm_epsilon '
      f'{model.norm_epsilon:g} and images of {size[0]} x {size[1]} are taken, as its project has them.',
    )

  def sizes(self, files: TensorFiles) -> dict[str, Any]:
    """Those that tensors tell, in the terms of a config.json."""
    shapes = files.shapes
    patches = [shapes[name] for name in self.patches if len(shapes.get(name, ())) == 4]
    hidden = [shapes[name][0] for name in self.hidden if name in shapes]
    if not patches or not hidden:
      raise UnknownModelError(f'it has no tensors {self.patches[0]} and {self.hidden[0]}')
    width, channels, *patch = patches[0]
    numbers = [int(match[1]) for name in files.shapes if (match := re.match(self.block, name))]
    return {
      'hidden_size': width,
      'num_channels': channels,
      'patch_size': patch,
      'num_hidden_layers': max(numbers, default=0) + 1,
      'num_attention_heads': _HEADS.get(width, max(width // 64, 1)),
      'intermediate_size': hidden[0],
    }

  def image_side(self, files: TensorFiles, positions: str, others: int = 1) -> int:
    """Pixels of a side of square images, by the number of positions, `others` of which are no patches'."""
    tokens = files.shapes[positions][-2] - others
    return math.isqrt(max(tokens, 1)) * next(
      files.shapes[name][-1] for name in self.patches if name in files.shapes
    )

  def values(self, model: ViTConfig) -> dict[str, Any]:
    return {}

  def export(self, pretrained: Pretrained) -> Export:
    raise Unfit('it can be read, but not written')


def _registers(files: TensorFiles, name: str) -> int:
  return files.shapes[name][1] if name in files.shapes else 0


class OriginalFormat(NamedFormat):
  """DINOv2, DINOv3 or MAE."""

  title = "a file of DINOv2's, DINOv3's or MAE's own names"
  families = {
    'dinov2': Family(
      'DINOv2', '', BLOCKS, _TOKENS, {'layer_norm_eps': 1e-6}, 'bicubic', IMAGENET, 256 / 224, (), _UNUSED
    ),
    'dinov3': Family(
      'DINOv3',
      '',
      BLOCKS,
      Tokens(None, 'cls_token', 'storage_tokens'),
      {'layer_norm_eps': 1e-5},
      'bicubic',
      IMAGENET,
      biases=(('blocks/attention/key/bias', None, False),),  # which is masked
      ignored=_UNUSED,
    ),
    'mae': Family(
      'MAE', '', BLOCKS, _TOKENS, {'layer_norm_eps': 1e-6}, 'bicubic', IMAGENET, 256 / 224, (), _UNUSED
    ),
  }
  marks = ('mask_token', 'cls_token', 'blocks.0.attn.qkv.weight')
  hidden = ('blocks.0.mlp.fc1.weight', 'blocks.0.mlp.w1.weight', 'blocks.0.mlp.w3.weight')

  def described(self, files: TensorFiles) -> dict[str, Any]:
    kind = (
      'dinov3'
      if 'storage_tokens' in files.shapes
      else 'mae'
      if 'decoder_pos_embed' in files.shapes
      else 'dinov2'
    )
    values: dict[str, Any] = {'model_type': kind, 'num_register_tokens': 0}
    if kind == 'dinov3':
      values['num_register_tokens'] = _registers(files, 'storage_tokens')
    else:
      values['image_size'] = self.image_side(files, 'pos_embed')
      values['num_register_tokens'] = _registers(files, 'register_tokens')
    if 'blocks.0.mlp.w3.weight' in files.shapes:
      values['intermediate_size'] = files.shapes['blocks.0.mlp.w3.weight'][1]
    return values

  def options(self, values: JsonObject, head: str | None, files: TensorFiles | None) -> dict[str, Any]:
    assert files is not None
    options: dict[str, Any] = {'register_tokens': values.count('num_register_tokens', 0)}
    if 'blocks.0.ls1.gamma' in files.shapes:
      options['layer_scale'] = 1.0
    if values.text('model_type') == 'dinov3':
      options['position'] = 'rotary_dinov3'
    if 'blocks.0.mlp.w3.weight' in files.shapes:
      options |= {'mlp': 'swiglu', 'activation': 'silu'}
    return options

  def rules(self, family: Family, model: ViTConfig, grid: Grid) -> tuple[Rule, ...]:
    mlp = DENSE if model.mlp == 'dense' else _SPLIT if family.stem == 'DINOv3' else _PACKED
    return family.rules + mlp


_BLOCK = 'encoder.layers.encoder_layer_{}'
_TORCHVISION = Family(
  'torchvision',
  '',
  (
    *layer('patch_embedding', 'conv_proj', 'conv'),
    *norm('norm', 'encoder.ln'),
    *norm('blocks/attention_norm', f'{_BLOCK}.ln_1'),
    *fused(
      [f'blocks/attention/{name}' for name in ('query', 'key', 'value')],
      f'{_BLOCK}.self_attention.in_proj',
      '_',
    ),
    *layer('blocks/attention/out', f'{_BLOCK}.self_attention.out_proj', 'out'),
    *norm('blocks/mlp_norm', f'{_BLOCK}.ln_2'),
  ),
  Tokens('encoder.pos_embedding', 'class_token'),
  {'layer_norm_eps': 1e-6},
  'bicubic',
  IMAGENET | {'method': 'bilinear'},
  256 / 224,
  (),
  {},
)
# torchvision's names of an MLP's layers, now and before 0.14.
_MLPS = {'now': ('mlp.0', 'mlp.3'), 'before': ('mlp.linear_1', 'mlp.linear_2')}


class TorchvisionFormat(NamedFormat):
  """A `vit_*` of torchvision."""

  title = "a file of torchvision's names"
  families = {
    when: dataclasses.replace(
      _TORCHVISION,
      rules=(
        *_TORCHVISION.rules,
        *layer('blocks/mlp/dense_in', f'{_BLOCK}.{first}'),
        *layer('blocks/mlp/dense_out', f'{_BLOCK}.{second}'),
      ),
    )
    for when, (first, second) in _MLPS.items()
  }
  marks = ('conv_proj.weight', 'encoder.pos_embedding')
  heads = ('heads.head',)
  patches = ('conv_proj.weight',)
  hidden = tuple(f'{_BLOCK.format(0)}.{first}.weight' for first, _ in _MLPS.values())
  block = r'encoder\.layers\.encoder_layer_(\d+)\.'

  def described(self, files: TensorFiles) -> dict[str, Any]:
    return {
      'model_type': 'now' if self.hidden[0] in files.shapes else 'before',
      'image_size': self.image_side(files, 'encoder.pos_embedding'),
    }

  def options(self, values: JsonObject, head: str | None, files: TensorFiles | None) -> dict[str, Any]:
    return {}
