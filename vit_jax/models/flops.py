"""How floating point operations are counted: the parts that models add up from their sizes.

Matrix products and convolutions only, one multiplication with its addition being 2 FLOPs, as the paper's
exaFLOPs (table 6) are counted; the compiler's own count sees the body of a scan once. The functions count
multiplications.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

TRAINING = 3  # times the forward pass: the backward pass takes two


class Layer(NamedTuple):
  """A layer of a network, or a part of a block, that multiplies."""

  name: str  # the path of its parameters, with the number of a block where blocks are stacked: 'blocks/3/mlp'
  output: tuple[int, ...]  # its shape, of one image
  multiplications: int  # for one image


def attention(queries: int, keys: int, width: int, products: int = 2) -> int:
  """Multiplications of multi-head attention of so many tokens: four projections, and `products` of all their pairs.

  Those are with keys, with values, and perhaps with a key for each offset.
  """
  projections = 2 * queries * width**2 + 2 * keys * width**2
  return projections + products * queries * keys * width


def mlp(tokens: int, width: int, hidden: int) -> int:
  """Multiplications of two dense layers."""
  return 2 * tokens * width * hidden


def dense(widths: Sequence[int]) -> int:
  """Multiplications of dense layers, one after the other, for a vector: `widths` are inputs, hidden units, outputs."""
  return sum(inputs * outputs for inputs, outputs in itertools.pairwise(widths))


def resnet(root: int, blocks: tuple[int, ...], image_size: tuple[int, int], channels: int) -> list[Layer]:
  """The root and the bottlenecks of a ResNet; multiplications with padding are counted.

  It has a root of so many channels, and `blocks` bottlenecks in each stage.
  """
  cells = strided(image_size, 2)
  layers = [Layer('root', (*cells, root), cells[0] * cells[1] * 7**2 * channels * root)]
  cells = strided(cells, 2)
  inputs = root
  for stage, units in enumerate(blocks):
    width = root * 2**stage
    for unit in range(units):
      before_stride = cells[0] * cells[1]
      if stage and not unit:
        cells = strided(cells, 2)
      area = cells[0] * cells[1]
      projection = 0 if unit else inputs * 4 * width
      products = before_stride * inputs * width + area * (9 * width**2 + 4 * width**2 + projection)
      inputs = 4 * width
      layers.append(Layer(f'block{stage + 1}/unit{unit + 1}', (*cells, inputs), products))
  return layers


def strided(cells: tuple[int, int], stride: int) -> tuple[int, int]:
  """Rows and columns behind a stride, rounded up."""
  return -(-cells[0] // stride), -(-cells[1] // stride)
