"""The Vision Transformer and its hybrids in .npz files: the original project's and big_vision's, such as SigLIP's.

Files of big_vision have Linen's names, perhaps with the blocks stacked by a scan. Positions there are of the patches
alone, learned or none (fixed sines and cosines), and attention pooling has names. They are read only.
"""

import re

from vit_jax.models.base import Architecture
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained.released_names import USUAL_SIZE, Naming, ReleasedNames, Shapes, Tensors, renamed

_BLOCKS = 'Transformer/encoderblock'
_POSITIONS, _OF_PATCHES = 'Transformer/posembed_input/pos_embedding', 'pos_embedding'
BIG_VISION: tuple[Naming, ...] = ('big_vision', 'scan')
# Our path -> theirs; 'kernel', 'bias' and 'scale' are called the same.
_AROUND = {
  'class_token': 'cls',
  'position_embedding': _POSITIONS,
  'patch_embedding': 'embedding',
  'norm': 'Transformer/encoder_norm',
  'pre_logits': 'pre_logits',
  'head': 'head',
}
_AROUND_BIG_VISION = _AROUND | {
  'position_embedding': _OF_PATCHES,
  'map_pool/probe': 'MAPHead_0/probe',
  'map_pool/attention': 'MAPHead_0/MultiHeadDotProductAttention_0',
  'map_pool/norm': 'MAPHead_0/LayerNorm_0',
  'map_pool/mlp/dense_in': 'MAPHead_0/MlpBlock_0/Dense_0',
  'map_pool/mlp/dense_out': 'MAPHead_0/MlpBlock_0/Dense_1',
}
_IN_BLOCK_2020 = {
  'attention_norm': 'LayerNorm_0',
  'attention': 'MultiHeadDotProductAttention_1',
  'mlp_norm': 'LayerNorm_2',
  'mlp/dense_in': 'MlpBlock_3/Dense_0',
  'mlp/dense_out': 'MlpBlock_3/Dense_1',
}
_IN_BLOCK = {
  'attention_norm': 'LayerNorm_0',
  'attention': 'MultiHeadDotProductAttention_0',
  'mlp_norm': 'LayerNorm_1',
  'mlp/dense_in': 'MlpBlock_0/Dense_0',
  'mlp/dense_out': 'MlpBlock_0/Dense_1',
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

  marks = (f'{_BLOCKS}_', f'{_BLOCKS}/', 'embedding/')

  def architecture(self, tensors: Tensors, image_size: tuple[int, int] | None) -> Architecture:
    shapes, naming = tensors.shapes, self.naming(tensors.shapes)
    big_vision, scanned = naming in BIG_VISION, naming == 'scan'
    learned = not big_vision or _OF_PATCHES in shapes
    patch, channels, width = tensors.patches('embedding/kernel')
    stem_blocks, stem_width = None, ViTConfig.stem_width
    if 'conv_root/kernel' in shapes:
      _, _, channels, stem_width = tensors.shape('conv_root/kernel', 4)
      stem_blocks = tensors.stages()
    depth = None if scanned else tensors.depth(f'{_BLOCKS}_')
    paths = 'blocks/attention/query/kernel', 'blocks/mlp/dense_in/kernel'
    query, hidden = (str(self.name(path, naming)).format(0) for path in paths)
    *stacked, _, heads, head_width = tensors.shape(query, 3 + scanned)
    if heads * head_width != width:
      raise tensors.misfit(query, f'its heads do not make up the width of {width}')
    pre_logits = any(key.startswith('pre_logits/') for key in shapes)
    model = ViTConfig(
      variant='custom',
      patch=patch,
      width=width,
      mlp_dim=tensors.shape(hidden, 2 + scanned)[-1],
      depth=depth or stacked[0],
      heads=heads,
      stem_blocks=stem_blocks,
      stem_width=stem_width,
      pool='map' if 'MAPHead_0/probe' in shapes else 'token' if 'cls' in shapes else 'gap',
      position='learned' if learned else 'sincos2d',
      position_resize='linear',
      pre_logits_size=tensors.shape('pre_logits/kernel', 2)[1] if pre_logits else None,
    )
    if learned:
      _, positions, _ = tensors.shape(_OF_PATCHES if big_vision else _POSITIONS, 3)
      patches = positions - ('cls' in shapes and not big_vision)
      size = tensors.square(patches, patch * model.stem.stride(model.sizes), image_size)
    else:
      size = image_size or (USUAL_SIZE[0] // patch * patch, USUAL_SIZE[1] // patch * patch)
    return Architecture(model, size, channels, tensors.classes())

  def naming(self, shapes: Shapes) -> Naming:
    if not any('/MlpBlock_0/' in key for key in shapes if key.startswith(_BLOCKS)):
      return '2020'
    if _POSITIONS in shapes:
      return 'linen'
    return 'scan' if any(name.startswith(f'{_BLOCKS}/') for name in shapes) else 'big_vision'

  def name(self, path: str, naming: Naming) -> str | None:
    if path.startswith('stem/'):
      return '/'.join(_IN_STEM.get(part, part) for part in path.split('/')[1:])
    if not path.startswith('blocks/'):
      return renamed(path, _AROUND_BIG_VISION if naming in BIG_VISION else _AROUND)
    names = _IN_BLOCK_2020 if naming == '2020' else _IN_BLOCK
    return renamed(path.removeprefix('blocks/'), names, _BLOCKS + ('/' if naming == 'scan' else '_{}/'))

  def leading_ones(self, name: str) -> int:
    return 3 if re.search(r'\bgn\w+/(scale|bias)$', name) else 0  # of a hybrid's GroupNorms

  def tokens_before(self, name: str, shapes: Shapes) -> int:
    return int(name == _OF_PATCHES and 'cls' in shapes)

  def unfit(self, model: ViTConfig) -> str | None:
    if model.patch_sizes:
      return f'patch_sizes {model.patch_sizes}'
    return None if model.position == 'learned' else f'position {model.position!r}'
