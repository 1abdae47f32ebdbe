"""A table of a network's layers: output shapes, parameters and FLOPs, each block on a row of its own."""

import collections
import math

from vit_jax.foundation import text_table
from vit_jax.models import flops
from vit_jax.models.base import Architecture


def table(architecture: Architecture) -> str:
  """The layers that multiply, and below them the parameters of what does not, such as the last norm.

  Parameters belong to layers as `flops.owners` says. They and the FLOPs are the numbers of a plan: FLOPs of one image's
  logits, a multiplication with its addition counting 2.
  """
  state = architecture.state_paths()
  sizes = {path: math.prod(leaf.shape) for path, leaf in architecture.shapes().items() if path not in state}
  layers = architecture.model.layers(architecture)
  prefixes = [flops.unnumbered(layer) for layer in layers]
  stacked = collections.Counter(prefixes)
  owned, others = collections.Counter[str](), collections.Counter[str]()
  for path, owner in flops.owners(layers, sizes).items():
    if owner is None:
      others[path.rpartition('/')[0] or path] += sizes[path]
    else:
      owned[owner] += sizes[path]
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
