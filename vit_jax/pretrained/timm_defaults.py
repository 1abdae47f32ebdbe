"""What timm says of its Vision Transformers in code only, by the names of architectures."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from vit_jax.models.parts.activations import Activation
from vit_jax.models.position_resize import PositionResize

T = TypeVar('T')

# Heads of the widths that have not 64 channels each.
_HEADS = {64: 2, 96: 3, 2432: 32, 3072: 24, 4096: 32} | dict.fromkeys(
  (1152, 1280, 1408, 1664, 1792, 2048), 16
)
_HEADS_OF = (
  (r'vit_base_patch16_gap_224', 16),
  (r'vit_giantopt_.*|vit_pe_.*_gigantic_.*', 16),
  (r'vit_huge_plus_.*', 20),
  (r'vit_small_resnet.*', 8),
  (r'aimv2_large_.*', 8),
  (r'aimv2_huge_.*', 12),
)
_TANH = (
  r'vit_(so400m_patch16|giantopt_patch16|base_patch32)_siglip(_gap)?_\d+|vit_large_patch16_siglip(_gap)?_512'
  r'|naflexvit_.*_siglip'
)
# With an epsilon of 1e-5 instead of 1e-6.
_LARGE_EPSILON = r'vit_.*_clip_.*|beit3_.*|aimv2_.*|vit_.*_(dinov3(_qkvb)?|lingbot)|vit_pe_.*'
_POST_NORM = r'.*_rpn_.*|eva02_enormous_.*'
# Kind of rotary positions, and the side of the grid that they are stretched to.
_ROTARY: tuple[tuple[str, tuple[str, int | None]], ...] = (
  (r'vit_.*_(dinov3(_qkvb)?|lingbot|sapiens2)', ('rotary_dinov3', None)),
  (r'eva02_(?!enormous).*|vit_.*_rope_reg.*', ('rotary_eva', 16)),
  (r'vit_.*_rope_mixed_.*', ('rotary_mixed', None)),
  (r'vit_.*_rope_.*', ('rotary', None)),
  (r'vit_pe_core_base_.*', ('rotary_pe', 14)),
  (r'vit_pe_core_(tiny|small|large)_.*', ('rotary_pe', 24)),
  (r'vit_pe_.*', ('rotary_pe', 32)),
)
_POOL_HEADS = 8  # of vit_pe_*
# Whose pool 'map' attends to the class token and registers too.
_MAP_OF_ALL = (
  r'test_vit3|eva02_.*|eva_giant_.*|vit_pe_.*|vit_.*_(dinov3(_qkvb)?|lingbot|sapiens2)|vit_.*_rope_.*'
)
# Whose pool is the mean although there is a class token.
_MEAN = r'vit_.*_dinov3(_qkvb)?|vit_pe_(lang|spatial)_.*'
# How positions are resized for images of other sizes.
_RESIZE: PositionResize = 'bicubic_antialias'
_RESIZES: tuple[tuple[str, PositionResize], ...] = (
  (r'(naflex)?vit_(base|huge)_patch16_radio_v3', 'linear'),
  (r'(naflex)?vit_.*_radio_v\d|flexivit_.*|naflexvit_.*_parfac_gap', 'bilinear'),
  (r'naflexvit_.*_siglip', 'bilinear_antialias'),
  (r'beit(v2)?_.*|vit_relpos_.*', 'geometric'),
)
# timm's names of what vit_jax does not compute, and why.
_REFUSED: tuple[tuple[str, str | None], ...] = (
  (r'samvit_.*', 'it attends in windows, and vit_jax to all tokens'),
  (r'vit_(dlittle|dpwee|dwee)_.*', 'its attention is differential, and vit_jax has one softmax'),
  (r'vit_base_mci_.*|vit_.*_resnet\d+d_.*', 'it has a convolutional stem that vit_jax lacks'),
)


@dataclasses.dataclass(frozen=True)
class Defaults:
  """Of an architecture, where its model_args say nothing else."""

  heads: int
  activation: Activation
  norm_epsilon: float
  post_norm: bool
  rotary: str  # of models/parts/positions.py, '' for none
  rotary_grid: int | None
  pool_heads: int | None
  map_of_all: bool
  position_resize: PositionResize
  square_positions: bool  # whether positions of an oblong grid are those of a square one, cut

  @classmethod
  def of(cls, name: str, width: int) -> 'Defaults':
    """What the name says, and the width."""
    heads = _first(_HEADS_OF, name, _HEADS.get(width) or max(width // 64, 1))
    rotary, rotary_grid = _first(_ROTARY, name, ('', None))
    activation: Activation = 'gelu_tanh' if re.fullmatch(_TANH, name) else 'gelu'
    return cls(
      heads=heads,
      activation='quick_gelu' if '_quickgelu_' in name else activation,
      norm_epsilon=1e-5 if re.fullmatch(_LARGE_EPSILON, name) else 1e-6,
      post_norm=re.fullmatch(_POST_NORM, name) is not None,
      rotary=rotary,
      rotary_grid=rotary_grid,
      pool_heads=_POOL_HEADS if name.startswith('vit_pe_') else None,
      position_resize=_first(_RESIZES, name, _RESIZE),
      square_positions=re.fullmatch(r'naflexvit_.*_(par_gap|parfac_gap|radio_v\d)', name) is not None,
      map_of_all=re.fullmatch(_MAP_OF_ALL, name) is not None,
    )

  @staticmethod
  def pool(name: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """timm's name of the pooling."""
    if 'attn_pool.latent' in shapes:
      return 'map'
    by_token = 'cls_token' in shapes and 'fc_norm.weight' not in shapes and not re.fullmatch(_MEAN, name)
    return 'token' if by_token else 'avg'

  @classmethod
  def guessed(cls, shapes: Mapping[str, tuple[int, ...]], width: int) -> 'Defaults':
    """Of tensors alone: CLIP's, EVA-02's and DINOv3's are told by what they have."""
    positioned, has = 'pos_embed' in shapes, shapes.__contains__
    if 'rope.freqs' in shapes:
      name = 'vit_small_patch16_rope_mixed_224'
    elif not positioned and has('reg_token') and has('blocks.0.gamma_1'):
      name = 'vit_small_patch16_dinov3'
    elif has('blocks.0.mlp.fc1_g.weight') and has('blocks.0.mlp.norm.weight'):
      name = 'eva02_base_patch14_224'
    else:
      name = 'vit_base_patch16_clip_224' if has('norm_pre.weight') else ''
    return cls.of(name, width)


def refusal(name: str) -> str | None:
  """Why vit_jax has no model of that name, as a clause; None: it may."""
  return _first(_REFUSED, name, None)


def _first(table: Iterable[tuple[str, T]], name: str, default: T) -> T:
  return next((value for pattern, value in table if re.fullmatch(pattern, name)), default)
