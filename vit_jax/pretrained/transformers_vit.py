"""ViT and DeiT of transformers."""

from collections.abc import Mapping
from typing import Any, ClassVar

from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained.base import Pretrained
from vit_jax.pretrained.huggingface import NO_DISTILLATION_HEAD, Unfit, vit_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.torch_names import Export, layer, norm
from vit_jax.pretrained.transformers import ATTENTION, HALF, IMAGENET, Family, TransformersFormat

_BLOCK = (
  *norm('blocks/attention_norm', 'encoder.layer.{}.layernorm_before'),
  *ATTENTION,
  *norm('blocks/mlp_norm', 'encoder.layer.{}.layernorm_after'),
  *layer('blocks/mlp/dense_in', 'encoder.layer.{}.intermediate.dense'),
  *layer('blocks/mlp/dense_out', 'encoder.layer.{}.output.dense'),
)


class ViTFormat(TransformersFormat):
  """A folder of `ViTModel` or `ViTForImageClassification`."""

  title = "a folder of transformers' ViT"
  families = {'vit': Family('ViT', _BLOCK, 16, 1e-12, 'bicubic', HALF)}
  # Its register tokens.
  registers: ClassVar[int] = 0

  def model(self, values: JsonObject, common: Mapping[str, Any]) -> ViTConfig:
    mlp_dim = values.integer('intermediate_size', 3072)
    return ViTConfig(**common, mlp_dim=mlp_dim, register_tokens=self.registers)

  def export(self, pretrained: Pretrained) -> Export:
    model = vit_of(pretrained)
    if model.pool != 'token':
      raise Unfit(f"it has pool 'token' and this model {model.pool!r}")
    registers = model.register_tokens + model.distillation_token
    if registers != self.registers:
      raise Unfit(f'it has {self.registers} register tokens and this model {registers}')
    if model.layer_scale is not None:
      raise Unfit('it has no LayerScale and this model has it')
    (model_type, family), *_ = self.families.items()
    values = {'intermediate_size': model.sizes.mlp_dim, 'encoder_stride': model.sizes.patch}
    export = self.export_as(pretrained, model, model_type, values)
    if not pretrained.architecture.num_classes and model.pre_logits_size is None:
      note = (
        f'There is no pooler: load it with {family.stem}Model.from_pretrained(folder, '
        'add_pooling_layer=False).'
      )
      export = export.with_notes(note)
    return export


class DeiTFormat(ViTFormat):
  """A folder of `DeiTModel` or of one of its classifiers.

  The distillation token of a folder without a head for it becomes a register token.
  """

  title = "a folder of transformers' DeiT"
  families = {
    'deit': Family(
      'DeiT',
      _BLOCK,
      16,
      1e-12,
      'bicubic',
      IMAGENET,
      shorter=256 / 224,
      registers='embeddings.distillation_token',
      positioned=2,
    )
  }
  registers = 1
  notes = (NO_DISTILLATION_HEAD,)
