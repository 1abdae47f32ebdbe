"""DINOv2 of transformers, with and without registers."""

import dataclasses
from typing import Any

import numpy as np

from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained.base import Pretrained, UnknownModelError
from vit_jax.pretrained.huggingface import vit_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import Export, Rule, layer, norm
from vit_jax.pretrained.transformers import AROUND, ATTENTION, IMAGENET, TOKENS, Family, TransformersFormat

_RULES = (
  *AROUND,
  *norm('blocks/attention_norm', 'encoder.layer.{}.norm1'),
  *ATTENTION,
  Rule('blocks/attention_scale', 'encoder.layer.{}.layer_scale1.lambda1'),
  *norm('blocks/mlp_norm', 'encoder.layer.{}.norm2'),
  *layer('blocks/mlp/dense_in', 'encoder.layer.{}.mlp.fc1'),
  *layer('blocks/mlp/dense_out', 'encoder.layer.{}.mlp.fc2'),
  Rule('blocks/mlp_scale', 'encoder.layer.{}.layer_scale2.lambda1'),
)
_DINOV2 = Family(
  'Dinov2',
  'dinov2.',
  _RULES,
  TOKENS,
  {'patch_size': 14, 'layer_norm_eps': 1e-6},
  'bicubic',
  IMAGENET,
  shorter=256 / 224,
  square=True,
)


class DinoV2Format(TransformersFormat):
  """A folder of `Dinov2Model`, `Dinov2WithRegistersModel` or one of their classifiers."""

  title = "a folder of transformers' DINOv2"
  families = {
    'dinov2': _DINOV2,
    'dinov2_with_registers': dataclasses.replace(
      _DINOV2,
      stem='Dinov2WithRegisters',
      prefix='dinov2_with_registers.',
      tokens=dataclasses.replace(TOKENS, registers='embeddings.register_tokens'),
      defaults={'patch_size': 16, 'layer_norm_eps': 1e-6, 'num_register_tokens': 4},
      position_resize='bicubic_antialias',
    ),
  }
  head_pool = 'token_gap'

  def options(self, values: JsonObject, head: str | None, files: TensorFiles | None) -> dict[str, Any]:
    if values.flag('use_swiglu_ffn', False):
      raise UnknownModelError('it has SwiGLU instead of an MLP (use_swiglu_ffn)')
    registers = 0
    if self.families[values.text('model_type')].tokens.registers is not None:
      registers = values.integer('num_register_tokens', 4)
    return {
      'mlp_dim': int(values.integer('hidden_size', 768) * values.number('mlp_ratio', 4.0, low=1e-3, high=1e3)),
      'register_tokens': registers,
      'layer_scale': values.number('layerscale_value', 1.0, low=0.0),
    }

  def values(self, model: ViTConfig) -> dict[str, Any]:
    sizes = model.sizes
    values = {
      'drop_path_rate': model.stochastic_depth,
      'layerscale_value': model.layer_scale,
      'mlp_ratio': sizes.mlp_dim // sizes.width,
      'use_swiglu_ffn': False,
    }
    return values | ({'num_register_tokens': model.register_tokens} if model.register_tokens else {})

  def constants(self, model: ViTConfig) -> dict[str, np.ndarray]:
    # transformers warns where it is missing, and only pre-training uses it.
    return {'embeddings.mask_token': np.zeros((1, model.sizes.width), np.float32)}

  def export(self, pretrained: Pretrained) -> Export:
    model = vit_of(pretrained)
    if model.pool != 'token' or not pretrained.architecture.num_classes:
      return super().export(pretrained)
    # Their head reads the class token beside the mean of the patches: (D, K) becomes (2 D, K).
    kernel = np.asarray(pretrained.params['head']['kernel'], np.float32)
    widened = np.concatenate([kernel, np.zeros_like(kernel)])
    architecture = dataclasses.replace(pretrained.architecture, model=dataclasses.replace(model, pool='token_gap'))
    params = pretrained.params | {'head': {**pretrained.params['head'], 'kernel': widened}}
    export = super().export(dataclasses.replace(pretrained, architecture=architecture, params=params))
    if export.dropped:
      return export
    return dataclasses.replace(export, params={'head/kernel': widened}).with_notes(
      "transformers' head of DINOv2 reads the class token and the mean of the patches; this model's reads the class "
      'token alone, so that the weights of the mean are zeros there: the logits are the same.'
    )
