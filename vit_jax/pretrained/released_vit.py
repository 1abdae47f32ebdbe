"""The Vision Transformer and its hybrids in the released .npz files."""

import re

from vit_jax.models.base import Architecture
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained.released_names import Naming, ReleasedNames, Shapes, Tensors, renamed

_BLOCK = 'Transformer/encoderblock_'
_POSITIONS = 'Transformer/posembed_input/pos_embedding'
# Our path -> theirs in each naming; 'kernel', 'bias' and 'scale' are called the same.
AROUND = {
  'class_token': 'cls',
  'position_embedding': _POSITIONS,
  'patch_embedding': 'embedding',
  'norm': 'Transformer/encoder_norm',
  'pre_logits': 'pre_logits',
  'head': 'head',
}
IN_BLOCK: dict[Naming, dict[str, str]] = {
  '2020': {
    'attention_norm': 'LayerNorm_0',
    'attention': 'MultiHeadDotProductAttention_1',
    'mlp_norm': 'LayerNorm_2',
    'mlp/dense_in': 'MlpBlock_3/Dense_0',
    'mlp/dense_out': 'MlpBlock_3/Dense_1',
  },
  'linen': {
    'attention_norm': 'LayerNorm_0',
    'attention': 'MultiHeadDotProductAttention_0',
    'mlp_norm': 'LayerNorm_1',
    'mlp/dense_in': 'MlpBlock_0/Dense_0',
    'mlp/dense_out': 'MlpBlock_0/Dense_1',
  },
}
_IN_STEM = {
  'root': 'conv_root',
  'root_norm': 'gn_root',
  'projection': 'conv_proj',
  'projection_norm': 'gn_proj',
  'norm1': 'gn1',
  'norm2': 'gn2',
  'norm3': 'gn3',
}


class ViTNames(ReleasedNames[ViTConfig]):
  """Of `ViTConfig`."""

  marks = (_BLOCK, 'embedding/')

  def architecture(self, tensors: Tensors, image_size: tuple[int, int] | None) -> Architecture:
    patch, channels, width = tensors.patches('embedding/kernel')
    stem_blocks, stem_width = None, ViTConfig.stem_width
    if 'conv_root/kernel' in tensors.shapes:
      _, _, channels, stem_width = tensors.shape('conv_root/kernel', 4)
      stem_blocks = tensors.stages()
    depth = tensors.depth(_BLOCK)
    names = IN_BLOCK[self.naming(tensors.shapes)]
    query = f'{_BLOCK}0/{names["attention"]}/query/kernel'
    _, heads, head_width = tensors.shape(query, 3)
    if heads * head_width != width:
      raise tensors.misfit(query, f'its heads do not make up the width of {width}')
    _, mlp_dim = tensors.shape(f'{_BLOCK}0/{names["mlp/dense_in"]}/kernel', 2)
    class_token, pre_logits_size = 'cls' in tensors.shapes, None
    if any(key.startswith('pre_logits/') for key in tensors.shapes):
      pre_logits_size = tensors.shape('pre_logits/kernel', 2)[1]
    model = ViTConfig(
      variant='custom',
      patch=patch,
      width=width,
      mlp_dim=mlp_dim,
      depth=depth,
      heads=heads,
      stem_blocks=stem_blocks,
      stem_width=stem_width,
      pool='token' if class_token else 'gap',
      position_resize='linear',
      pre_logits_size=pre_logits_size,
    )
    _, positions, _ = tensors.shape(_POSITIONS, 3)
    pixels = patch * model.stem.stride(model.sizes)
    size = tensors.square(positions - class_token, pixels, image_size)
    return Architecture(model, size, channels, tensors.classes())

  def naming(self, shapes: Shapes) -> Naming:
    return 'linen' if any('/MlpBlock_0/' in key for key in shapes) else '2020'

  def name(self, path: str, naming: Naming) -> str | None:
    if path.startswith('stem/'):
      return '/'.join(_IN_STEM.get(part, part) for part in path.split('/')[1:])
    if path.startswith('blocks/'):
      return renamed(path.removeprefix('blocks/'), IN_BLOCK[naming], f'{_BLOCK}{{}}/')
    return renamed(path, AROUND)

  def leading_ones(self, name: str) -> int:
    return 3 if re.search(r'\bgn\w+/(scale|bias)$', name) else 0  # of a hybrid's GroupNorms

  def unfit(self, model: ViTConfig) -> str | None:
    if model.patch_sizes:
      return f'patch_sizes {model.patch_sizes}'
    return None if model.position == 'learned' else f'position {model.position!r}'
