"""How floating point operations are counted: the parts that models add up from their sizes.

Matrix products and convolutions only, one multiplication with its addition being 2 FLOPs, as the paper's
exaFLOPs (table 6) are counted; the compiler's own count sees the body of a scan once. The functions count
multiplications.
"""

from typing import NamedTuple


class Layer(NamedTuple):
  """A layer of a network, or a part of a block, that multiplies.

  Attributes:
    name: the path of its parameters, with the number of a block where blocks are stacked: 'blocks/3/mlp'.
    output: its shape, of one image.
    multiplications: for one image.
  """

  name: str
  output: tuple[int, ...]
  multiplications: int


def train_flops(forward: int) -> int:
  """FLOPs of a training step, per image: the backward pass takes two forward passes."""
  return 3 * forward


def attention(queries: int, keys: int, width: int, products: int = 2) -> int:
  """Multiplications of multi-head attention: four projections and the products of pairs.

  Args:
    queries: number of query tokens.
    keys: number of key tokens.
    width: D.
    products: of all pairs of tokens: with keys, with values, and perhaps with a key for each offset.
  """
  projections = 2 * queries * width**2 + 2 * keys * width**2
  return projections + products * queries * keys * width


def mlp(tokens: int, width: int, hidden: int) -> int:
  """Multiplications of two dense layers."""
  return 2 * tokens * width * hidden


def resnet(root: int, blocks: tuple[int, ...], image_size: tuple[int, int], channels: int) -> list[Layer]:
  """The root and the bottlenecks of a ResNet; multiplications with padding are counted.

  Args:
    root: channels of the root.
    blocks: bottlenecks in each stage.
    image_size: height, width.
    channels: of the images.
  """
  cells = _halved(image_size)
  layers = [Layer('root', (*cells, root), cells[0] * cells[1] * 7**2 * channels * root)]
  cells = _halved(cells)
  inputs = root
  for stage, units in enumerate(blocks):
    width = root * 2**stage
    for unit in range(units):
      before_stride = cells[0] * cells[1]
      if stage and not unit:
        cells = _halved(cells)
      area = cells[0] * cells[1]
      projection = 0 if unit else inputs * 4 * width
      products = before_stride * inputs * width + area * (9 * width**2 + 4 * width**2 + projection)
      inputs = 4 * width
      layers.append(Layer(f'block{stage + 1}/unit{unit + 1}', (*cells, inputs), products))
  return layers


def _halved(cells: tuple[int, int]) -> tuple[int, int]:
  """Both sides halved, rounded up."""
  return -(-cells[0] // 2), -(-cells[1] // 2)
