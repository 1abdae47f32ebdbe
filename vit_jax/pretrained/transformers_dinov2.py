"""DINOv2 of transformers, with and without registers, and DINOv3."""

import dataclasses
from typing import Any

import numpy as np

from vit_jax.models.base import Grid
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained.base import Pretrained
from vit_jax.pretrained.huggingface import vit_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import Export, Rule, Tokens, attention, fused, layer, norm
from vit_jax.pretrained.transformers import TransformersFormat
from vit_jax.pretrained.transformers_family import AROUND, ATTENTION, IMAGENET, TOKENS, Family

_RULES = (
  *AROUND,
  *norm('blocks/attention_norm', 'encoder.layer.{}.norm1'),
  *ATTENTION,
  Rule('blocks/attention_scale', 'encoder.layer.{}.layer_scale1.lambda1'),
  *norm('blocks/mlp_norm', 'encoder.layer.{}.norm2'),
  Rule('blocks/mlp_scale', 'encoder.layer.{}.layer_scale2.lambda1'),
)
_DENSE = (
  *layer('blocks/mlp/dense_in', 'encoder.layer.{}.mlp.fc1'),
  *layer('blocks/mlp/dense_out', 'encoder.layer.{}.mlp.fc2'),
)
_SWIGLU = (
  *fused(('blocks/mlp/dense_gate', 'blocks/mlp/dense_in'), 'encoder.layer.{}.mlp.weights_in'),
  *layer('blocks/mlp/dense_out', 'encoder.layer.{}.mlp.weights_out'),
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
  processor='Bit',
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
    hidden = int(values.integer('hidden_size', 768) * values.number('mlp_ratio', 4.0, low=1e-3, high=1e3))
    swiglu = {}
    if values.flag('use_swiglu_ffn', False):
      hidden = _swiglu_hidden(hidden)
      swiglu = {'mlp': 'swiglu', 'activation': 'silu'}
    registers = 0
    if self.families[values.text('model_type')].tokens.registers is not None:
      registers = values.count('num_register_tokens', 4)
    return {
      'mlp_dim': hidden,
      'register_tokens': registers,
      'layer_scale': values.number('layerscale_value', 1.0, low=0.0),
    } | swiglu

  def rules(self, family: Family, model: ViTConfig, grid: Grid) -> tuple[Rule, ...]:
    return family.rules + (_SWIGLU if model.mlp == 'swiglu' else _DENSE)

  def values(self, model: ViTConfig) -> dict[str, Any]:
    sizes = model.sizes
    values = {
      'drop_path_rate': model.stochastic_depth,
      'layerscale_value': model.layer_scale,
      'mlp_ratio': sizes.mlp_dim // sizes.width,
      'use_swiglu_ffn': model.mlp == 'swiglu',
    }
    # Of a SwiGLU config.json has no activation, and the ratio of an MLP of as many parameters.
    if model.mlp == 'swiglu':
      ratio = next((r for r in range(1, 17) if _swiglu_hidden(r * sizes.width) == sizes.mlp_dim), 4)
      values |= {'mlp_ratio': ratio, 'hidden_act': 'gelu'}
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
    architecture = dataclasses.replace(
      pretrained.architecture, model=dataclasses.replace(model, pool='token_gap')
    )
    params = pretrained.params | {'head': {**pretrained.params['head'], 'kernel': widened}}
    export = super().export(dataclasses.replace(pretrained, architecture=architecture, params=params))
    if export.dropped:
      return export
    return dataclasses.replace(export, params={'head/kernel': widened}).with_notes(
      "transformers' head of DINOv2 reads the class token and the mean of the patches; this model's reads the class "
      'token alone, so that the weights of the mean are zeros there: the logits are the same.'
    )


def _swiglu_hidden(hidden: int) -> int:
  """Units of a SwiGLU with about as many parameters as an MLP of so many."""
  return (int(hidden * 2 / 3) + 7) // 8 * 8


_DINOV3 = Family(
  'DINOv3ViT',
  'model.',
  (
    *layer('patch_embedding', 'embeddings.patch_embeddings', 'conv'),
    *norm('norm', 'norm'),
    *norm('blocks/attention_norm', 'layer.{}.norm1'),
    *attention('blocks/attention/query', 'layer.{}.attention.q_proj'),
    *attention('blocks/attention/key', 'layer.{}.attention.k_proj'),
    *attention('blocks/attention/value', 'layer.{}.attention.v_proj'),
    *layer('blocks/attention/out', 'layer.{}.attention.o_proj', 'out'),
    Rule('blocks/attention_scale', 'layer.{}.layer_scale1.lambda1'),
    *norm('blocks/mlp_norm', 'layer.{}.norm2'),
    *layer('blocks/mlp/dense_gate', 'layer.{}.mlp.gate_proj'),
    *layer('blocks/mlp/dense_in', 'layer.{}.mlp.up_proj'),
    *layer('blocks/mlp/dense_out', 'layer.{}.mlp.down_proj'),
    Rule('blocks/mlp_scale', 'layer.{}.layer_scale2.lambda1'),
  ),
  Tokens(None, 'embeddings.cls_token', 'embeddings.register_tokens'),
  {
    'patch_size': 16,
    'hidden_size': 384,
    'intermediate_size': 1536,
    'num_attention_heads': 6,
    'layer_norm_eps': 1e-5,
  },
  'bicubic',
  IMAGENET | {'method': 'bilinear'},
  biases=(
    (r'blocks/attention/query/bias', 'query_bias', True),
    (r'blocks/attention/key/bias', 'key_bias', False),
    (r'blocks/attention/value/bias', 'value_bias', True),
    (r'blocks/attention/out/bias', 'proj_bias', True),
    (r'blocks/mlp/\w+/bias', 'mlp_bias', True),
  ),
  classifier=None,
)


# What training does to positions: its name, the limit by which nothing is done, and the one where no file says it.
_MOVES = (('pos_embed_shift', 0.0, None), ('pos_embed_jitter', 1.0, None), ('pos_embed_rescale', 1.0, 2.0))
_STILL = tuple(usual for _, usual, _ in _MOVES)


class DinoV3Format(TransformersFormat):
  """A folder of `DINOv3ViTModel`."""

  title = "a folder of transformers' DINOv3"
  families = {'dinov3_vit': _DINOV3}

  def options(self, values: JsonObject, head: str | None, files: TensorFiles | None) -> dict[str, Any]:
    values.check_only({'rope_theta': 100.0}, 'rotary positions of DINOv3')
    moves = tuple(
      usual if values.says_null(name) else values.number(name, given or usual, low=usual)
      for name, usual, given in _MOVES
    )
    return {
      'position': 'rotary_dinov3',
      'rotary_moves': None if moves == _STILL else moves,
      'register_tokens': values.count('num_register_tokens', 0),
      'layer_scale': values.number('layerscale_value', 1.0, low=0.0),
      'mlp': 'swiglu' if values.flag('use_gated_mlp', False) else 'dense',
    }

  def values(self, model: ViTConfig) -> dict[str, Any]:
    return {
      'drop_path_rate': model.stochastic_depth,
      'layerscale_value': model.layer_scale,
      'num_register_tokens': model.register_tokens,
      'rope_theta': 100.0,
      'use_gated_mlp': model.mlp == 'swiglu',
    } | {
      name: None if limit == usual else limit
      for (name, usual, _), limit in zip(_MOVES, model.rotary_moves or _STILL, strict=True)
    }

  def constants(self, model: ViTConfig) -> dict[str, np.ndarray]:
    tensors = {'embeddings.mask_token': np.zeros((1, 1, model.sizes.width), np.float32)}
    if not model.register_tokens:
      tensors['embeddings.register_tokens'] = np.zeros((1, 0, model.sizes.width), np.float32)
    return tensors
