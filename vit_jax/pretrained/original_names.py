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
from vit_jax.pretrained import preprocessor_config, safetensors_files, timm_names
from vit_jax.pretrained.base import Pretrained, ReadOptions, UnknownModelError
from vit_jax.pretrained.huggingface import Unfit, config_of, taken
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.timm_names import Naming
from vit_jax.pretrained.torch_names import QKV, Export, Layout, Rule, Tokens, fused, layer, norm
from vit_jax.pretrained.transformers import TransformersFormat
from vit_jax.pretrained.transformers_family import IMAGENET, Family

# Heads of the widths that have not 64 channels each, as all these projects have them.
_HEADS = {1280: 16, 1408: 16, 1664: 16}
# timm's names of a SwiGLU's layers -> DINOv2's, which has both that meet the tokens in one, and DINOv3's.
_SWIGLU = {'mlp.fc1': 'mlp.w12', 'mlp.fc1_g': 'mlp.w1', 'mlp.fc1_x': 'mlp.w2', 'mlp.fc2': 'mlp.w3'}
_TOKENS = Tokens('pos_embed', 'cls_token', 'register_tokens')
# The middle is cut by torchvision's CenterCrop, which timm has too.
_CUT = IMAGENET | {'timm': 'center'}
_UNUSED: dict[str, str | None] = {
  'mask_token': 'The mask token, which only pre-training uses, is left out.',
  r'decoder_.*': 'The decoder, which only pre-training uses, is left out.',
  r'rope_embed\.periods|.*\.bias_mask': None,  # which follow from the sizes
}


class NamedFormat(TransformersFormat):
  """A lone file, recognised by the names of its tensors."""

  tellable = frozenset({'activation', 'norm_epsilon', 'heads'})
  group = None
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
    notes = tuple(note for note in layout.notes if preprocessor_config.FILE not in note)
    notes += (taken(files, layout, options.told),) if self.alone(files) else ()
    return dataclasses.replace(layout, notes=notes)

  def alone(self, files: TensorFiles) -> bool:
    """Whether no file beside the tensors says more of them."""
    return True

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

  def image_side(self, files: TensorFiles, positions: str) -> int:
    """Pixels of a side of square images, by the number of positions, one of which is the class token's."""
    tokens = files.shapes[positions][-2] - 1
    return math.isqrt(max(tokens, 1)) * next(
      files.shapes[name][-1] for name in self.patches if name in files.shapes
    )

  def values(self, model: ViTConfig) -> dict[str, Any]:
    return {}

  def export(self, pretrained: Pretrained) -> Export:
    raise Unfit('it can be read, but not written')


class OriginalFormat(NamedFormat):
  """DINOv2, DINOv3 or MAE."""

  title = "a file of DINOv2's, DINOv3's or MAE's own names"
  families = {
    'others': Family(
      'DINOv2 or MAE',
      '',
      (),
      _TOKENS,
      {'layer_norm_eps': 1e-6},
      'bicubic',
      _CUT,
      256 / 224,
      (),
      _UNUSED,
    ),
    'dinov3': Family(
      'DINOv3',
      '',
      (),
      Tokens(None, 'cls_token', 'storage_tokens'),
      {'layer_norm_eps': 1e-5},
      'bicubic',
      IMAGENET,
      biases=(('blocks/attention/key/bias', None, False),),  # which is masked
      ignored=_UNUSED,
    ),
  }
  marks = ('mask_token', 'cls_token', 'blocks.0.attn.qkv.weight')
  hidden = ('blocks.0.mlp.fc1.weight', 'blocks.0.mlp.w1.weight', 'blocks.0.mlp.w3.weight')

  def described(self, files: TensorFiles) -> dict[str, Any]:
    registers = [
      files.shapes[name][1] for name in ('storage_tokens', 'register_tokens') if name in files.shapes
    ]
    values: dict[str, Any] = {'num_register_tokens': sum(registers)}
    if 'storage_tokens' in files.shapes:
      values['model_type'] = 'dinov3'
    else:
      values |= {'model_type': 'others', 'image_size': self.image_side(files, 'pos_embed')}
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
    """timm's, which are theirs but for SwiGLU's."""
    rules = timm_names.rules(model, Naming(packed=family.stem != 'DINOv3'), grid)
    if model.mlp != 'swiglu':
      return rules
    return tuple(
      dataclasses.replace(rule, name=re.sub(r'mlp\.\w+', lambda match: _SWIGLU[match[0]], rule.name))
      for rule in rules
    )


_BLOCK = 'encoder.layers.encoder_layer_{}'
_TORCHVISION = Family(
  'torchvision',
  '',
  (
    *layer('patch_embedding', 'conv_proj', 'conv'),
    *norm('norm', 'encoder.ln'),
    *norm('blocks/attention_norm', f'{_BLOCK}.ln_1'),
    *fused(QKV, f'{_BLOCK}.self_attention.in_proj', '_'),
    *layer('blocks/attention/out', f'{_BLOCK}.self_attention.out_proj', 'out'),
    *norm('blocks/mlp_norm', f'{_BLOCK}.ln_2'),
    *layer('blocks/mlp/dense_in', f'{_BLOCK}.mlp.0'),
    *layer('blocks/mlp/dense_out', f'{_BLOCK}.mlp.3'),
  ),
  Tokens('encoder.pos_embedding', 'class_token'),
  {'layer_norm_eps': 1e-6},
  'bicubic',
  _CUT | {'method': 'bilinear'},
  256 / 224,
  (),
  {},
)


class TorchvisionFormat(NamedFormat):
  """A `vit_*` of torchvision."""

  title = "a file of torchvision's names"
  families = {'torchvision': _TORCHVISION}
  marks = ('conv_proj.weight', 'encoder.pos_embedding')
  heads = ('heads.head',)
  patches = ('conv_proj.weight',)
  hidden = (f'{_BLOCK.format(0)}.mlp.0.weight',)
  block = r'encoder\.layers\.encoder_layer_(\d+)\.'

  def described(self, files: TensorFiles) -> dict[str, Any]:
    return {'model_type': 'torchvision', 'image_size': self.image_side(files, 'encoder.pos_embedding')}

  def options(self, values: JsonObject, head: str | None, files: TensorFiles | None) -> dict[str, Any]:
    return {}
