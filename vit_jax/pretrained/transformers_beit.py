"""BEiT and Data2Vec-Vision of transformers."""

import dataclasses
import functools
from typing import Any

import numpy as np

from vit_jax.models import position_resize
from vit_jax.models.base import Architecture, Grid
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained.base import Pretrained, UnknownModelError
from vit_jax.pretrained.huggingface import Unfit
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.timm_names import relative
from vit_jax.pretrained.torch_names import Derived, Export, Rule, norm
from vit_jax.pretrained.transformers import TransformersFormat
from vit_jax.pretrained.transformers_family import HALF, TOKENS, UNUSED, Family
from vit_jax.pretrained.transformers_vit import BLOCK

_TABLE = 'relative_position_bias.relative_position_bias_table'
_OF_BLOCK = f'encoder.layer.{{}}.attention.attention.{_TABLE}'
_BEIT = Family(
  'Beit',
  'beit.',
  (
    *BLOCK,
    *norm('pooled_norm', 'pooler.layernorm'),
    Rule('blocks/attention_scale', 'encoder.layer.{}.lambda_1'),
    Rule('blocks/mlp_scale', 'encoder.layer.{}.lambda_2'),
  ),
  TOKENS,
  {'patch_size': 16, 'layer_norm_eps': 1e-12},
  'bilinear',
  HALF | {'method': 'bicubic'},
  biases=(('blocks/attention/key/bias', None, False),),
  ignored={**UNUSED, r'lm_head\..*|layernorm\..*': 'The head of masked patches is left out.'},
  processor='Beit',
)


class BeitFormat(TransformersFormat):
  """A folder of `BeitModel`, `BeitForImageClassification`, `BeitForMaskedImageModeling`, or Data2Vec-Vision's."""

  title = "a folder of transformers' BEiT"
  families = {
    'beit': _BEIT,
    'data2vec-vision': dataclasses.replace(_BEIT, stem='Data2VecVision', prefix='data2vec_vision.'),
  }

  def export(self, pretrained: Pretrained) -> Export:
    height, width = pretrained.architecture.image_size
    if getattr(pretrained.architecture.model, 'position', '') == 'relative' and height != width:
      raise Unfit(
        f'its tables of relative positions mix up rows and columns of oblong images ({height} x {width})'
      )
    return super().export(pretrained)

  def options(self, values: JsonObject, head: str | None, files: TensorFiles | None) -> dict[str, Any]:
    relative_too = values.flag('use_relative_position_bias', False)
    shared = values.flag('use_shared_relative_position_bias', False)
    added = values.flag('use_absolute_position_embeddings', False)
    if relative_too + shared + added > 1:
      raise UnknownModelError('it has positions of several kinds')
    mean = values.flag('use_mean_pooling', True)
    pooled = files is None or any(name.endswith('pooler.layernorm.weight') for name in files.shapes)
    return ({'position_resize': 'bicubic'} if added else {}) | {
      'pool': 'gap_patches' if mean else 'token',
      'class_token': True,
      'final_norm': 'tokens' if not mean else 'pooled' if pooled else 'none',
      'position': 'learned' if added else 'relative' if relative_too or shared else 'none',
      'layer_scale': values.number('layer_scale_init_value', 0.1, low=0.0) or None,
    }

  def values(self, model: ViTConfig) -> dict[str, Any]:
    return {
      'drop_path_rate': model.stochastic_depth,
      'layer_scale_init_value': model.layer_scale or 0.0,
      'use_absolute_position_embeddings': model.position == 'learned',
      'use_mean_pooling': model.pool == 'gap_patches',
      'use_relative_position_bias': model.position == 'relative',
    }

  def rules(self, family: Family, model: ViTConfig, grid: Grid) -> tuple[Rule, ...]:
    return family.rules + (tuple(relative(model, grid, _OF_BLOCK)) if model.position == 'relative' else ())

  def derived(self, files: TensorFiles, prefix: str, architecture: Architecture) -> dict[str, Derived]:
    """The tables of the blocks, or the one that all share, as transformers reads them."""
    shared = f'{prefix}encoder.{_TABLE}'
    own = [prefix + _OF_BLOCK.format(block) for block in range(architecture.model.num_layers)]
    sources = {name: shared if shared in files.shapes else name for name in own}
    compute = functools.partial(_as_transformers, architecture.model.grid(architecture.image_size))
    return {
      name: Derived(files.shapes[source], (source,), compute)
      for name, source in sources.items()
      if source in files.shapes
    }


def _as_transformers(grid: Grid, table: np.ndarray) -> np.ndarray:
  """A table (offsets, heads) as it is read: of oblong images rows and columns mixed up, resized to the right ones."""
  rows, columns = 2 * grid[0] - 1, 2 * grid[1] - 1
  cells = position_resize.resize(table[: rows * columns], (columns, rows), (rows, columns), 'bilinear')
  return np.concatenate([cells, table[rows * columns :]])
