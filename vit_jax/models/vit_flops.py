"""The layers of a Vision Transformer that multiply, counted from its options (models/flops.py)."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vit_jax.models import flops
from vit_jax.models.base import Architecture, Grid
from vit_jax.models.encoder_block import BLOCKS
from vit_jax.models.flops import Layer
from vit_jax.models.parts.mlps import MLPS
from vit_jax.models.parts.pools import POOLS
from vit_jax.models.patch_dropout import kept

if TYPE_CHECKING:
  from vit_jax.models.vit_config import ViTConfig


def layers(config: 'ViTConfig', architecture: Architecture, patch_dropout: float = 0.0) -> list[Layer]:
  """As `ModelConfig.layers`, where a share `patch_dropout` of the patches goes no further than their embedding."""
  sizes, pool, classes = config.sizes, POOLS[config.pool], architecture.num_classes
  width = sizes.width
  rows, columns = config.grid(architecture.image_size)
  patches = rows * columns
  tokens = kept(patches, patch_dropout) + config.leading_tokens
  layers = config.stem.layers(sizes, architecture.image_size, architecture.channels)
  channels = layers[-1].output[-1] if layers else architecture.channels
  embedding = patches * sizes.patch**2 * channels * width
  layers.append(Layer('patch_embedding', (patches, width), embedding))
  for number in range(sizes.depth):
    stay = tokens - min(config.token_merging, (tokens - config.leading_tokens) // 2)
    layers += [
      Layer(f'blocks/{number}/{part}', (stay if part.endswith('mlp') else tokens, width), products)
      for part, products in _block_multiplications(config, tokens, stay, (rows, columns)).items()
    ]
    tokens = stay
  if pool.has_parameters:
    layers.append(Layer(f'{config.pool}_pool', (width,), pool.multiplications(config, tokens)))
  return layers + _heads(config, pool.widths * width, classes, tokens)


def without_head(config: 'ViTConfig', architecture: Architecture, patch_dropout: float) -> list[Layer]:
  """As `layers`, of a network that has another last layer."""
  return layers(config, dataclasses.replace(architecture, num_classes=0), patch_dropout)[:-1]


def blocks(config: 'ViTConfig', architecture: Architecture, prefix: str) -> list[Layer]:
  """The blocks of a second stack, whose paths begin with `prefix`."""
  own = layers(config, dataclasses.replace(architecture, model=config))
  return [layer._replace(name=f'{prefix}/{layer.name}') for layer in own if layer.name.startswith('blocks/')]


def mean(networks: Sequence[list[Layer]]) -> list[Layer]:
  """The layers of the first of several networks, each with the mean of their multiplications, rounded down."""
  return [
    layers[0]._replace(multiplications=sum(layer.multiplications for layer in layers) // len(layers))
    for layers in zip(*networks, strict=True)
  ]


def _block_multiplications(config: 'ViTConfig', tokens: int, stay: int, grid: Grid) -> dict[str, int]:
  """Those of each part of a block, by its path; attention is of `tokens`, of which `stay` are left for the MLP."""
  rows, columns = grid
  width = config.sizes.width
  mlp = MLPS[config.mlp].multiplications(stay, rows * columns, width, config.sizes.mlp_dim)
  products = 2 + config.positions.more_products
  if config.axial:
    attentions = {
      'row/': rows * flops.attention(columns, columns, width, products),
      'column/': columns * flops.attention(rows, rows, width, products),
    }
  else:
    attentions = {'': flops.attention(tokens, tokens, width, products)}
  return {
    f'{half}{member}{part}': multiplications
    for half, attention in attentions.items()
    for part, multiplications in (('attention', attention), ('mlp', mlp))
    for member in BLOCKS[config.block].members
  }


def _heads(config: 'ViTConfig', width: int, classes: int, tokens: int) -> list[Layer]:
  """What makes logits of a pooled vector, or of each token."""
  outputs = () if config.classifies_images else (tokens,)
  each = 1 if config.classifies_images else tokens
  layers, size = [], config.pre_logits_size
  if size is not None:
    layers.append(Layer('pre_logits', (*outputs, size), each * width * size))
    width = size
  layers.append(Layer('head', (*outputs, classes), each * width * classes))
  if config.distillation_token:
    layers.append(Layer('distillation_head', (classes,), width * classes))
  return layers
