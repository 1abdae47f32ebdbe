"""The Vision Transformer in .npz files of big_vision: also SigLIP's image tower, and blocks stacked by a scan.

Such files have Linen's names. Positions are of the patches alone, learned or none (fixed sines and cosines), and
attention pooling has names. They are read only.
"""

from vit_jax.models.base import Architecture
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained.released_names import USUAL_SIZE, Naming, ReleasedNames, Shapes, Tensors, renamed
from vit_jax.pretrained.released_vit import AROUND, IN_BLOCK

_BLOCKS = 'Transformer/encoderblock'
_POSITIONS = 'pos_embedding'
_IN_BLOCK = IN_BLOCK['linen']
_AROUND = AROUND | {
  'position_embedding': _POSITIONS,
  'map_pool/probe': 'MAPHead_0/probe',
  'map_pool/attention': 'MAPHead_0/MultiHeadDotProductAttention_0',
  'map_pool/norm': 'MAPHead_0/LayerNorm_0',
  'map_pool/mlp/dense_in': 'MAPHead_0/MlpBlock_0/Dense_0',
  'map_pool/mlp/dense_out': 'MAPHead_0/MlpBlock_0/Dense_1',
}


class BigVisionNames(ReleasedNames[ViTConfig]):
  """Of `ViTConfig`, the number of a block being a name's or the first axis of all blocks' tensors."""

  marks = (_BLOCKS,)

  def reads(self, shapes: Shapes) -> bool:
    linen = any(name.startswith(_BLOCKS) and '/MlpBlock_0/' in name for name in shapes)
    return linen and not any(name.startswith('Transformer/posembed_input') for name in shapes)

  def architecture(self, tensors: Tensors, image_size: tuple[int, int] | None) -> Architecture:
    patch, channels, width = tensors.patches('embedding/kernel')
    scanned = _is_scanned(tensors.shapes)
    block = _BLOCKS if scanned else f'{_BLOCKS}_0'
    query, hidden = (
      f'{block}/{_IN_BLOCK["attention"]}/query/kernel',
      f'{block}/{_IN_BLOCK["mlp/dense_in"]}/kernel',
    )
    *stacked, _, heads, head_width = tensors.shape(query, 3 + scanned)
    if heads * head_width != width:
      raise tensors.misfit(query, f'its heads do not make up the width of {width}')
    pool = 'map' if 'MAPHead_0/probe' in tensors.shapes else 'token' if 'cls' in tensors.shapes else 'gap'
    learned = _POSITIONS in tensors.shapes
    if learned:
      size = tensors.square(tensors.shape(_POSITIONS, 3)[1], patch, image_size)
    else:
      size = image_size or (USUAL_SIZE[0] // patch * patch, USUAL_SIZE[1] // patch * patch)
    pre_logits = 'pre_logits/kernel' in tensors.shapes
    model = ViTConfig(
      variant='custom',
      patch=patch,
      width=width,
      mlp_dim=tensors.shape(hidden, 2 + scanned)[-1],
      depth=stacked[0] if scanned else tensors.depth(f'{_BLOCKS}_'),
      heads=heads,
      pool=pool,
      position='learned' if learned else 'sincos2d',
      position_resize='linear',
      pre_logits_size=tensors.shape('pre_logits/kernel', 2)[1] if pre_logits else None,
    )
    return Architecture(model, size, channels, tensors.classes())

  def naming(self, shapes: Shapes) -> Naming:
    return 'scan' if _is_scanned(shapes) else 'linen'

  def name(self, path: str, naming: Naming) -> str | None:
    if not path.startswith('blocks/'):
      return renamed(path, _AROUND)
    return renamed(
      path.removeprefix('blocks/'), _IN_BLOCK, f'{_BLOCKS}/' if naming == 'scan' else f'{_BLOCKS}_{{}}/'
    )

  def tokens_before(self, name: str, shapes: Shapes) -> int:
    return int(name == _POSITIONS and 'cls' in shapes)


def _is_scanned(shapes: Shapes) -> bool:
  return any(name.startswith(f'{_BLOCKS}/') for name in shapes)
