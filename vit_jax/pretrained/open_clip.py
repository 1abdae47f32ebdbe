"""OpenCLIP: folders with an open_clip_config.json, and lone files under its names; the text tower makes heads."""

import copy
import dataclasses
import pathlib
import re
import reprlib
import string
from collections.abc import Sequence
from typing import Any

from vit_jax.data.preprocess import Method, Preprocess
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Pooling
from vit_jax.models.text_tower import TextConfig
from vit_jax.pretrained import safetensors_files, timm, zero_shot
from vit_jax.pretrained.base import Pretrained, ReadOptions, UnknownModelError
from vit_jax.pretrained.huggingface import config_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.original_names import NamedFormat
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import QKV, Layout, Rule, Tokens, fused, layer, norm
from vit_jax.pretrained.transformers_clip import CLIP_PIXELS
from vit_jax.pretrained.transformers_family import ACTIVATIONS, Family
from vit_jax.pretrained.zero_shot import TextLayout, Texts

CONFIG = 'open_clip_config.json'
_FILES = ('open_clip_model.safetensors', 'open_clip_pytorch_model.safetensors')
_BLOCK = (
  *norm('blocks/attention_norm', 'transformer.resblocks.{}.ln_1'),
  *fused(QKV, 'transformer.resblocks.{}.attn.in_proj', '_'),
  *layer('blocks/attention/out', 'transformer.resblocks.{}.attn.out_proj', 'out'),
  *norm('blocks/mlp_norm', 'transformer.resblocks.{}.ln_2'),
  *layer('blocks/mlp/dense_in', 'transformer.resblocks.{}.mlp.c_fc'),
  *layer('blocks/mlp/dense_out', 'transformer.resblocks.{}.mlp.c_proj'),
)
_OF_TOWER = re.compile(r'visual\.(conv1\.weight|trunk\.)')
_PRE_NORM = 'visual.ln_pre.weight'
# What a lone file without that norm is taken for.
_CLIPA = {'pool_type': 'avg', 'final_ln_after_pool': True}
# Everything but the image tower.
_IGNORED: dict[str, str | None] = {
  r'text\..*|token_embedding\.weight|text_projection|(transformer|ln_final)\..*': zero_shot.LEFT_OUT,
  'positional_embedding|logit_(scale|bias)|attn_mask': None,
}
_CLIP = Family(
  'OpenCLIP',
  'visual.',
  (
    *layer('patch_embedding', 'conv1', 'conv'),
    *norm('pre_norm', 'ln_pre'),
    *_BLOCK,
    *norm('norm', 'ln_post'),
    *norm('pooled_norm', 'ln_post'),
    Rule('pre_logits/kernel', 'proj'),
  ),
  Tokens('positional_embedding', 'class_embedding', flat=True),
  {'layer_norm_eps': 1e-5},
  'bicubic_antialias',
  CLIP_PIXELS,
  1.0,
  (),
  _IGNORED,
)
_TRUNK = 'visual.trunk.'  # before the names of an image tower of timm's
_HEADS = ('visual.head.proj', f'{_TRUNK}head')  # the projection behind it, where there is one
# Options of the towers that are computed as they say, or that no output depends on; others must not be set.
_OF_BOTH = 'layers width mlp_ratio norm_kwargs act_kwargs pool_type output_tokens'
_OF_IMAGES = (
  f'{_OF_BOTH} head_width patch_size image_size patch_dropout no_ln_pre final_ln_after_pool pos_embed_type '
  'timm_model_name timm_model_pretrained timm_pool timm_proj timm_proj_bias timm_drop timm_drop_path'
)
_OF_TEXTS = (
  f'{_OF_BOTH} context_length vocab_size heads hf_tokenizer_name tokenizer_kwargs eos_id pad_id no_causal_mask '
  'proj_bias'
)
_HF_NAME = 'hf_model_name'  # of a text tower of transformers, which vit_jax does not have
_POOLS: dict[str, Pooling] = {'tok': 'token', 'avg': 'gap_patches'}


