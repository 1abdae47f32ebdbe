"""CLIP and SigLIP (also 2) of transformers: the vision tower alone, or beside a text tower that makes heads."""

import abc
import dataclasses
import math
import pathlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from vit_jax.models.text_tower import TextConfig
from vit_jax.models.two_towers import TwoTowersConfig
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained import text_towers, zero_shot
from vit_jax.pretrained.base import Pretrained, ReadOptions
from vit_jax.pretrained.huggingface import config_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.text_towers import with_texts
from vit_jax.pretrained.torch_names import Export, Layout, Rule, Tokens, attention, fused, layer, norm
from vit_jax.pretrained.transformers import TransformersFormat
from vit_jax.pretrained.transformers_family import HALF, Family
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
  *fused([f'map_pool/attention/{name}' for name in ('query', 'key', 'value')], 'head.attention.in_proj', '_'),
  *layer('map_pool/attention/out', 'head.attention.out_proj', 'out'),
  *norm('map_pool/norm', 'head.layernorm'),
  *layer('map_pool/mlp/dense_in', 'head.mlp.fc1'),
  *layer('map_pool/mlp/dense_out', 'head.mlp.fc2'),
)
# What only the text tower has.
_OF_TEXTS: dict[str, str | None] = {
  r'text_model\..*|text_projection\.weight': zero_shot.LEFT_OUT,
  r'logit_(scale|bias)': None,
}


class _TwoTowersFormat(TransformersFormat):
  """A vision tower with a text tower beside it, or alone."""

  # Of a folder of both: `model_type`, and the name of the class.
  both: ClassVar[tuple[str, str]]

  def sections(self, values: JsonObject) -> JsonObject:
    """A config.json with the sections that count as 'vision_config' and 'text_config'."""
    return values

  @abc.abstractmethod
  def texts_layout(self, values: JsonObject, whole: JsonObject) -> TextLayout:
    """What a folder of two towers holds of texts; `values` are those of the text tower, of the `whole` config.json."""

  @abc.abstractmethod
  def texts_values(self, model: TwoTowersConfig) -> dict[str, Any]:
    """What config.json says of texts beside 'text_config', and within it beside what `text_towers.section` does."""

  def layout(self, files: TensorFiles, values: JsonObject, options: ReadOptions) -> Layout:
    values = self.sections(values)
    layout = super().layout(files, values, options)
    if not options.pretraining or 'text_config' not in values:
      return layout
    return with_texts(layout, files, self.texts_layout(values.section('text_config'), values))

  def export(self, pretrained: Pretrained) -> Export:
    model = pretrained.architecture.model
    if type(model) is not TwoTowersConfig:
      return super().export(pretrained)
    images = super().export(text_towers.image_tower(pretrained, model))
    images_config = {name: value for name, value in images.config.items() if name != 'architectures'}
    if images.tokens and not f'{images.tokens.position}'.startswith('vision_model.'):
      images = images.prefixed('vision_model.')
    own = self.texts_values(model)
    config = own | {
      'architectures': [self.both[1]],
      'model_type': self.both[0],
      'vision_config': images_config,
      'text_config': text_towers.section(model) | own['text_config'],
    }
    whole = JsonObject(pathlib.Path(), config)
    return text_towers.export(
      pretrained, images, self.texts_layout(whole.section('text_config'), whole), config
    )

  def texts(self, path: pathlib.Path, texts: Sequence[str], pretrained: Pretrained) -> Texts:
    whole = config_of(path)
    whole = whole and self.sections(whole)
    if whole is None or 'text_config' not in whole:
      return super().texts(path, texts, pretrained)
    with TensorFiles(path) as files:
      return zero_shot.read(files, self.texts_layout(whole.section('text_config'), whole), texts)


CLIP_PIXELS = {
  'mean': (0.48145466, 0.4578275, 0.40821073),
  'std': (0.26862954, 0.26130258, 0.27577711),
  'method': 'bicubic',
  'antialias': True,
}
# CLIP's, of images and of texts.
_CLIP = {'hidden_act': 'quick_gelu', 'layer_norm_eps': 1e-5}
_CLIP_TEXT = _CLIP | {
  'hidden_size': 512,
  'intermediate_size': 2048,
  'num_attention_heads': 8,
  'patch_size': 1,
}
_CLIP_VISION = Family(
  'CLIP',
  'vision_model.',
  (*_AROUND, *norm('pre_norm', 'pre_layrnorm'), *_BLOCK),
  Tokens('embeddings.position_embedding.weight', 'embeddings.class_embedding', flat=True),
  _CLIP | {'patch_size': 32},
  'bicubic',
  CLIP_PIXELS,
  shorter=1.0,
  biases=(),
  ignored={
    **_OF_TEXTS,
    r'post_layernorm\.\w+': 'The last norm, which the logits do not depend on, is left out.',
  },
  outside=(Rule('pre_logits/kernel', 'visual_projection.weight', 'into'),),
  model='VisionModel',
  classifier=None,
  processor='CLIP',
)


_CLIP_PAIR = dataclasses.replace(_CLIP_VISION, classifier='ForImageClassification', section='vision_config')


