"""How many floating point operations a network takes, counted from its sizes.

Matrix products and convolutions only, one multiplication with its addition being 2 FLOPs, as the paper's
exaFLOPs (table 6) are counted; the compiler's own count sees the body of a scan once.
"""

from vit_jax import config
from vit_jax.models.variants import grid, has_class_token, resolve


def forward_flops(
  model: config.Model, *, image_size: tuple[int, int], channels: int, num_classes: int
) -> int:
  """FLOPs of the logits of one image."""
  sizes = resolve(model)
  if sizes.kind == 'resnet':
    macs, outputs = _resnet(sizes.width, sizes.resnet_blocks, image_size, channels)
    return 2 * (macs + outputs * num_classes)
  d = sizes.width
  rows, columns = grid(sizes, image_size)
  patches = rows * columns
  macs = 0
  if sizes.stem_blocks is not None:
    stem, channels = _resnet(sizes.stem_width, sizes.stem_blocks, image_size, channels)
    macs += stem
  macs += patches * sizes.patch**2 * channels * d
  if sizes.kind == 'mixer':
    block = _mlp(d, patches, sizes.tokens_mlp_dim) + _mlp(patches, d, sizes.mlp_dim)
    return 2 * (macs + sizes.depth * block + d * num_classes)

  tokens = patches + has_class_token(model) + model.register_tokens
  mlp = _mlp(tokens, d, sizes.mlp_dim) + model.mlp_locality * patches * 3**2 * sizes.mlp_dim
  relative = model.position == 'relative_query'
  if model.axial:
    lines = rows * _attention(columns, columns, d, relative) + columns * _attention(rows, rows, d, relative)
    macs += sizes.depth * (lines + 2 * mlp)
  else:
    macs += sizes.depth * (_attention(tokens, tokens, d, relative) + mlp)
  if model.pool == 'map':
    macs += _attention(1, tokens, d) + _mlp(1, d, sizes.mlp_dim)
  outputs = tokens if model.pool == 'none' else 1
  pooled = 2 * d if model.pool == 'token_gap' else d
  features = model.representation_size or pooled
  representation = pooled * features if model.representation_size else 0
  macs += outputs * (representation + features * num_classes)
  return 2 * macs


def train_flops(forward: int) -> int:
  """FLOPs of a training step, per image: the backward pass takes two forward passes."""
  return 3 * forward


def _attention(queries: int, tokens: int, width: int, relative: bool = False) -> int:
  """Multiplications of q and out, k and v, and the products of attention, of which `relative` has three."""
  return 2 * queries * width**2 + 2 * tokens * width**2 + (2 + relative) * queries * tokens * width


def _mlp(tokens: int, width: int, hidden: int) -> int:
  return 2 * tokens * width * hidden


def _resnet(
  root: int, blocks: tuple[int, ...], image_size: tuple[int, int], channels: int
) -> tuple[int, int]:
  """Multiplications of a ResNet or a hybrid's, those with its padding too, and the channels it gives."""
  halved = lambda cells: tuple(-(-side // 2) for side in cells)
  area = lambda cells: cells[0] * cells[1]
  cells = halved(image_size)
  macs = area(cells) * 7**2 * channels * root
  cells = halved(cells)
  inputs = root
  for stage, units in enumerate(blocks):
    width = root * 2**stage
    for unit in range(units):
      outside = area(cells)  # the first convolution of a unit comes before its stride
      if stage and not unit:
        cells = halved(cells)
      projection = 0 if unit else inputs * 4 * width
      macs += outside * inputs * width + area(cells) * (9 * width**2 + 4 * width**2 + projection)
      inputs = 4 * width
  return macs, inputs
