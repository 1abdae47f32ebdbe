"""The options of the Vision Transformer and its hybrids: sharding rules and FLOPs.

The network itself is in vit.py, the named sizes in vit_sizes.py.
"""

import dataclasses
import re
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from flax import nnx

from vit_jax.foundation.errors import UserError
from vit_jax.models import axial, flexible_patches, naflex, patch_dropout, token_merging, variants, vit_flops
from vit_jax.models.base import (
  Architecture,
  FirstLayer,
  Grid,
  Model,
  ModelConfig,
  Pooling,
  Sharding,
  ShardingRules,
  patch_grid,
  under,
)
from vit_jax.models.capabilities import PositionTable
from vit_jax.models.encoder_block import BLOCKS
from vit_jax.models.flops import Layer
from vit_jax.models.parts import OneOf, fused_attention
from vit_jax.models.parts.activations import Activation
from vit_jax.models.parts.attention import Attention
from vit_jax.models.parts.mlps import MLPS
from vit_jax.models.parts.norms import NORMS
from vit_jax.models.parts.pools import POOLS
from vit_jax.models.parts.positions import POSITIONS, Position, Tokens
from vit_jax.models.parts.stems import STEMS, Stem
from vit_jax.models.position_resize import PositionResize
from vit_jax.models.vit import ViT
from vit_jax.models.vit_sizes import VARIANTS, Sizes
from vit_jax.options import RESUMABLE, Amount, Factor, NotNegative, Positive, Rate, Size

AttentionKernel = Literal['auto', 'xla', 'cudnn', 'splash']


_BLOCKS = r'blocks(/row|/column|/first|/second)?'  # the latter with axial attention and with parallel pairs
_PARTED = rf'({_BLOCKS}|\w+_pool)'  # what has attention and an MLP

# `fsdp` splits one large dimension. `tensor` splits attention by heads, the MLP by its hidden units and the
# head by its classes, so that each block needs one sum over the devices after attention and one after the
# MLP. The rules of named parts stand beside them.
SHARDING_RULES: ShardingRules = (
  (r'patch_embedding/kernel', (None, 'fsdp')),  # (P, P, C, D)
  (r'(class|distillation|mask)_token|register_tokens', ('fsdp',)),  # (1, N, D)
  (r'position_embedding(/\w+)?|\w+_pool/probe', ('fsdp',)),  # (1, N, D)
  (rf'{_BLOCKS}/(attention|mlp|both)_scale', ()),  # (D,)
  (r'pre_logits/kernel', ('fsdp', None)),  # (D, D')
  (r'(patch_embedding|pre_logits)/bias', ()),
  (r'(distillation_)?head/kernel', ('fsdp', 'tensor')),  # (D, K)
  (r'(distillation_)?head/bias', ('tensor',)),  # (K,)
  *under(rf'{_PARTED}/attention', Attention.sharding_rules),
)


