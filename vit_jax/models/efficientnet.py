"""EfficientNets (arXiv 1905.11946) as their published code computes them: TensorFlow's 'SAME' padding, swish,
squeeze and excitation, batch norms, stochastic depth.

B0 has 7 stages of MBConv blocks; multipliers make the others wider and deeper. In a stage all blocks but the first,
which has the stride, are of one shape: they are stacked along a leading axis and applied by a scan. Parameters of
blocks of B0's family with I inputs and O outputs, E = 6 I expanded channels (I in stage 1, which expands nothing) and
R = I / 4 (models/mbconv.py has the others):

  stem/kernel (3, 3, C, W)                                   stem_norm
  stage{s}/{first,others}/expand/kernel (1, 1, I, E)         expand_norm, not in stage 1
  stage{s}/{first,others}/depthwise/kernel (k, k, 1, E)      depthwise_norm
  stage{s}/{first,others}/squeeze/{kernel (1, 1, E, R), bias}
  stage{s}/{first,others}/excite/{kernel (1, 1, R, E), bias}
  stage{s}/{first,others}/project/kernel (1, 1, E, O)        project_norm
  top/kernel (1, 1, O, D)                                    top_norm
  head/{kernel (D, K), bias}

Each norm has scale, bias, and the running statistics mean and var (models/batch_norm.py).
"""

import dataclasses
import functools
import math
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.models import efficientnet_families, flops, scanned_blocks, variants
from vit_jax.models.base import Architecture, FirstLayer, Model, ModelConfig, Sharding, ShardingRules
from vit_jax.models.batch_norm import BatchNorm
from vit_jax.models.dropout import dropout, fold_in
from vit_jax.models.efficientnet_families import FAMILIES, Family, FamilyName, rounded_channels
from vit_jax.models.flops import Layer
from vit_jax.models.layers import initial_head
from vit_jax.models.mbconv import ACTIVATIONS, Conv, MBConv, StageOfBlocks, StageSizes, squeezed_channels
from vit_jax.options import Between, Positive, Rate

Multiplier = Annotated[float, Between(0.1, 20)]


@dataclasses.dataclass(frozen=True)
class Sizes:
  """What the published sizes differ in, besides the image size."""

  width_multiplier: float
  depth_multiplier: float
  dropout: float = 0.2
  stochastic_depth: float = 0.2
  family: str = 'B'


VARIANTS = {
  'B0': Sizes(1.0, 1.0),  # at 224 pixels
  'B1': Sizes(1.0, 1.1),  # 240
  'B2': Sizes(1.1, 1.2, dropout=0.3),  # 260
  'B3': Sizes(1.2, 1.4, dropout=0.3),  # 300
  'B4': Sizes(1.4, 1.8, dropout=0.4),  # 380
  'B5': Sizes(1.6, 2.2, dropout=0.4),  # 456
  'B6': Sizes(1.8, 2.6, dropout=0.5),  # 528
  'B7': Sizes(2.0, 3.1, dropout=0.5),  # 600
  'B8': Sizes(2.2, 3.6, dropout=0.5),  # 672
  'L2': Sizes(4.3, 5.3, dropout=0.5),  # 475 and 800 (Noisy Student, arXiv 1911.04252)
  # Without squeeze and excitation, for small devices.
  'Lite0': Sizes(1.0, 1.0, family='Lite'),
  'Lite1': Sizes(1.0, 1.1, family='Lite'),
  'Lite2': Sizes(1.1, 1.2, dropout=0.3, family='Lite'),
  'Lite3': Sizes(1.2, 1.4, dropout=0.3, family='Lite'),
  'Lite4': Sizes(1.4, 1.8, dropout=0.3, family='Lite'),
  'EdgeTPU-S': Sizes(1.0, 1.0, family='EdgeTPU'),
  'EdgeTPU-M': Sizes(1.0, 1.1, family='EdgeTPU'),
  'EdgeTPU-L': Sizes(1.2, 1.4, dropout=0.3, family='EdgeTPU'),
  # EfficientNetV2 (arXiv 2104.00298).
  'V2-B0': Sizes(1.0, 1.0, family='V2-B'),
  'V2-B1': Sizes(1.0, 1.1, family='V2-B'),
  'V2-B2': Sizes(1.1, 1.2, dropout=0.3, family='V2-B'),
  'V2-B3': Sizes(1.2, 1.4, dropout=0.3, family='V2-B'),
  'V2-S': Sizes(1.0, 1.0, family='V2-S'),
  'V2-M': Sizes(1.0, 1.0, dropout=0.3, family='V2-M'),
  'V2-L': Sizes(1.0, 1.0, dropout=0.4, family='V2-L'),
  'V2-XL': Sizes(1.0, 1.0, dropout=0.4, family='V2-XL'),
}