class ClipFormat(_TwoTowersFormat):
  """A folder of `CLIPModel`, `CLIPVisionModel` (also with projection), `CLIPForImageClassification`; or MetaCLIP 2."""

  title = "a folder of transformers' CLIP"
  both = 'clip', 'CLIPModel'
  families = {
    'clip_vision_model': _CLIP_VISION,
    'clip': _CLIP_PAIR,
    'metaclip_2_vision_model': dataclasses.replace(_CLIP_VISION, stem='MetaClip2'),
    'metaclip_2': dataclasses.replace(_CLIP_PAIR, stem='MetaClip2'),
  }

  def sections(self, values: JsonObject) -> JsonObject:
    for name in ('vision_config', 'text_config'):
      old = values.raw(f'{name}_dict')  # wins, and its class's defaults too, over what the section says
      values = values if old is None else values.without(name).with_defaults({name: old})
    return values

  def options(self, values: JsonObject, head: str | None, files: TensorFiles | None) -> dict[str, Any]:
    options: dict[str, Any] = {'pre_norm': True, 'patch_bias': False}
    if head is not None:
      return options | {'pool': 'gap_patches', 'class_token': True, 'final_norm': 'none'}
    projection = files and files.shapes.get('visual_projection.weight')
    if projection:
      options |= {'pre_logits': 'linear', 'pre_logits_size': projection[0]}
    elif files is None and 'projection_dim' in values:
      options['pre_logits'] = 'linear'
    return options

  def values(self, model: ViTConfig) -> dict[str, Any]:
    return {} if model.pre_logits_size is None else {'projection_dim': model.pre_logits_size}

  def constants(self, model: ViTConfig) -> dict[str, np.ndarray]:
    if model.final_norm == 'tokens':
      return {}
    return {  # of the norm that a classifier does not read
      'post_layernorm.weight': np.ones(model.sizes.width, np.float32),
      'post_layernorm.bias': np.zeros(model.sizes.width, np.float32),
    }

  def texts_values(self, model: TwoTowersConfig) -> dict[str, Any]:
    return {'projection_dim': model.text.features, 'text_config': {'eos_token_id': model.text_end}}

  def texts_layout(self, values: JsonObject, whole: JsonObject) -> TextLayout:
    options = _CLIP_VISION.common(values.with_defaults(_CLIP_TEXT)) | {'class_token': False, 'pool': 'gap'}
    end = values.integer('eos_token_id', 49407 if whole.text('model_type') == 'clip' else 2)
    return TextLayout(
      TextConfig(**options, causal=True, features=whole.integer('projection_dim', 512)),
      values.integer('max_position_embeddings', 77),
      _text_rules('text_projection'),
      *_TEXT_TENSORS,
      # In OpenAI's folders 2 is another token; the end is the largest number.
      end=None if end == 2 and whole.text('model_type') == 'clip' else end,
      scale='logit_scale',
      bias=None,
      link='softmax',
    )


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
  ignored={**_OF_TEXTS, r'head\..*': 'The pooling head, which the logits do not depend on, is left out.'},
  model='VisionModel',
  classifier=None,
)


_SIGLIP2_VISION = dataclasses.replace(
  _SIGLIP_VISION,
  stem='Siglip2',
  # Their patches are rows of pixels with the channels last.
  rules=tuple(
    dataclasses.replace(rule, form='out') if rule.form == 'conv' else rule for rule in _SIGLIP_VISION.rules
  ),
  defaults=_SIGLIP | {'num_patches': 256},
  position_resize='bilinear_antialias',
  preprocess=HALF | {'method': 'bilinear', 'max_patches': 256},
)


class SiglipFormat(_TwoTowersFormat):
  """A folder of `SiglipModel`, `SiglipVisionModel` or `SiglipForImageClassification`, and of SigLIP 2.

  SigLIP 2's models of images of any shape (NaFlex) take these as their own processor prepares them.
  """

  title = "a folder of transformers' SigLIP"
  both = 'siglip', 'SiglipModel'
  families = {
    'siglip_vision_model': _SIGLIP_VISION,
    'siglip': dataclasses.replace(
      _SIGLIP_VISION, classifier='ForImageClassification', section='vision_config'
    ),
    'siglip2_vision_model': _SIGLIP2_VISION,
    'siglip2': dataclasses.replace(
      _SIGLIP2_VISION, classifier='ForImageClassification', section='vision_config'
    ),
  }
  head_pool = 'gap'

  def image_size(self, values: JsonObject) -> tuple[int, int]:
    if 'num_patches' not in values:
      return super().image_size(values)
    side = math.isqrt(values.integer('num_patches', 256)) * values.sides('patch_size')[0]
    return side, side

  def options(self, values: JsonObject, head: str | None, files: TensorFiles | None) -> dict[str, Any]:
    if head is not None:
      return {}
    return {'pool': 'map' if values.flag('vision_use_head', True) else 'gap'}

  def values(self, model: ViTConfig) -> dict[str, Any]:
    return {'vision_use_head': model.pool == 'map'}

  def texts_values(self, model: TwoTowersConfig) -> dict[str, Any]:
    return {'text_config': {'projection_size': model.text.features}}

  def texts_layout(self, values: JsonObject, whole: JsonObject) -> TextLayout:
    values = values.with_defaults(_SIGLIP)
    options = _SIGLIP_VISION.common(values) | {'class_token': False, 'pool': 'gap'}
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