class OpenClipFormat(NamedFormat):
  """A CLIP with an image tower of OpenCLIP's own or of timm's."""

  title = "OpenCLIP's"
  families = {'clip': _CLIP}
  marks = ('logit_scale',)
  patches = ('visual.conv1.weight',)
  hidden = ('visual.transformer.resblocks.0.mlp.c_fc.weight',)
  block = r'visual\.transformer\.resblocks\.(\d+)\.'

  def recognises(self, path: pathlib.Path) -> bool:
    has_config = ((path if path.is_dir() else path.parent) / CONFIG).is_file()
    if has_config and (config_of(path) is None if path.is_dir() else path.name in _FILES):
      return True
    return super().recognises(path) and any(map(_OF_TOWER.match, safetensors_files.names(path)))

  def what(self, path: pathlib.Path) -> str:
    return 'an OpenCLIP model'

  def file_of(self, path: pathlib.Path) -> pathlib.Path:
    return next((path / name for name in _FILES if (path / name).is_file()), path)

  def layout(self, files: TensorFiles, values: JsonObject, options: ReadOptions) -> Layout:
    config, vision = _config(files), _vision(files)
    _check(vision, _OF_IMAGES)
    if isinstance(vision.raw('layers'), list):
      raise UnknownModelError("its image tower is CLIP's ResNet")
    if files.prefix(_TRUNK):
      layout = _timm_tower(files, vision, options)
    else:
      layout = super().layout(files, JsonObject(files.source, {}), options)
    if self.alone(files):
      return layout
    preprocess = preprocess_of(config.section('preprocess_cfg'), layout.architecture.image_size)
    notes = layout.notes
    if _HF_NAME in config.section('model_cfg').section('text_cfg'):
      notes = tuple(note for note in notes if note != zero_shot.LEFT_OUT)
    return dataclasses.replace(layout, preprocess=preprocess, notes=notes)

  def alone(self, files: TensorFiles) -> bool:
    return 'model_cfg' not in _config(files)

  def described(self, files: TensorFiles) -> dict[str, Any]:
    whole, vision = _config(files).section('model_cfg'), _vision(files)
    values = {
      'model_type': 'clip',
      'image_size': vision.raw('image_size', self.image_side(files, 'visual.positional_embedding')),
      'hidden_act': _activation(whole, vision),
      'layer_norm_eps': vision.section('norm_kwargs').number('eps', 1e-5),
    }
    if 'vision_cfg' in whole:
      values['num_attention_heads'] = vision.integer('width', 768) // vision.integer('head_width', 64)
    return values

  def options(self, values: JsonObject, head: str | None, files: TensorFiles | None) -> dict[str, Any]:
    assert files is not None
    vision = _vision(files)
    return {
      'class_token': True,
      'final_norm': 'pooled' if vision.flag('final_ln_after_pool', False) else 'tokens',
      'patch_bias': False,
      'pool': vision.choice('pool_type', _POOLS, 'tok'),
      'pre_norm': _PRE_NORM in files.shapes,
      'pre_logits': 'linear',
      'pre_logits_size': files.shapes.get('visual.proj', (0, 512))[1],
    }

  def texts(self, path: pathlib.Path, texts: Sequence[str], pretrained: Pretrained) -> Texts:
    with TensorFiles(self.file_of(path)) as files:
      whole = _config(files).section('model_cfg')
      values = whole.section('text_cfg')
      if values.section('tokenizer_kwargs').text('clean') == 'canonicalize':
        texts = [canonical(text) for text in texts]
      # OpenCLIP's own tokenizer fills up with 0; the one in the folder, which stands for it, perhaps with another.
      padding = 0 if 'text_cfg' in whole and 'hf_tokenizer_name' not in values else None
      return zero_shot.read(files, _texts_layout(files), texts, padding)


def _vision(files: TensorFiles) -> JsonObject:
  """The options of the image tower; of a file alone those that are taken."""
  whole = _config(files).section('model_cfg')
  if 'vision_cfg' in whole or _PRE_NORM in files.shapes:
    return whole.section('vision_cfg')
  return JsonObject(whole.path, _CLIPA)


def _check(values: JsonObject, known: str) -> None:
  """Raises UnknownModelError for an option that is set and is none of the known ones."""
  for name in values.names():
    if name not in known.split() and values.raw(name):
      raise UnknownModelError(f'its {CONFIG} sets {name} {reprlib.repr(values.raw(name))}')


def _activation(whole: JsonObject, tower: JsonObject) -> str:
  """transformers' name of a tower's activation."""
  if whole.flag('quick_gelu', False):
    return 'quick_gelu'
  return 'gelu_pytorch_tanh' if tower.section('act_kwargs').text('approximate') == 'tanh' else 'gelu'


def _timm_tower(files: TensorFiles, vision: JsonObject, options: ReadOptions) -> Layout:
  """What a file holds of an image tower of timm's, by its name; the layer behind it is the projection."""
  name, pool = vision.text('timm_model_name'), vision.text('timm_pool', 'avg')
  if name and not timm.NAME.match(name):
    raise UnknownModelError(f"its image tower is timm's {name}")
  head = next((head for head in _HEADS if f'{head}.weight' in files.shapes), None)
  own = copy.copy(files)
  own.shapes = {
    key.removeprefix(_TRUNK): shape
    for key, shape in files.shapes.items()
    if key.startswith(_TRUNK) and not key.startswith(f'{_TRUNK}head.')
  }
  values: dict[str, Any] = {'crop_pct': 1.0, 'crop_mode': 'squash'}  # of a file alone
  if name:
    values = {'architecture': name, 'pretrained_cfg': {'input_size': [3, *vision.sides('image_size', 224)]}}
    values |= {'global_pool': pool} if pool or head != _HEADS[0] else {}
  layout = timm.TimmFormat().layout(own, JsonObject(vision.path if name else files.source, values), options)
  rules = [dataclasses.replace(rule, name=_TRUNK + rule.name) for rule in layout.rules]
  architecture = layout.architecture
  if head is not None:
    rules += layer('pre_logits', head)
    size, kind = files.shapes[f'{head}.weight'][0], 'affine' if f'{head}.bias' in files.shapes else 'linear'
    model = dataclasses.replace(architecture.model, pre_logits=kind, pre_logits_size=size)
    architecture = dataclasses.replace(architecture, model=model)
  ignored, notes = _CLIP.left_out(files, '', set())
  return dataclasses.replace(
    layout,
    architecture=architecture,
    rules=tuple(rules),
    tokens=layout.tokens and layout.tokens.prefixed(_TRUNK),
    derived={_TRUNK + key: made.prefixed(_TRUNK) for key, made in layout.derived.items()},
    ignored=ignored,
    notes=notes + layout.notes,
  )


