"""A table of a network's layers: output shapes, parameters and FLOPs, each block on a row of its own."""

import collections
import math
import re

from vit_jax.foundation import text_table
from vit_jax.models.base import Architecture

# A block's number in the name of a layer; the paths of parameters have none, since those of all blocks are stacked.
_NUMBER = r'/\d+(?=/|$)'


def table(architecture: Architecture) -> str:
  """The layers that multiply, and below them the parameters of what does not, such as the last norm.

  A norm belongs to the layer behind it, `blocks/attention_norm` to `blocks/attention`. Parameters and FLOPs are the
  numbers of a plan: FLOPs of one image's logits, a multiplication with its addition counting 2.
  """
  state = architecture.state_paths()
  sizes = {path: math.prod(leaf.shape) for path, leaf in architecture.shapes().items() if path not in state}
  layers = architecture.model.layers(architecture)
  prefixes = [re.sub(_NUMBER, '', layer.name) for layer in layers]
  stacked = collections.Counter(prefixes)
  owned, others = collections.Counter[str](), collections.Counter[str]()
  for path, size in sizes.items():
    owner = max((prefix for prefix in stacked if path.startswith(prefix)), key=len, default=None)
    if owner is None:
      others[path.rpartition('/')[0] or path] += size
    else:
      owned[owner] += size
  rows = [('layer', 'output', 'parameters', 'MFLOPs')]
  for layer, prefix in zip(layers, prefixes, strict=True):
    rows.append(
      _row(layer.name, layer.output, owned[prefix] // stacked[prefix], 2 * layer.multiplications / 1e6)
    )
  rows += [(name, '', f'{size:,}', '') for name, size in others.items()]
  rows.append(_row('total', (), sum(sizes.values()), architecture.forward_flops() / 1e6))
  return text_table.ruled(rows, right=(2, 3))


def _row(name: str, output: tuple[int, ...], parameters: int, megaflops: float) -> tuple[str, str, str, str]:
  return name, ' × '.join(map(str, output)), f'{parameters:,}', f'{megaflops:,.1f}'