@dataclasses.dataclass(frozen=True)
class ViTConfig(ModelConfig):
  """The Vision Transformer (paper, section 3.1), or a hybrid with a ResNet in front of it."""

  # Named size, such as 'Ti/16', 'H/14' or 'R50+B/16', or 'custom'. Each size below that is not None
  # replaces the variant's own; 'custom' needs patch, width, mlp_dim, depth and heads.
  variant: str = 'B/16'
  # Pixels along a side of a patch; in a hybrid, cells of the ResNet's output.
  patch: Size | None = None
  # Width D, the size of a token.
  width: Size | None = None
  # Hidden units of a block's MLP.
  mlp_dim: Size | None = None
  # Depth L, the number of encoder blocks.
  depth: Size | None = None
  # Number of attention heads of a block, which divides the width.
  heads: Size | None = None
  # Bottlenecks in each stage of a ResNet from whose output the patches are cut; () for its root alone. None for no
  # ResNet.
  stem_blocks: tuple[Size, ...] | None = None
  # Channels of that ResNet's root, a multiple of 32.
  stem_width: Size = 64
  # Channels, multiples of 32, and stride of each 3 x 3 convolution from whose output the patches are cut, such as
  # ((32, 2), (64, 1), (64, 2)) for cells of 4 pixels (arXiv 2106.14881; models/parts/stems.py). () for none.
  stem_convolutions: tuple[tuple[Size, Size], ...] = ()
  # Epsilons of that ResNet's norms and standardised kernels: those of the 'released' code, or 'timm'.
  stem_epsilons: Literal['released', 'timm'] = 'released'
  # Tokens that the head reads (models/parts/pools.py): the class 'token', 'gap' (mean of all tokens but the registers),
  # 'token_gap' (the class token beside the mean of the patches, as DINOv2's classifier), 'map' (attention pooling), or
  # 'none' (every token gets logits; only objective 'masked_patches' trains such a model). Of the patches alone: their
  # mean ('gap_patches'), their maximum ('max_patches'), the mean of both ('avgmax_patches') and 'map_patches'.
  pool: Annotated[str, OneOf(POOLS)] = 'token'
  # Attention heads of the attention pools. None for those of a block.
  pool_heads: Size | None = None
  # Hidden units of the attention pools' MLP. None for those of a block.
  pool_mlp_dim: Size | None = None
  # Class token in front of the patches. None to have one only where pool is 'token' or 'token_gap'.
  class_token: bool | None = None
  # Kind of positions (models/parts/positions.py). Added to the tokens: a 'learned' embedding of each, 'learned2d': half
  # of it of the column, half of the row, or 'sincos2d': fixed sines and cosines of both (MoCo v3; 'sincos2d_mae': with
  # MAE's frequencies). In every block's attention: a 'relative' bias of each head for each offset (row, column) of two
  # patches (Swin, BEiT), 'relative_query': the query's product with a learned key of the offset, 'relative_query_1d':
  # of the offset of the two patches' numbers (the paper's 'relative'), or 'rotary': queries and keys turned by row and
  # column (RoFormer; models/parts/rotary.py), of which there are 'rotary_eva' (EVA-02), 'rotary_pe' (Perception
  # Encoder), 'rotary_dinov3' and 'rotary_mixed' (learned frequencies); 'learned+rotary' and so on have both. Or 'none'.
  # The relative ones go with attention 'xla' only. For images of another size what is learned is resized (the relative
  # ones between offsets), and so is sincos2d. Rotary goes on counting, a patch being one from the next.
  position: Annotated[str, OneOf(POSITIONS)] = 'learned'
  # Side, in patches, of the grid to which 'rotary_eva' and 'rotary_pe' stretch rows and columns: that of the
  # pre-training, for images of any size. None for one apart.
  rotary_grid: Size | None = None
  # Limits of a random shift of the places of 'rotary_dinov3', which go from -1 to 1, of a factor of rows and one of
  # columns, and of a factor of both, drawn for each image in training (DINOv3's RoPE-box jittering). None for none.
  rotary_moves: tuple[NotNegative, Factor, Factor] | None = None
  # Interpolation of learned positions for images of another size (models/position_resize.py): 'linear' (aligned
  # corners, as the original code), 'bilinear' (half-pixel centres), 'bicubic' or 'bicubic_antialias' (as torch), or of
  # 'relative' ones 'geometric' (as BEiT's fine-tuning).
  position_resize: PositionResize = 'bilinear'
  # Number of register tokens: without a position, behind the class token, read by nothing (arXiv 2309.16588).
  register_tokens: Amount = 0
  # Distillation token of DeiT (arXiv 2012.12877, section 4), behind the class token, with a head of its own that
  # objective 'distillation' trains by the teachers. The logits are the mean of both heads' logits.
  distillation_token: bool = False
  # Mask token: a learned embedding for hidden patches, which objective 'masked_patches' needs.
  mask_token: bool = False
  # Size of the tanh layer between pooling and head (the paper's pre-training has one, of width D).
  pre_logits_size: Size | None = None
  # Kind of that layer: 'tanh', the paper's, or a projection of images to the space of texts, which CLIP has without a
  # bias ('linear') and some others with one ('affine').
  pre_logits: Literal['tanh', 'linear', 'affine'] = 'tanh'
  # Scaling of what the head reads to length 1, so that logits are cosines times a factor; init.head 'text' needs it.
  cosine_head: bool = False
  # Activation of MLPs (models/parts/activations.py): 'gelu_tanh', GELU approximated by tanh, as in the original code;
  # 'gelu', the exact function; 'quick_gelu', x sigmoid(1.702 x), as in CLIP; 'silu'; or 'relu'.
  activation: Activation = 'gelu_tanh'
  # Standard deviation of the blocks' initial kernels, which are then normal, such as timm's 0.02; with Muon a short run
  # learns more from small ones. None for the original code's uniform distribution (Xavier's).
  kernel_deviation: Positive | None = None
  # Initial value of a learned factor of each channel at the end of each branch (LayerScale,
  # arXiv 2103.17239). None for no factors.
  layer_scale: NotNegative | None = None
  # Kind of norm (models/parts/norms.py).
  norm: Annotated[str, OneOf(NORMS)] = 'layer_norm'
  # Norm of the tokens before the first block, as in CLIP (arXiv 2103.00020, section 2.4).
  pre_norm: bool = False
  # Place of the last norm: of the 'tokens' before pooling, the paper's; of what is 'pooled', as in MAE; or 'none'.
  final_norm: Literal['tokens', 'pooled', 'none'] = 'tokens'
  # Bias of the patch embedding, which CLIP leaves out.
  patch_bias: bool = True
  # Norm of the patch embeddings, before positions are added (AIMv2, arXiv 2411.14402).
  patch_norm: bool = False
  # Images that the patches do not divide are cut at the right and at the bottom, as SigLIP's of 384 pixels for patches
  # of 14; otherwise they are refused.
  cut_images: bool = False
  # Kind of MLP in each block (models/parts/mlps.py): 'dense', the paper's; 'swiglu', whose hidden units, of activation
  # 'silu', are multiplied by as many others; or 'local', with a depthwise 3 x 3 convolution on the grid of patches, and
  # a second activation, between its layers (LocalViT, arXiv 2104.05707); other tokens pass it by.
  mlp: Annotated[str, OneOf(MLPS)] = 'dense'
  # Norm of the hidden units before the last layer of each block's MLP (sub-LN, arXiv 2210.06423; EVA-02).
  mlp_sub_norm: bool = False
  # Norm of all heads' outputs before the last layer of each block's attention (sub-LN, likewise).
  attention_sub_norm: bool = False
  # Kind of block (models/encoder_block.py): 'sequential', the paper's attention and then its MLP; 'post_norm', whose
  # norms are behind them (Swin v2); 'parallel', both beside each other (ViT-22B); or 'parallel_pairs', two attentions
  # and then two MLPs, each pair beside each other (arXiv 2203.09795).
  block: Annotated[str, OneOf(BLOCKS)] = 'sequential'
  # Axial attention (the paper's appendix D.6): in the place of each block one that attends along rows and
  # one that attends along columns, each with its MLP. For models without class token and registers.
  axial: bool = False
  # Query-key normalisation: a LayerNorm of each head's queries and keys before their product, which keeps the
  # logits of attention from growing (arXiv 2302.05442, section 2.1; biases as timm's).
  qk_norm: bool = False
  # Dropout rate after the embeddings and after each dense layer but query, key and value (the paper's appendix B.1).
  dropout: Rate = 0.0
  # Dropout rate of the weights of attention.
  attention_dropout: Rate = 0.0
  # Share of an image's patches that a training step leaves out behind their positions (models/patch_dropout.py): a step
  # takes about that much less. For models whose positions are added to the tokens.
  patch_dropout: Rate = 0.0
  # Patches that each block merges into others, in evaluation and inference (models/token_merging.py; ToMe). 0 for none.
  token_merging: Amount = 0
  # Patch sizes of training, one of which is drawn for each batch (FlexiViT, arXiv 2212.08013); the model then
  # takes all of them (`load(patch=…)`, config.evaluators.….patch). () for `patch` alone.
  patch_sizes: tuple[Size, ...] = ()  # pyright: ignore[reportIncompatibleMethodOverride] (a property there)
  # Kernel that computes attention: 'xla', or a kernel that never writes the weights of all pairs of tokens to
  # memory, but has no attention_dropout: 'cudnn' (NVIDIA GPUs, bfloat16) or 'splash' (TPUs from v4 on).
  # 'auto': the fastest, by devices, number of tokens and dtype, on TPUs one of our own among them
  # (models/parts/fused_attention.py).
  attention: Annotated[AttentionKernel, RESUMABLE] = 'auto'
  # Probability that an example skips a branch (attention or MLP) of the last block (drop path); of earlier
  # blocks in proportion to their depth.
  stochastic_depth: Rate = 0.0

  title: ClassVar[str] = 'a Vision Transformer'
  variants: ClassVar = VARIANTS
  function_options: ClassVar[tuple[str, ...]] = (
    'activation',
    'norm_epsilon',
    'block',
    'stem_epsilons',
    'cosine_head',
  )

  @property
  def sharding_rules(self) -> ShardingRules:  # pyright: ignore[reportIncompatibleVariableOverride] (by the parts)
    in_parts = rf'{_PARTED}/(attention/(query|key|sub)|mlp/sub)_norm'
    norms = rf'{_BLOCKS}/(attention|mlp)_norm|\w+_pool/norm|(patch_|pre_|pooled_)?norm|{in_parts}'
    return (
      *SHARDING_RULES,
      *under('stem', self.stem.sharding_rules),
      *under(rf'{_PARTED}/attention/position', self.positions.attention_rules),
      *under(rf'{_PARTED}/mlp', MLPS[self.mlp].sharding_rules),
      *under(norms, NORMS[self.norm].sharding_rules),
    )

  @property
  def sizes(self) -> Sizes:
    """The sizes of the variant, with the options that replace them; UserError for those that no model has."""
    sizes = variants.resolve(self, Sizes, needed=('patch', 'width', 'mlp_dim', 'depth', 'heads'))
    if sizes.width % sizes.heads:
      raise UserError(
        f'config.model.width {sizes.width} does not divide into config.model.heads {sizes.heads} equal '
        'parts; change one of them.'
      )
    if sizes.stem_blocks is not None and sizes.stem_convolutions:
      raise UserError(
        f'config.model has stem_convolutions, and a ResNet of stem_blocks {sizes.stem_blocks}; leave one of them out.'
      )
    return sizes

  @property
  def has_class_token(self) -> bool:
    """Whether there is a class token."""
    return POOLS[self.pool].reads_class_token if self.class_token is None else self.class_token

  @property
  def leading_tokens(self) -> int:
    """Tokens before those of the patches."""
    return self.has_class_token + self.distillation_token + self.register_tokens

  @property
  def stem(self) -> type[Stem]:
    """What stands in front of the patch embedding."""
    kind = 'patches' if self.sizes.stem_blocks is None else 'resnet'
    return STEMS['convolutions' if self.sizes.stem_convolutions else kind]

  @property
  def positions(self) -> type[Position]:
    """What `position` names."""
    return POSITIONS[self.position]

  @property
  def whole_grid(self) -> str | None:
    """The option by which blocks need every patch in its place on the grid; None for none."""
    if self.axial:
      return 'axial'
    return f'mlp {self.mlp!r}' if MLPS[self.mlp].needs_grid else None

  def tokens(self, grid: Grid) -> Tokens:
    """What positions depend on, of a grid of patches."""
    sizes, others = self.sizes, self.leading_tokens
    return Tokens(
      grid, others, self.has_class_token, sizes.width, sizes.heads, self.position_resize, self.rotary_grid
    )

  @property
  def first_layer(self) -> FirstLayer:
    return self.stem.first_layer

  def build(self, architecture: Architecture, rngs: nnx.Rngs, sharding: Sharding | None = None) -> Model:
    """The network, for images of whole patches; `sharding` is of the tokens (B, N, D)."""
    return ViT(self, architecture, rngs, sharding)

  def grid(self, image_size: tuple[int, int], option: str = 'config.data.image_size') -> Grid:
    sizes, pixels = self.sizes, self.patch_pixels
    if self.cut_images and min(image_size) >= pixels:
      return image_size[0] // pixels, image_size[1] // pixels
    return patch_grid(image_size, sizes.patch, stride=self.stem.stride(sizes), option=option)

  @property
  def patch_pixels(self) -> int:
    return self.sizes.patch * self.stem.stride(self.sizes)

  @property
  def num_layers(self) -> int:
    return self.sizes.depth

  @property
  def has_feature_maps(self) -> bool:
    return self.stem.has_feature_maps

  @property
  def poolings(self) -> tuple[Pooling, ...]:
    with_class_token = ('token', 'token_gap') if self.has_class_token else ()
    return ('gap', *with_class_token, *([self.pool] if POOLS[self.pool].has_parameters else ()))

  @property
  def classifies_images(self) -> bool:
    return self.pool != 'none'

  def without_pre_logits(self) -> Self:
    return dataclasses.replace(self, pre_logits_size=None)

  def with_one_patch_size(self) -> Self:
    return dataclasses.replace(self, patch_sizes=())

  def with_token_merging(self, number: int, path: str) -> Self:
    return token_merging.checked(dataclasses.replace(self, token_merging=number), path)

  def check_any_shape(self, option: str) -> None:
    naflex.check(self, option)

  def with_cosine_head(self) -> Self:
    return dataclasses.replace(self, cosine_head=True)

  def for_classification(self) -> Self:
    if self.classifies_images:
      return self.without_pre_logits()
    pool = 'token' if self.has_class_token else 'gap'
    return dataclasses.replace(self, pool=pool, mask_token=False, pre_logits_size=None)

  def on_any_device(self) -> Self:
    return dataclasses.replace(self, attention='auto')

  def differing_function(self, other: ModelConfig) -> str | None:
    name = super().differing_function(other)
    positions = (self.position, getattr(other, 'position', None))
    # No parameter tells rotary positions, and only a table's sides tell offsets of one dimension from those of two.
    untold = any('rotary' in str(kind) for kind in positions) or 'relative_query_1d' in positions
    if name is None and untold and positions[0] != positions[1]:
      return 'position'
    stretched = 'rotary_eva' in self.position or 'rotary_pe' in self.position
    if name is None and stretched and self.rotary_grid != getattr(other, 'rotary_grid', None):
      return 'rotary_grid'
    return name

  def fixed_positions(self, grid: Grid) -> np.ndarray | None:
    return self.positions.fixed(self.tokens(grid))

  def with_learned_positions(self) -> Self:
    return dataclasses.replace(self, position='learned') if 'sincos2d' in self.position else self

  def with_position_resize(self, method: PositionResize) -> Self:
    return dataclasses.replace(self, position_resize=method)

  def position_table(self, path: str) -> PositionTable | None:
    if path == 'position_embedding':  # (1, N, D)
      return PositionTable((1,), self.position_resize, extra=int(self.has_class_token))
    if path in ('position_embedding/rows', 'position_embedding/columns'):  # (1, rows or columns, D / 2)
      return PositionTable((1,), self.position_resize, line=True)
    if re.fullmatch(rf'{_BLOCKS}/attention/position/(bias|keys)/patches', path):  # (L, size, rows, columns)
      return PositionTable((2, 3), self.position_resize)
    return None

  def describe(self) -> str:
    sizes = self.sizes
    hybrid = f'Hybrid: {self.stem.title}, and a Vision Transformer'
    kind = hybrid if self.has_feature_maps else 'Vision Transformer'
    return f'{kind}, {sizes.depth} blocks of width {sizes.width}, {sizes.heads} heads, pool {self.pool!r}'

  def layers(self, architecture: Architecture) -> list[Layer]:
    return self._layers(architecture, 0.0)

  def training_layers(self, architecture: Architecture) -> list[Layer]:
    whole = dataclasses.replace(self, token_merging=0)
    sizes = [dataclasses.replace(whole, patch=patch) for patch in self.patch_sizes] or [whole]
    return vit_flops.mean([each._layers(architecture, self.patch_dropout) for each in sizes])

  def _layers(self, architecture: Architecture, dropped: float) -> list[Layer]:
    """Those of a network that computes the rest of a share `dropped` of the patches."""
    return vit_flops.layers(self, architecture, dropped)

  def check(self, path: str) -> None:
    if POOLS[self.pool].reads_class_token and self.class_token is False:
      raise UserError(f"{path}.pool is {self.pool!r} but class_token is False; choose pool 'gap' or 'map'.")
    if self.distillation_token and (self.pool != 'token' or self.pre_logits_size is not None):
      raise UserError(
        f"{path}.distillation_token goes with pool 'token' and no pre_logits_size; change these, or leave it out."
      )
    if self.rotary_moves is not None and not self.positions.can_move:
      raise UserError(f"{path}.rotary_moves goes with position 'rotary_dinov3'; leave it out.")
    if self.position_resize == 'geometric' and self.position != 'relative':
      raise UserError(f"{path}.position_resize 'geometric' goes with position 'relative'; choose another.")
    fused_attention.check_options(self, path)
    patch_dropout.check(self, path)
    token_merging.checked(self, path)
    flexible_patches.check(self, path)
    axial.check(self, path)
