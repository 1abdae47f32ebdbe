"""OpenCLIP: folders with an open_clip_config.json, and lone files under its names; the text tower makes heads."""

import dataclasses
import pathlib
import string
from collections.abc import Sequence
from typing import Any

from vit_jax.data.preprocess import Method, Preprocess
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Grid
from vit_jax.models.text_tower import TextConfig
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained import preprocessor_config, safetensors_files, timm_names, zero_shot
from vit_jax.pretrained.base import Pretrained, ReadOptions, UnknownModelError
from vit_jax.pretrained.huggingface import config_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.original_names import NamedFormat
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.timm_names import Naming
from vit_jax.pretrained.torch_names import QKV, Layout, Rule, Tokens, fused, layer, norm
from vit_jax.pretrained.transformers_clip import CLIP_PIXELS
from vit_jax.pretrained.transformers_family import HALF, Family
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
# SigLIP's image tower is timm's.
_TRUNK = dataclasses.replace(
  _CLIP,
  prefix='visual.trunk.',
  rules=(),
  tokens=Tokens('pos_embed', None, positioned=0),
  defaults={'layer_norm_eps': 1e-6},
  preprocess=HALF | {'method': 'bicubic'},
  shorter=None,
)
# Options of vision_cfg that our image towers have with one value only.
_USUAL = {'attentional_pool': False, 'pool_type': 'tok', 'final_ln_after_pool': False, 'ls_init_value': None}


class OpenClipFormat(NamedFormat):
  """A CLIP of OpenCLIP's transformers, or a SigLIP with timm's image tower."""

  title = "OpenCLIP's"
  families = {'clip': _CLIP, 'trunk': _TRUNK}
  marks = ('logit_scale',)
  patches = ('visual.conv1.weight', 'visual.trunk.patch_embed.proj.weight')
  hidden = ('visual.transformer.resblocks.0.mlp.c_fc.weight', 'visual.trunk.blocks.0.mlp.fc1.weight')
  block = r'visual\.(?:transformer\.resblocks|trunk\.blocks)\.(\d+)\.'

  def recognises(self, path: pathlib.Path) -> bool:
    has_config = ((path if path.is_dir() else path.parent) / CONFIG).is_file()
    if has_config and (config_of(path) is None if path.is_dir() else path.name in _FILES):
      return True
    return super().recognises(path) and bool(set(self.patches) & safetensors_files.names(path))

  def file_of(self, path: pathlib.Path) -> pathlib.Path:
    return next((path / name for name in _FILES if (path / name).is_file()), path)

  def layout(self, files: TensorFiles, values: JsonObject, options: ReadOptions) -> Layout:
    layout = super().layout(files, JsonObject(files.source, {}), options)
    own = _config(files).section('preprocess_cfg')
    if 'mean' not in own:
      return layout
    notes = tuple(note for note in layout.notes if preprocessor_config.FILE not in note)
    return dataclasses.replace(
      layout, preprocess=preprocess_of(own, layout.architecture.image_size), notes=notes
    )

  def guesses(self, files: TensorFiles, layout: Layout) -> tuple[str, ...]:
    return () if 'model_cfg' in _config(files) else super().guesses(files, layout)

  def described(self, files: TensorFiles) -> dict[str, Any]:
    whole = _config(files).section('model_cfg')
    vision, trunk = whole.section('vision_cfg'), 'visual.trunk.pos_embed' in files.shapes
    size = vision.raw('image_size')
    positions = ('visual.trunk.pos_embed', 0) if trunk else ('visual.positional_embedding', 1)
    values = {
      'model_type': 'trunk' if trunk else 'clip',
      'image_size': size if isinstance(size, list) else self.image_side(files, *positions),
      'hidden_act': 'quick_gelu' if whole.flag('quick_gelu', False) and not trunk else 'gelu',
    }
    if 'head_width' in vision:
      values['num_attention_heads'] = vision.integer('width', 768) // vision.integer('head_width', 64)
    for name, usual in _USUAL.items():
      if vision.raw(name, usual) != usual:
        raise UnknownModelError(f'it has {name} {vision.raw(name)!r} in its vision_cfg')
    return values

  def options(self, values: JsonObject, head: str | None, files: TensorFiles | None) -> dict[str, Any]:
    assert files is not None
    if values.text('model_type') == 'trunk':
      return {
        'pool': 'map' if 'visual.trunk.attn_pool.latent' in files.shapes else 'gap',
        'class_token': False,
      }
    return {
      'patch_bias': False,
      'pre_norm': 'visual.ln_pre.weight' in files.shapes,
      'pre_logits': 'linear',
      'pre_logits_size': files.shapes.get('visual.proj', (0, 512))[1],
    }

  def rules(self, family: Family, model: ViTConfig, grid: Grid) -> tuple[Rule, ...]:
    return family.rules or timm_names.rules(model, Naming(), grid)

  def texts(self, path: pathlib.Path, texts: Sequence[str], pretrained: Pretrained) -> Texts:
    with TensorFiles(self.file_of(path)) as files:
      tokenizing = _config(files).section('model_cfg').section('text_cfg').section('tokenizer_kwargs')
      if tokenizing.text('clean') == 'canonicalize':
        texts = [canonical(text) for text in texts]
      return zero_shot.read(files, _texts_layout(files), texts)


def canonical(text: str) -> str:
  """A text in lower case, without punctuation and with single spaces, as SigLIP was trained with."""
  plain = text.replace('_', ' ').translate(str.maketrans('', '', string.punctuation))
  return ' '.join(plain.lower().split())


def _config(files: TensorFiles) -> JsonObject:
  """What open_clip_config.json says; nothing of a file alone."""
  path = files.source.parent / CONFIG
  return JsonObject.read(path) if path.is_file() else JsonObject(path, {})


def preprocess_of(values: JsonObject, image_size: tuple[int, int]) -> Preprocess:
  """OpenCLIP's evaluation: the shorter side resized and the middle cut, as torchvision does, or squashed."""
  shorter = values.choice('resize_mode', {'shortest': max(image_size), 'squash': None}, 'shortest')
  methods: dict[str, Method] = {'bicubic': 'bicubic', 'bilinear': 'bilinear'}
  return Preprocess(
    image_size,
    3,
    values.numbers('mean', (0.5,), 3, low=-1e6),
    values.numbers('std', (0.5,), 3, low=1e-6),
    shorter=shorter,
    timm='center' if shorter else None,
    method=values.choice('interpolation', methods, 'bicubic'),
    antialias=True,
  )


def _texts_layout(files: TensorFiles) -> TextLayout:
  """What a file holds of texts; UserError where its text tower is not OpenCLIP's own."""
  whole = _config(files).section('model_cfg')
  values, shapes, prefix = whole.section('text_cfg'), files.shapes, files.prefix('text.')
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
  end = values.choice(
    'pool_type', {'argmax': None, 'last': -1}, 'last' if 'logit_bias' in shapes else 'argmax'
  )
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
    activation='quick_gelu' if whole.flag('quick_gelu', False) else 'gelu',
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