_NORM = r'(stem|top|stage\d/(first|others)/(expand|depthwise|project))_norm'
SHARDING_RULES: ShardingRules = (
  (r'(stem|top|stage\d/(first|others)/\w+)/kernel', ('fsdp',)),  # (h, w, inputs, outputs)
  (rf'{_NORM}/(scale|bias|mean|var)|stage\d/(first|others)/(squeeze|excite)/bias', ()),
  (r'head/kernel', ('fsdp', 'tensor')),  # (D, K)
  (r'head/bias', ('tensor',)),  # (K,)
)


@dataclasses.dataclass(frozen=True)
class EfficientNetConfig(ModelConfig):
  """An EfficientNet. Its head reads the mean of the last feature map."""

  # Named size, 'B0' … 'B8', 'L2', 'Lite0' … 'Lite4', 'EdgeTPU-S', 'M' or 'L', 'V2-B0' … 'V2-B3', 'V2-S', 'M', 'L' or
  # 'XL', or 'custom', which needs both multipliers.
  variant: str = 'B0'
  # Factor of B0's channels, which are rounded to multiples of 8.
  width_multiplier: Multiplier | None = None
  # Factor of the blocks in each stage of B0, rounded up.
  depth_multiplier: Multiplier | None = None
  # Family of stages (models/efficientnet_families.py). None for that of the variant, of 'custom' 'B'.
  family: FamilyName | None = None
  # Dropout rate, applied to what the head reads.
  dropout: Rate | None = None
  # Probability that an example skips the block behind the last; of the blocks in proportion to their depth.
  stochastic_depth: Rate | None = None
  # Epsilon of every batch norm.
  norm_epsilon: Positive = dataclasses.field(default=1e-3, kw_only=True)
  # Share of its running statistics that a batch norm keeps at each step.
  norm_momentum: Rate = dataclasses.field(default=0.99, kw_only=True)

  title: ClassVar[str] = 'an EfficientNet'
  variants: ClassVar = VARIANTS
  sharding_rules: ClassVar[ShardingRules] = SHARDING_RULES

  @property
  def sizes(self) -> Sizes:
    """The sizes of the variant, with the options that replace them; raises as `variants.resolve`."""
    return variants.resolve(self, Sizes, needed=('width_multiplier', 'depth_multiplier'))

  @property
  def stages(self) -> tuple[StageSizes, ...]:
    """The stages, by the multipliers."""
    sizes = self.sizes
    return efficientnet_families.stages(self.shared, sizes.width_multiplier, sizes.depth_multiplier)

  @property
  def top_channels(self) -> int:
    """D, what the head reads."""
    shared, width = self.shared, self.sizes.width_multiplier
    return shared.top if shared.keeps_ends else rounded_channels(shared.top, width, shared.least_share)

  @property
  def shared(self) -> Family:
    """What the sizes of its family share."""
    return FAMILIES[self.sizes.family]

  def build(self, architecture: Architecture, rngs: nnx.Rngs, sharding: Sharding | None = None) -> Model:
    """The network, for images of any size. `sharding` is of the feature maps (B, H, W, C)."""
    return EfficientNet(self, architecture, rngs, sharding)

  @property
  def patch_pixels(self) -> int:
    return 2 * math.prod(stage.stride for stage in self.stages)

  @property
  def num_layers(self) -> int:
    """Blocks in all stages."""
    return sum(stage.blocks for stage in self.stages)

  @property
  def has_feature_maps(self) -> bool:
    return True

  @property
  def first_layer(self) -> FirstLayer:
    return FirstLayer("EfficientNet's first convolution", 'stem/kernel')

  def describe(self) -> str:
    blocks = ' + '.join(str(stage.blocks) for stage in self.stages)
    return f'EfficientNet of {blocks} blocks, {self.stages[0].inputs} to {self.top_channels} channels'

  def layers(self, architecture: Architecture) -> list[Layer]:
    cells = flops.strided(architecture.image_size, 2)
    inputs = self.stages[0].inputs
    layers = [Layer('stem', (*cells, inputs), math.prod(cells) * 3**2 * architecture.channels * inputs)]
    for number, stage in enumerate(self.stages, start=1):
      inputs, stride = stage.inputs, stage.stride
      for block in range(stage.blocks):
        before, cells = math.prod(cells), flops.strided(cells, stride)
        products = _multiplications(stage, inputs, before, math.prod(cells))
        name = f'stage{number}/others/{block - 1}' if block else f'stage{number}/first'
        layers.append(Layer(name, (*cells, stage.outputs), products))
        inputs, stride = stage.outputs, 1
    top, classes = self.top_channels, architecture.num_classes
    layers.append(Layer('top', (*cells, top), math.prod(cells) * self.stages[-1].outputs * top))
    return [*layers, Layer('head', (classes,), top * classes)]


