"""CLIP and SigLIP (also 2) of transformers: the vision tower alone, or beside a text tower that makes heads."""

import abc
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from vit_jax.models.text_tower import TextConfig
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained import zero_shot
from vit_jax.pretrained.huggingface import config_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import Rule, Tokens, attention, layer, norm
from vit_jax.pretrained.transformers import HALF, Family, TransformersFormat, common
from vit_jax.pretrained.zero_shot import TextLayout, Texts

_BLOCK = (
  *norm('blocks/attention_norm', 'encoder.layers.{}.layer_norm1'),
  *attention('blocks/attention/query', 'encoder.layers.{}.self_attn.q_proj'),
  *attention('blocks/attention/key', 'encoder.layers.{}.self_attn.k_proj'),
  *attention('blocks/attention/value', 'encoder.layers.{}.self_attn.v_proj'),
  *layer('blocks/attention/out', 'encoder.layers.{}.self_attn.out_proj', 'out'),
  *norm('blocks/mlp_norm', 'encoder.layers.{}.layer_norm2'),
  *layer('blocks/mlp/dense_in', 'encoder.layers.{}.mlp.fc1'),
  *layer('blocks/mlp/dense_out', 'encoder.layers.{}.mlp.fc2'),
)
_AROUND = (*layer('patch_embedding', 'embeddings.patch_embedding', 'conv'), *norm('norm', 'post_layernorm'))
_MAP_POOL = (
  Rule('map_pool/probe', 'head.probe'),
  *(
    Rule(f'map_pool/attention/{name}/{leaf}', f'head.attention.in_proj_{theirs}', form, (part, 3))
    for part, name in enumerate(('query', 'key', 'value'))
    for leaf, theirs, form in (('kernel', 'weight', 'into'), ('bias', 'bias', 'flat'))
  ),
  *layer('map_pool/attention/out', 'head.attention.out_proj', 'out'),
  *norm('map_pool/norm', 'head.layernorm'),
  *layer('map_pool/mlp/dense_in', 'head.mlp.fc1'),
  *layer('map_pool/mlp/dense_out', 'head.mlp.fc2'),
)
# What only the text tower has.
_OF_TEXTS = r'text_model\..*|text_projection\.weight|logit_(scale|bias)|(vision_model\.)?embeddings\.position_ids'


class _TwoTowersFormat(TransformersFormat):
  """A vision tower with a text tower beside it, or alone."""

  @abc.abstractmethod
  def texts_layout(self, values: JsonObject, whole: JsonObject) -> TextLayout:
    """What a folder of two towers holds of texts; `values` are those of the text tower, of the `whole` config.json."""

  def texts(self, path: pathlib.Path, texts: Sequence[str]) -> Texts:
    whole = config_of(path)
    if whole is None or 'text_config' not in whole:
      return super().texts(path, texts)
    with TensorFiles(path) as files:
      return zero_shot.read(files, self.texts_layout(whole.section('text_config'), whole), texts)


# SigLIP's, of images and texts.
_SIGLIP = {'hidden_act': 'gelu_pytorch_tanh', 'layer_norm_eps': 1e-6, 'patch_size': 16}
_SIGLIP_VISION = Family(
  'Siglip',
  'vision_model.',
  (*_AROUND, *_BLOCK, *_MAP_POOL),
  Tokens('embeddings.position_embedding.weight', class_token=None, positioned=0, flat=True),
  _SIGLIP,
  'bicubic',
  HALF | {'method': 'bicubic'},
  biases=(),
  ignored={_OF_TEXTS: None, r'head\..*': 'The pooling head, which the logits do not depend on, is left out.'},
  model='VisionModel',
  classifier=None,
)


class SiglipFormat(_TwoTowersFormat):
  """A folder of `SiglipModel`, `SiglipVisionModel` or `SiglipForImageClassification`, and of SigLIP 2.

  SigLIP 2's models of images of any shape (NaFlex) are read with squares of as many patches.
  """

  title = "a folder of transformers' SigLIP"
  families = {
    'siglip_vision_model': _SIGLIP_VISION,
    'siglip': dataclasses.replace(_SIGLIP_VISION, classifier='ForImageClassification', section='vision_config'),
  }
  head_pool = 'gap'

  def options(self, values: JsonObject, head: str | None, files: TensorFiles | None) -> dict[str, Any]:
    if head is not None:
      return {}
    return {'pool': 'map' if values.flag('vision_use_head', True) else 'gap'}

  def values(self, model: ViTConfig) -> dict[str, Any]:
    return {'vision_use_head': model.pool == 'map'}

  def texts_layout(self, values: JsonObject, whole: JsonObject) -> TextLayout:
    values = values.with_defaults(_SIGLIP)
    options = common(values, _SIGLIP_VISION) | {'class_token': False, 'pool': 'gap'}
    features = values.integer('projection_size', values.integer('hidden_size', 768))
    return TextLayout(
      TextConfig(**options, causal=False, features=features, features_bias=True),
      values.integer('max_position_embeddings', 64),
      _text_rules('text_model.head'),
      *_TEXT_TENSORS,
      end=-1,
      scale='logit_scale',
      bias='logit_bias',
      link='sigmoid',
    )


_TEXT_TENSORS = (
  'text_model.embeddings.token_embedding.weight',
  'text_model.embeddings.position_embedding.weight',
)


def _text_rules(last: str) -> tuple[Rule, ...]:
  """Those of a text tower, and of the layer that makes its features."""
  tower = (*_BLOCK, *norm('norm', 'final_layer_norm'))
  rules = [dataclasses.replace(rule, name=f'text_model.{rule.name}') for rule in tower]
  return (*rules, *layer('projection', last))
