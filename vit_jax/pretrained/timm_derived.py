"""Tensors of timm's Vision Transformers that are computed from its files, since ours are laid out otherwise."""

import functools
import math
from collections.abc import Mapping

import numpy as np

from vit_jax.models import position_resize
from vit_jax.models.base import Grid
from vit_jax.models.position_resize import PositionResize
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained.base import UnknownModelError
from vit_jax.pretrained.timm_names import Shapes
from vit_jax.pretrained.torch_names import Derived


def view(shapes: Shapes, derived: Mapping[str, Derived]) -> dict[str, tuple[int, ...]]:
  """Name -> shape of what rules can read."""
  used = {name for made in derived.values() for name in made.sources}
  return {name: shapes[name] for name in shapes if name not in used} | {
    n: made.shape for n, made in derived.items()
  }


def renamed(shapes: Shapes, channels: int) -> dict[str, Derived]:
  """The patch embedding and the tokens of a NaFlexViT, by the names that they have in other models."""
  found = {}
  for name in ('cls_token', 'reg_token', 'pos_embed', 'patch_embed.proj.bias'):
    theirs = f'embeds.{name.removeprefix("patch_embed.")}'
    if theirs in shapes:
      found[name] = Derived(shapes[theirs], (theirs,), lambda tensor: tensor)
  if 'embeds.proj.weight' in shapes:
    width, inputs = shapes['embeds.proj.weight']
    side = math.isqrt(inputs // channels)
    shape = (width, side, side, channels)
    found['patch_embed.proj.weight'] = Derived(
      (width, channels, side, side),
      ('embeds.proj.weight',),
      lambda kernel: kernel.reshape(shape).transpose(0, 3, 1, 2),
    )
  lines = ('embeds.pos_embed_y', 'embeds.pos_embed_x')  # a table of rows and one of columns
  if lines[0] in shapes:
    (_, rows, width), (_, columns, _) = (shapes[name] for name in lines)
    added = lambda of_rows, of_columns: of_rows[:, :, None] + of_columns[:, None]
    found['pos_embed'] = Derived((1, rows, columns, width), lines, added)
  return found


def positions(table: Derived, method: PositionResize, grid: Grid, *, square: bool) -> Derived:
  """A table (1, rows, columns, D) for a grid; `square`: cut from one for a square."""
  _, rows, columns, width = table.shape
  wanted = (max(grid), max(grid)) if square else grid

  def compute(*sources: np.ndarray) -> np.ndarray:
    cells = position_resize.resize(
      table.compute(*sources).reshape(-1, width), (rows, columns), wanted, method
    )
    return cells.reshape(*wanted, width)[: grid[0], : grid[1]].reshape(1, -1, width)

  return Derived((1, math.prod(grid), width), table.sources, compute)


def tensors(shapes: Shapes, model: ViTConfig, grid: Grid) -> dict[str, Derived]:
  """By the names that the rules of timm_names.py read."""
  blocks = range(model.num_layers)
  found = {}
  if 'rope.freqs' in shapes:
    found |= {f'blocks.{block}.rope.freqs': _frequencies(shapes, block) for block in blocks}
  if model.layer_scale is not None and 'blocks.0.gamma_1' in shapes and 'blocks.0.gamma_2' not in shapes:
    ones = Derived((model.sizes.width,), (), functools.partial(np.ones, model.sizes.width, np.float32))
    found |= {f'blocks.{block}.gamma_2': ones for block in blocks}
  for block in blocks:
    for which in ('k_proj.weight', 'k_proj.bias', 'v_proj.weight', 'v_proj.bias'):
      name = f'blocks.{block}.attn.{which}'
      if name in shapes and shapes[name][0] < model.sizes.width:
        found[name] = _repeated(shapes, name, model)
  return found | _relative_tables(shapes, model, grid)


def _frequencies(shapes: Shapes, block: int) -> Derived:
  """Of mixed rotary positions, (2, L, H, Dh / 2) for all blocks."""
  two, _, *others = shapes['rope.freqs']
  return Derived((two, *others), ('rope.freqs',), lambda waves: waves[:, block])


def _repeated(shapes: Shapes, name: str, model: ViTConfig) -> Derived:
  """Keys and values of fewer heads (grouped-query attention), once for each head of the queries that reads them."""
  size = model.sizes.width // model.sizes.heads
  rows, *others = shapes[name]
  times = model.sizes.width // rows

  def compute(tensor: np.ndarray) -> np.ndarray:
    return tensor.reshape(-1, size, *others).repeat(times, axis=0).reshape(-1, *others)

  return Derived((model.sizes.width, *others), (name,), compute)


def _relative_tables(shapes: Shapes, model: ViTConfig, grid: Grid) -> dict[str, Derived]:
  """Tables of relative positions that all blocks share, or that an MLP makes of the offsets (Swin v2)."""
  found = {}
  for block in range(model.num_layers if model.position == 'relative' else 0):
    own, shared = f'blocks.{block}.attn.rel_pos', 'shared_rel_pos'
    source = own if f'{own}.mlp.fc1.weight' in shapes else shared
    names = tuple(f'{source}.mlp.{layer}.{leaf}' for layer in ('fc1', 'fc2') for leaf in ('weight', 'bias'))
    if names[0] in shapes:
      if names[-1] not in shapes:
        raise UnknownModelError("its relative positions are Swin's own (rel_pos_type 'mlp-swin')")
      rows = (2 * grid[0] - 1) * (2 * grid[1] - 1) + 3 * model.leading_tokens
      table = Derived(
        (rows, shapes[names[2]][0]), names, functools.partial(_of_offsets, grid, model.leading_tokens)
      )
      found[f'blocks.{block}.attn.relative_position_bias_table'] = table
  return found


def _of_offsets(
  grid: Grid, others: int, kernel: np.ndarray, bias: np.ndarray, out: np.ndarray, out_bias: np.ndarray
) -> np.ndarray:
  """A row for each offset, of its signed logarithms; those of other tokens are zeros."""
  rows, columns = np.mgrid[1 - grid[0] : grid[0], 1 - grid[1] : grid[1]]
  offsets = np.stack([rows.reshape(-1), columns.reshape(-1)], axis=1)
  logarithms = np.sign(offsets) * np.log1p(np.abs(offsets))
  table = np.maximum(logarithms @ kernel.T + bias, 0) @ out.T + out_bias
  return np.concatenate([table, np.zeros((3 * others, table.shape[1]))]).astype(np.float32)
