"""AIMv2 of transformers: its image tower, alone or beside a text tower."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained.base import ReadOptions
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import Derived, Layout, Tokens, attention, layer, norm
from vit_jax.pretrained.transformers import TransformersFormat
from vit_jax.pretrained.transformers_clip import CLIP_PIXELS
from vit_jax.pretrained.transformers_family import Family

_BLOCK = 'encoder.layers.{}'
_AIMV2 = Family(
  'Aimv2',
  'vision_model.',
  (
    *layer('patch_embedding', 'embeddings.patch_embed', 'conv'),
    *norm('patch_norm', 'embeddings.rms_norm', 'rms_norm'),
    *norm('norm', 'rms_norm', 'rms_norm'),
    *norm('blocks/attention_norm', f'{_BLOCK}.rms_norm1', 'rms_norm'),
    *attention('blocks/attention/query', f'{_BLOCK}.attention.q_proj'),
    *attention('blocks/attention/key', f'{_BLOCK}.attention.k_proj'),
    *attention('blocks/attention/value', f'{_BLOCK}.attention.v_proj'),
    *layer('blocks/attention/out', f'{_BLOCK}.attention.out_proj', 'out'),
    *norm('blocks/mlp_norm', f'{_BLOCK}.rms_norm2', 'rms_norm'),
    *layer('blocks/mlp/dense_gate', f'{_BLOCK}.ffn.gate_proj'),
    *layer('blocks/mlp/dense_in', f'{_BLOCK}.ffn.up_proj'),
    *layer('blocks/mlp/dense_out', f'{_BLOCK}.ffn.down_proj'),
  ),
  Tokens('embeddings.position_embedding.weight', class_token=None, positioned=0, flat=True),
  {
    'hidden_size': 1024,
    'intermediate_size': 2816,
    'num_hidden_layers': 24,
    'num_attention_heads': 8,
    'hidden_act': 'silu',
    'patch_size': 14,
  },
  'bicubic',
  CLIP_PIXELS,
  shorter=1.0,
  biases=((r'blocks/attention/\w+/bias', 'qkv_bias', False), (r'blocks/mlp/\w+/bias', 'mlp_bias', False)),
  ignored={
    r'text_model\..*|(text|visual)_projection\.weight|logit_scale': None,
    r'head\..*': 'The pooling head is left out: the mean of the patches is taken.',
  },
  model='VisionModel',
  classifier=None,
  processor='CLIP',
)

_COMPUTED = (
  'Its positions are computed for images of {} x {} (load(…, image_size=…) for others), and resized for those of '
  'another size.'
)


class Aimv2Format(TransformersFormat):
  """A folder of `Aimv2VisionModel` or `Aimv2Model`, without the pooling head."""

  title = "a folder of transformers' AIMv2"
  families = {
    'aimv2_vision_model': _AIMV2,
    'aimv2': dataclasses.replace(_AIMV2, section='vision_config'),
  }
  bare_pool = 'gap'

  def options(self, values: JsonObject, head: str | None, files: TensorFiles | None) -> dict[str, Any]:
    return {
      'norm': 'rms_norm',
      'norm_epsilon': values.number('rms_norm_eps', 1e-5),
      'mlp': 'swiglu',
      'patch_norm': True,
    }

  def values(self, model: ViTConfig) -> dict[str, Any]:
    return {'rms_norm_eps': model.norm_epsilon, 'use_head': False, 'is_native': False}

  def layout(self, files: TensorFiles, values: JsonObject, options: ReadOptions) -> Layout:
    """That of transformers; a model without a table computes its positions, here for the size that is asked for."""
    layout = super().layout(files, values, options)
    architecture, tokens = layout.architecture, layout.tokens
    assert tokens is not None and tokens.position is not None, 'its positions are a table, here at least'
    if tokens.position in files.shapes:
      return layout
    size = options.image_size or architecture.image_size
    grid, width = architecture.model.grid(size), architecture.shapes()['position_embedding'].shape[-1]
    waves = functools.partial(_waves, grid, width)
    return dataclasses.replace(
      layout,
      architecture=dataclasses.replace(architecture, image_size=size),
      derived={tokens.position: Derived((math.prod(grid), width), (), waves)},
      notes=(*layout.notes, _COMPUTED.format(*size)),
    )


def _waves(grid: tuple[int, int], width: int) -> np.ndarray:
  """(N, D): sines and cosines of columns, then of rows, at D / 4 frequencies from 1 to almost 1 / 10,000."""
  frequencies = 10_000.0 ** -(np.arange(width // 4) / (width // 4))
  rows, columns = (axis.reshape(-1, 1) * frequencies for axis in np.indices(grid))
  waves = [wave(place) for place in (columns, rows) for wave in (np.sin, np.cos)]
  return np.concatenate(waves, axis=1).astype(np.float32)
