"""DINOv2 of transformers, with and without registers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained.base import Pretrained, UnknownModelError
from vit_jax.pretrained.huggingface import Unfit, vit_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.torch_names import Export, Rule, layer, norm
from vit_jax.pretrained.transformers import ATTENTION, IMAGENET, Family, TransformersFormat

_BLOCK = (
  *norm('blocks/attention_norm', 'encoder.layer.{}.norm1'),
  *ATTENTION,
  Rule('blocks/attention_scale', 'encoder.layer.{}.layer_scale1.lambda1'),
  *norm('blocks/mlp_norm', 'encoder.layer.{}.norm2'),
  *layer('blocks/mlp/dense_in', 'encoder.layer.{}.mlp.fc1'),
  *layer('blocks/mlp/dense_out', 'encoder.layer.{}.mlp.fc2'),
  Rule('blocks/mlp_scale', 'encoder.layer.{}.layer_scale2.lambda1'),
)
_SHORTER = 256 / 224
_REGISTERS = {'dinov2': 0, 'dinov2_with_registers': 4}  # where config.json does not say it


class DinoV2Format(TransformersFormat):
  """A folder of `Dinov2Model`, `Dinov2WithRegistersModel` or one of their classifiers."""

  title = "a folder of transformers' DINOv2"
  families = {
    'dinov2': Family('Dinov2', _BLOCK, 14, 1e-6, 'bicubic', IMAGENET, _SHORTER),
    'dinov2_with_registers': Family(
      'Dinov2WithRegisters',
      _BLOCK,
      16,
      1e-6,
      'bicubic_antialias',
      IMAGENET,
      _SHORTER,
      registers='embeddings.register_tokens',
    ),
  }
  head_pool = 'token_gap'

  def model(self, values: JsonObject, common: Mapping[str, Any]) -> ViTConfig:
    if values.flag('use_swiglu_ffn', False):
      raise UnknownModelError('it has SwiGLU instead of an MLP (use_swiglu_ffn)')
    model_type = values.text('model_type')
    registers = 0
    if self.families[model_type].registers is not None:
      registers = values.integer('num_register_tokens', _REGISTERS[model_type])
    return ViTConfig(
      **common,
      mlp_dim=int(common['width'] * values.number('mlp_ratio', 4.0, low=1e-3, high=1e3)),
      register_tokens=registers,
      layer_scale=values.number('layerscale_value', 1.0, low=0.0),
    )

  def export(self, pretrained: Pretrained) -> Export:
    model = vit_of(pretrained)
    _check(pretrained, model)
    sizes = model.sizes
    values = {
      'drop_path_rate': model.stochastic_depth,
      'layerscale_value': model.layer_scale,
      'mlp_ratio': sizes.mlp_dim // sizes.width,
      'use_swiglu_ffn': False,
    }
    if model.register_tokens:
      values['num_register_tokens'] = model.register_tokens
    # transformers warns where it is missing, and only pre-training uses it.
    constants = {'embeddings.mask_token': np.zeros((1, sizes.width), np.float32)}
    model_type = 'dinov2_with_registers' if model.register_tokens else 'dinov2'
    export = self.export_as(pretrained, model, model_type, values, constants)
    if model.pool == 'token' and not export.dropped:
      export = _with_head_of_both(export, pretrained)
    return export


def _check(pretrained: Pretrained, model: ViTConfig) -> None:
  """Raises Unfit for what transformers' DINOv2 cannot be."""
  sizes, (height, width) = model.sizes, pretrained.architecture.image_size
  pools = ('token', 'token_gap') if pretrained.architecture.num_classes else ('token',)
  if model.pool not in pools:
    raise Unfit(f'it has pool {" or ".join(map(repr, pools))} and this model {model.pool!r}')
  if model.pre_logits_size is not None:
    raise Unfit('it has no layer between pooling and head, and this model has one')
  if model.layer_scale is None:
    raise Unfit('it has LayerScale and this model has none')
  if sizes.mlp_dim % sizes.width:
    raise Unfit(
      f'it has an mlp_dim that is a multiple of the width and this model {sizes.mlp_dim} and {sizes.width}'
    )
  if height != width:
    raise Unfit(f'it has square images and this model {height} x {width}')


def _with_head_of_both(export: Export, pretrained: Pretrained) -> Export:
  """With the head's kernel (D, K) as (2 D, K), since theirs reads the class token beside the mean of the patches."""
  kernel = np.asarray(pretrained.params['head']['kernel'], np.float32)
  widened = np.concatenate([kernel, np.zeros_like(kernel)])
  note = (
    "transformers' head of DINOv2 reads the class token and the mean of the patches; this model's reads the class "
    'token alone, so that the weights of the mean are zeros there: the logits are the same.'
  )
  return dataclasses.replace(export, params={'head/kernel': widened}).with_notes(note)
