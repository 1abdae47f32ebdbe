"""Pixio of transformers: several class tokens, the first of which is ours and the others registers."""

import dataclasses
from typing import Any

import numpy as np

from vit_jax.foundation import pytrees
from vit_jax.models.base import Architecture
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained.base import Pretrained
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import Derived, Export, layer, norm
from vit_jax.pretrained.transformers import TransformersFormat
from vit_jax.pretrained.transformers_family import AROUND, ATTENTION, IMAGENET, TOKENS, Family

_CLASS_TOKENS = 'embeddings.cls_token'
_FIRST, _OTHERS = f'{_CLASS_TOKENS}[0]', f'{_CLASS_TOKENS}[1:]'


class PixioFormat(TransformersFormat):
  """A folder of `PixioModel`."""

  title = "a folder of transformers' Pixio"
  families = {
    'pixio': Family(
      'Pixio',
      '',
      (
        *AROUND,
        *norm('blocks/attention_norm', 'encoder.layer.{}.norm1'),
        *ATTENTION,
        *norm('blocks/mlp_norm', 'encoder.layer.{}.norm2'),
        *layer('blocks/mlp/dense_in', 'encoder.layer.{}.intermediate.dense'),
        *layer('blocks/mlp/dense_out', 'encoder.layer.{}.output.dense'),
      ),
      dataclasses.replace(TOKENS, class_token=_FIRST, registers=_OTHERS, positioned=-1),
      {'hidden_size': 1280, 'num_hidden_layers': 32, 'num_attention_heads': 16, 'patch_size': 16},
      'bicubic',
      IMAGENET,
      classifier=None,
      processor='Bit',
    )
  }
  bare_pool = 'leading'

  def options(self, values: JsonObject, head: str | None, files: TensorFiles | None) -> dict[str, Any]:
    return {
      'mlp_dim': int(
        values.integer('hidden_size', 1280) * values.number('mlp_ratio', 4.0, low=1e-3, high=1e3)
      ),
      'class_token': True,
      'register_tokens': values.integer('n_cls_tokens', 8) - 1,
    }

  def values(self, model: ViTConfig) -> dict[str, Any]:
    sizes = model.sizes
    return {'mlp_ratio': sizes.mlp_dim // sizes.width, 'n_cls_tokens': model.leading_tokens}

  def derived(self, files: TensorFiles, prefix: str, architecture: Architecture) -> dict[str, Derived]:
    one, number, width = files.shapes.get(_CLASS_TOKENS, (1, 1, 1))
    return {
      _FIRST: Derived((one, 1, width), (_CLASS_TOKENS,), lambda tokens: tokens[:, :1]),
      _OTHERS: Derived((one, number - 1, width), (_CLASS_TOKENS,), lambda tokens: tokens[:, 1:]),
    }

  def export(self, pretrained: Pretrained) -> Export:
    """With the class tokens as the one tensor that they are there."""
    export, flat = super().export(pretrained), pytrees.flatten(pretrained.params)
    assert export.tokens is not None
    tensors = export.tokens.scatter(flat)
    tensors[_CLASS_TOKENS] = np.concatenate([tensors.pop(_FIRST), tensors.pop(_OTHERS)], axis=1)
    return dataclasses.replace(
      export,
      tokens=None,
      constants=export.constants | tensors,
      dropped=export.dropped | export.tokens.paths(),
    )
