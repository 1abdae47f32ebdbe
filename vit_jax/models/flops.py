"""How floating point operations are counted: the parts that models add up from their sizes.

Matrix products and convolutions only, one multiplication with its addition being 2 FLOPs, as the paper's
exaFLOPs (table 6) are counted; the compiler's own count sees the body of a scan once. The functions count
multiplications.
"""

import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

_TEXT_TOWER = 'text_tower/'
_BEHIND = ('norm/', 'pooled_norm/', f'{_TEXT_TOWER}norm/', 'logit_')  # the layers that multiply
TRAINING = 3  # times the forward pass: the backward pass takes two


class Layer(NamedTuple):
  """A layer of a network, or a part of a block, that multiplies."""

  name: str  # the path of its parameters, with the number of a block where blocks are stacked: 'blocks/3/mlp'
  output: tuple[int, ...]  # its shape, of one image
  multiplications: int  # for one image


def owners(layers: Sequence[Layer], paths: Iterable[str]) -> dict[str, str | None]:
  """Path of a parameter -> `unnumbered` name of the layer that it belongs to; None: it belongs to none that multiplies.

  A norm belongs to the layer behind it, `blocks/attention_norm` to `blocks/attention`.
  """
  names = {unnumbered(layer) for layer in layers}
  return {
    path: max((name for name in names if path.startswith(name)), key=len, default=None) for path in paths
  }


def unnumbered(layer: Layer) -> str:
  """A layer's name without a block's number, which paths of parameters do not have: all blocks are stacked there."""
  return re.sub(r'/\d+(?=/|$)', '', layer.name)


def of_training(layers: Sequence[Layer], trained: Collection[str], first_block: int) -> int:
  """Multiplications of a step for one image, forward and backward, where a part of the parameters is trained.

  A layer takes those of its outputs, of a gradient by its input where something is trained in front of it, and of one
  by its kernel where that is trained; what the first trained one needs within itself is left out. A text tower is a
  network of its own.

  Args:
    layers: those of the network, in order.
    trained: paths of the parameters that are trained.
    first_block: the first block of which they are.
  """
  towers: dict[bool, tuple[list[Layer], list[str]]] = {False: ([], []), True: ([], [])}
  for layer in layers:
    towers[layer.name.startswith(_TEXT_TOWER)][0].append(layer)
  for path in trained:
    towers[path.startswith(_TEXT_TOWER)][1].append(path)
  return sum(_of_tower(*tower, first_block) for tower in towers.values())


def _of_tower(layers: Sequence[Layer], trained: Collection[str], first_block: int) -> int:
  """As `of_training`, of the image tower or the text tower."""
  owner = owners(layers, trained)
  with_kernels = {name for path, name in owner.items() if path.endswith('kernel')}
  # Tokens and positions are in front of the blocks, and the last norms, and the scale of logits, behind them.
  in_front = any(name is None and not path.startswith(_BEHIND) for path, name in owner.items())
  # In front of the first layer there are pixels, or an embedding of texts.
  total, before = 0, in_front and any(layer.name.startswith(_TEXT_TOWER) for layer in layers[:1])
  for layer in layers:
    block, name = re.match(r'blocks/(\d+)/', layer.name), unnumbered(layer)
    is_frozen = block is not None and int(block[1]) < first_block
    total += layer.multiplications * (1 + before + (name in with_kernels and not is_frozen))
    before |= in_front or (name in owner.values() and not is_frozen)
  return total


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
