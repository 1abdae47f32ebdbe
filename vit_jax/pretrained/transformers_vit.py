"""ViT, DeiT and what has ViT's names in transformers: MSN and I-JEPA; MAE is in transformers_mae.py."""

import dataclasses
from typing import Any, ClassVar

from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained.base import Pretrained, UnknownModelError
from vit_jax.pretrained.huggingface import NO_DISTILLATION_HEAD
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import Export, Tokens, layer, norm
from vit_jax.pretrained.transformers import TransformersFormat
from vit_jax.pretrained.transformers_family import (
  AROUND,
  ATTENTION,
  HALF,
  IMAGENET,
  TOKENS,
  TWO_HEADS,
  Family,
)

BLOCK = (
  *AROUND,
  *norm('blocks/attention_norm', 'encoder.layer.{}.layernorm_before'),
  *ATTENTION,
  *norm('blocks/mlp_norm', 'encoder.layer.{}.layernorm_after'),
  *layer('blocks/mlp/dense_in', 'encoder.layer.{}.intermediate.dense'),
  *layer('blocks/mlp/dense_out', 'encoder.layer.{}.output.dense'),
)
_RULES = (*BLOCK, *layer('pre_logits', 'pooler.dense'))
_DEFAULTS = {'patch_size': 16, 'layer_norm_eps': 1e-12}
VIT = Family('ViT', 'vit.', _RULES, TOKENS, _DEFAULTS, 'bicubic', HALF)


class ViTFormat(TransformersFormat):
  """A folder of `ViTModel` or `ViTForImageClassification`."""

  title = "a folder of transformers' ViT"
  families = {'vit': VIT}
  # Its register tokens.
  registers: ClassVar[int] = 0
  # Whether a folder without a head may have a layer behind the class token.
  has_pooler: ClassVar[bool] = True

  def options(self, values: JsonObject, head: str | None, files: TensorFiles | None) -> dict[str, Any]:
    options: dict[str, Any] = {'register_tokens': self.registers}
    if head == TWO_HEADS[0]:
      options = {'distillation_token': True}
    bias = files and [shape for name, shape in files.shapes.items() if name.endswith('pooler.dense.bias')]
    if bias and head is None:
      activation = values.text('pooler_act', 'tanh')
      if activation != 'tanh':
        raise UnknownModelError(f'it has a pooler with {activation!r}, and vit_jax has tanh only')
      options['pre_logits_size'] = bias[0][0]
    return options

  def values(self, model: ViTConfig) -> dict[str, Any]:
    values: dict[str, Any] = {'encoder_stride': model.sizes.patch}
    if model.pre_logits_size is not None:
      values |= {'pooler_act': 'tanh', 'pooler_output_size': model.pre_logits_size}
    return values

  def export(self, pretrained: Pretrained) -> Export:
    export = super().export(pretrained)
    if export.dropped and self.has_pooler and 'pooler_act' not in export.config:
      family = next(iter(self.families.values()))
      note = f'{family.stem}Model.from_pretrained(folder, add_pooling_layer=False).'
      export = export.with_notes(f'There is no pooler: load it with {note}')
    return export


class DeiTFormat(ViTFormat):
  """A folder of `DeiTModel` or of one of its classifiers.

  The distillation token of a folder without a head for it becomes a register token.
  """

  title = "a folder of transformers' DeiT"
  families = {
    'deit': dataclasses.replace(
      VIT,
      stem='DeiT',
      prefix='deit.',
      tokens=dataclasses.replace(TOKENS, registers='embeddings.distillation_token', positioned=2),
      preprocess=IMAGENET,
      shorter=256 / 224,
    )
  }
  registers = 1
  notes = (NO_DISTILLATION_HEAD,)


class MsnFormat(ViTFormat):
  """A folder of `ViTMSNModel` or its classifier."""

  title = "a folder of transformers' ViTMSN"
  families = {
    'vit_msn': dataclasses.replace(
      VIT, stem='ViTMSN', preprocess=IMAGENET, defaults=_DEFAULTS | {'layer_norm_eps': 1e-6}
    )
  }
  has_pooler = False


class IJepaFormat(ViTFormat):
  """A folder of `IJepaModel` or `IJepaForImageClassification`: no class token, and the mean of the patches."""

  title = "a folder of transformers' I-JEPA"
  families = {
    'ijepa': dataclasses.replace(
      VIT,
      stem='IJepa',
      prefix='ijepa.',
      tokens=Tokens(position='embeddings.position_embeddings', class_token=None, positioned=0),
    )
  }
  head_pool = 'gap'
  bare_pool = 'gap'
  has_pooler = False