def _multiplications(stage: StageSizes, inputs: int, before: int, after: int) -> int:
  """Of a block with so many input channels, and cells before and after its stride."""
  expanded, window = stage.expanded(inputs), stage.kernel**2
  if stage.kind == 'conv':
    return after * window * inputs * stage.outputs
  if stage.kind == 'fused':
    products = after * window * inputs * expanded
  else:
    products = after * window * expanded + (before * inputs * expanded if stage.expansion > 1 else 0)
  squeezing = 2 * expanded * squeezed_channels(inputs) if stage.squeeze else 0
  return products + after * expanded * stage.outputs + squeezing


class EfficientNet(Model[EfficientNetConfig]):
  """Images to logits. `EfficientNetConfig.build` makes one; its tokens are the cells of a feature map."""

  def __init__(
    self, config: EfficientNetConfig, architecture: Architecture, rngs: nnx.Rngs, sharding: Sharding | None
  ):
    conv = functools.partial(Conv, dtype=jnp.dtype(config.dtype), sharding=sharding)
    norm = functools.partial(BatchNorm, momentum=config.norm_momentum, epsilon=config.norm_epsilon)
    block = functools.partial(MBConv, activation=config.shared.activation, conv=conv, norm=norm)
    stages = config.stages
    self.config = config
    self.sharding = sharding
    self.stem = conv(architecture.channels, stages[0].inputs, 3, stride=2, rngs=rngs)
    self.stem_norm = norm(stages[0].inputs)
    for s, stage in enumerate(stages, start=1):
      setattr(self, f'stage{s}', StageOfBlocks(stage, block, rngs))
    self.top = conv(stages[-1].outputs, config.top_channels, 1, rngs=rngs)
    self.top_norm = norm(config.top_channels)
    self.head = initial_head(config.top_channels, architecture.num_classes, config.head_bias, rngs)

  def __call__(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    """The logits, float32 (B, K), of images of any size; with keys, as in training."""
    x = self._feature_map(images, keys, None)
    x = self.pool(x.reshape(x.shape[0], -1, x.shape[-1])).astype(jnp.float32)
    if keys is not None:
      keys = fold_in(keys, self.config.num_layers)
    return self.head(dropout(x, self.config.sizes.dropout, keys, place=0))

  def feature_map(self, images: jax.Array, layer: int | None = None) -> jax.Array:
    """(B, H, W, C) -> (B, h, w, D), after a block or after the last norm and its swish; see `Model.features`.

    Blocks are counted over all stages, and the map has its stage's size and width.
    """
    return self._feature_map(images, None, scanned_blocks.blocks_before(layer, self.config.num_layers))

  def features(self, images: jax.Array, layer: int | None = None) -> jax.Array:
    """(B, H, W, C) -> (B, h * w, D): the cells of `feature_map`, row by row."""
    x = self.feature_map(images, layer)
    return x.reshape(x.shape[0], -1, x.shape[-1])

  def _feature_map(self, images: jax.Array, keys: jax.Array | None, layers: int | None) -> jax.Array:
    """(B, h, w, D): after so many blocks; None: after all of them and the top."""
    train, config = keys is not None, self.config
    depth = config.num_layers
    rates = np.float32(config.sizes.stochastic_depth) * np.arange(depth, dtype=np.float32) / depth
    activate = ACTIVATIONS[config.shared.activation]
    x = activate(self.stem_norm(self.stem(images), train=train))
    first = 0
    for s, stage in enumerate(config.stages, start=1):
      last = min(first + stage.blocks, depth if layers is None else layers)
      if first < last:
        numbers = np.arange(first, last)
        blocks: StageOfBlocks = getattr(self, f'stage{s}')
        x = blocks(x, keys, numbers, rates[numbers], config, self.sharding)
      first += stage.blocks
    return activate(self.top_norm(self.top(x), train=train)) if layers is None else x