def canonical(text: str) -> str:
  """A text in lower case, without punctuation and with single spaces, as SigLIP was trained with."""
  plain = text.replace('_', ' ').translate(str.maketrans('', '', string.punctuation))
  return ' '.join(plain.lower().split())


def _config(files: TensorFiles) -> JsonObject:
  """What open_clip_config.json says; nothing of a file alone."""
  path = files.source.parent / CONFIG
  return JsonObject.read(path) if path.is_file() else JsonObject(path, {})


def preprocess_of(values: JsonObject, image_size: tuple[int, int]) -> Preprocess:
  """OpenCLIP's evaluation: the middle of an image that covers the size, whose shape is kept, or squashed."""
  height, width = image_size
  keeps = values.choice('resize_mode', {'shortest': True, 'squash': False}, 'shortest')
  methods: dict[str, Method] = {'bicubic': 'bicubic', 'bilinear': 'bilinear'}
  return Preprocess(
    image_size,
    3,
    values.numbers('mean', CLIP_PIXELS['mean'], 3, low=-1e6),
    values.numbers('std', CLIP_PIXELS['std'], 3, low=1e-6),
    shorter=height if keeps and height == width else None,
    whole=image_size if keeps and height != width else None,
    timm='center' if keeps else None,
    method=values.choice('interpolation', methods, 'bicubic'),
    antialias=True,
  )


def _texts_layout(files: TensorFiles) -> TextLayout:
  """What a file holds of texts; UserError where its text tower is not OpenCLIP's own."""
  whole = _config(files).section('model_cfg')
  values, shapes, prefix = whole.section('text_cfg'), files.shapes, files.prefix('text.')
  if _HF_NAME in values:
    raise UserError(
      f"{files.source} has the text tower {values.text(_HF_NAME)}, and vit_jax OpenCLIP's own; load the image "
      'tower without classes.'
    )
  try:
    _check(values, _OF_TEXTS)
    _check(values.section('tokenizer_kwargs'), 'clean')
  except UnknownModelError as error:
    raise UserError(
      f'{files.source} has a text tower that vit_jax does not have: {error}; load the image tower without classes.'
    ) from None
  embedding, positions = f'{prefix}token_embedding.weight', f'{prefix}positional_embedding'
  first = f'{prefix}transformer.resblocks.0.mlp.c_fc.weight'
  if not {embedding, positions, first} <= shapes.keys():
    raise UserError(
      f"{files.source} has no text tower of OpenCLIP's own; take a folder of transformers' CLIP."
    )
  length, width = shapes[positions]
  blocks = {
    name.split('.resblocks.')[1].split('.')[0] for name in shapes if name.startswith(f'{prefix}transformer.')
  }
  ends = {'argmax': None, 'last': -1, 'eos': values.integer('eos_id', 2)}
  usual = 'last' if 'logit_bias' in shapes and 'text_cfg' not in whole else 'argmax'
  end = values.choice('pool_type', ends, usual)
  biased = f'{prefix}text_projection.weight' in shapes
  features = shapes[f'{prefix}text_projection.weight'][0] if biased else shapes[f'{prefix}text_projection'][1]
  config = TextConfig(
    variant='custom',
    patch=1,
    width=width,
    mlp_dim=shapes[first][0],
    depth=len(blocks),
    heads=values.integer('heads', max(width // 64, 1)),
    pool='gap',
    class_token=False,
    activation=ACTIVATIONS[_activation(whole, values)],
    norm_epsilon=values.section('norm_kwargs').number(
      'eps', 1e-5 if 'text_cfg' in whole or end is None else 1e-6
    ),
    causal=not values.flag('no_causal_mask', end == -1 and 'text_cfg' not in whole),
    features=features,
    features_bias=biased,
  )
  last = layer('projection', f'{prefix}text_projection') if biased else ()
  rules = (
    *(dataclasses.replace(rule, name=prefix + rule.name) for rule in (*_BLOCK, *norm('norm', 'ln_final'))),
    *(last or (Rule('projection/kernel', f'{prefix}text_projection'),)),
  )
  bias = 'logit_bias' if 'logit_bias' in shapes else None
  link = 'softmax' if bias is None else 'sigmoid'
  return TextLayout(config, length, rules, embedding, positions, end, 'logit_scale', bias, link)
