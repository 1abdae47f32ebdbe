"""`config.json` and tensor names of ViT, DeiT and DINOv2 (with and without registers) in transformers."""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from vit_jax import config
from vit_jax.errors import UserError
from vit_jax.models.variants import resolve
from vit_jax.pretrained import config_json, preprocessor_config
from vit_jax.pretrained.base import Portable
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import Export, Layout, Rule, Tokens, attention, layer, norm

KINDS = ('vit', 'deit', 'dinov2')

_IMAGENET = {'mean': (0.485, 0.456, 0.406), 'std': (0.229, 0.224, 0.225)}
_HALF = {'mean': (0.5, 0.5, 0.5), 'std': (0.5, 0.5, 0.5)}

# transformers' names of the exact GELU and of its tanh approximation; the first is the one we write.
_ACTIVATIONS = {
  'erf': ('gelu', 'gelu_python'),
  'tanh': ('gelu_pytorch_tanh', 'gelu_new', 'gelu_fast', 'gelu_python_tanh'),
}

_ATTENTION = (
  *attention('blocks/attention/query', 'encoder.layer.{}.attention.attention.query'),
  *attention('blocks/attention/key', 'encoder.layer.{}.attention.attention.key'),
  *attention('blocks/attention/value', 'encoder.layer.{}.attention.attention.value'),
  *layer('blocks/attention/out', 'encoder.layer.{}.attention.output.dense', 'out'),
)
_VIT_BLOCK = (
  *norm('blocks/attention_norm', 'encoder.layer.{}.layernorm_before'),
  *_ATTENTION,
  *norm('blocks/mlp_norm', 'encoder.layer.{}.layernorm_after'),
  *layer('blocks/mlp/dense_in', 'encoder.layer.{}.intermediate.dense'),
  *layer('blocks/mlp/dense_out', 'encoder.layer.{}.output.dense'),
)
_DINOV2_BLOCK = (
  *norm('blocks/attention_norm', 'encoder.layer.{}.norm1'),
  *_ATTENTION,
  Rule('blocks/attention_scale', 'encoder.layer.{}.layer_scale1.lambda1'),
  *norm('blocks/mlp_norm', 'encoder.layer.{}.norm2'),
  *layer('blocks/mlp/dense_in', 'encoder.layer.{}.mlp.fc1'),
  *layer('blocks/mlp/dense_out', 'encoder.layer.{}.mlp.fc2'),
  Rule('blocks/mlp_scale', 'encoder.layer.{}.layer_scale2.lambda1'),
)
_AROUND = (
  *layer('patch_embedding', 'embeddings.patch_embeddings.projection', 'conv'),
  *norm('norm', 'layernorm'),
)


@dataclasses.dataclass(frozen=True)
class _Family:
  """A `model_type` of transformers."""

  stem: str  # of the names of its classes
  block: tuple[Rule, ...]
  registers: str | None
  positioned: int
  position_resize: str
  defaults: dict[str, Any]  # of config.json, where it says nothing
  preprocess: dict[str, Any]


_COMMON = {
  'hidden_size': 768,
  'num_hidden_layers': 12,
  'num_attention_heads': 12,
  'hidden_act': 'gelu',
  'image_size': 224,
  'num_channels': 3,
  'qkv_bias': True,
}
_VIT = _COMMON | {'intermediate_size': 3072, 'layer_norm_eps': 1e-12, 'patch_size': 16, 'pooler_act': 'tanh'}
_DINOV2 = _COMMON | {'mlp_ratio': 4, 'layer_norm_eps': 1e-6, 'patch_size': 14, 'layerscale_value': 1.0}

# The resize of the position embedding is that of transformers' `interpolate_pos_encoding`.
_FAMILIES = {
  'vit': _Family('ViT', _VIT_BLOCK, None, 1, 'bicubic', _VIT, _HALF),
  'deit': _Family(
    'DeiT', _VIT_BLOCK, 'embeddings.distillation_token', 2, 'bicubic', _VIT, _IMAGENET | {'method': 'bicubic'}
  ),
  'dinov2': _Family('Dinov2', _DINOV2_BLOCK, None, 1, 'bicubic', _DINOV2, _IMAGENET | {'method': 'bicubic'}),
  'dinov2_with_registers': _Family(
    'Dinov2WithRegisters',
    _DINOV2_BLOCK,
    'embeddings.register_tokens',
    1,
    'bicubic_antialias',
    _DINOV2 | {'patch_size': 16, 'num_register_tokens': 4},
    _IMAGENET | {'method': 'bicubic'},
  ),
}


def layout(files: TensorFiles, folder: pathlib.Path, values: dict[str, Any], told: dict[str, Any]) -> Layout:
  """What a folder holds.

  Args:
    files: its tensors.
    folder: where its files are.
    values: of its config.json.
    told: fields of `config.Model` that are to be other than config.json says.

  Raises:
    UserError: config.json describes a model that we do not have, or is damaged.
  """
  model_type = values['model_type']
  family = _FAMILIES.get(model_type) if isinstance(model_type, str) else None
  if family is None:
    raise UserError(
      f'{folder} holds a model of type {model_type!r}, which vit_jax does not have; it reads '
      f'{", ".join(_FAMILIES)}, bit.'
    )
  values = family.defaults | values
  model = dataclasses.replace(_model(folder, model_type, values), **told)
  image_size = config_json.sides(folder, values, 'image_size')
  channels = config_json.integer(folder, values, 'num_channels')
  prefix = model_type + '.' if any(name.startswith(model_type + '.') for name in files.shapes) else ''
  head, num_classes = _head(files)
  notes: tuple[str, ...] = ()
  ignored = {prefix + 'embeddings.mask_token'} & files.shapes.keys()
  if ignored:
    notes += ('The mask token, which only pre-training uses, is left out.',)
  pooler = {prefix + 'pooler.dense.weight', prefix + 'pooler.dense.bias'} & files.shapes.keys()
  if head is None and pooler:
    if values['pooler_act'] != 'tanh':
      raise UserError(f'{folder} has a pooler with {values["pooler_act"]!r}, and vit_jax has tanh only.')
    size = files.shapes.get(prefix + 'pooler.dense.bias', (model.width,))[0]
    model = dataclasses.replace(model, representation_size=size)
  elif pooler:
    ignored |= pooler
    notes += ('The pooler, which the logits do not depend on, is left out.',)
  if head is not None and model_type.startswith('dinov2'):
    model = dataclasses.replace(model, pool='token_gap')
  if model_type == 'deit':
    notes += ('The distillation token is read as a register token: patches and class token attend to it.',)
  teacher = {name for name in files.shapes if name.startswith('distillation_classifier.')}
  if teacher:
    ignored |= teacher
    notes += (
      'The head of the distillation token is left out: the logits are those of the head of the class token, '
      'where transformers gives the mean of both.',
    )
  zeros = () if values['qkv_bias'] else [rule.path for rule in _ATTENTION if rule.form == 'flat']
  if zeros:
    notes += ('Queries, keys and values have no bias: ours are zeros, which training would change.',)
  preprocess, more = preprocessor_config.read(
    folder, image_size=image_size, channels=channels, default=_default(family, image_size)
  )
  return Layout(
    model=model,
    image_size=image_size,
    channels=channels,
    num_classes=num_classes,
    rules=_rules(family, prefix, head, model.representation_size is not None),
    tokens=_tokens(family, prefix),
    preprocess=preprocess,
    position_resize=family.position_resize,
    class_names=config_json.class_names(folder, values, num_classes),
    zeros=frozenset(zeros),
    ignored=frozenset(ignored),
    notes=notes + more,
  )


def export(portable: Portable, kind: str) -> Export:
  """What a folder of a kind is to hold.

  Raises:
    UserError: the model is not of that kind.
  """
  model, sizes = portable.model, resolve(portable.model)
  model_type = 'dinov2_with_registers' if kind == 'dinov2' and model.register_tokens else kind
  family = _FAMILIES[model_type]
  _check_kind(portable, kind)
  head, pooler, dropped, notes = 'classifier', False, frozenset(), ()
  zero = not any(np.asarray(leaf).any() for leaf in portable.params['head'].values())
  if model.representation_size is not None:
    if portable.num_classes and not zero:
      raise UserError(
        f'{family.stem} of transformers has no layer between pooling and head, and this model has one '
        f'(representation_size {model.representation_size}); leave it out, or write an .npz.'
      )
    if portable.num_classes:
      notes += (f'The head of {portable.num_classes} classes, all zeros, is left out.',)
    head, pooler, dropped = None, True, frozenset({'head/kernel', 'head/bias'})
  elif not portable.num_classes:
    head, dropped = None, frozenset({'head/kernel', 'head/bias'})
    if kind != 'dinov2':
      notes += (
        f'There is no pooler: load it with {family.stem}Model.from_pretrained(folder, '
        'add_pooling_layer=False).',
      )
  prefix = '' if head is None else model_type + '.'
  values = {
    'architectures': [family.stem + ('Model' if head is None else 'ForImageClassification')],
    'attention_probs_dropout_prob': model.attention_dropout,
    'dtype': 'float32',
    'hidden_act': _ACTIVATIONS[model.gelu][0],
    'hidden_dropout_prob': model.dropout,
    'hidden_size': sizes.width,
    'image_size': _one_or_both(portable.image_size),
    'initializer_range': 0.02,
    'layer_norm_eps': model.norm_epsilon,
    'model_type': model_type,
    'num_attention_heads': sizes.heads,
    'num_channels': portable.channels,
    'num_hidden_layers': sizes.depth,
    'patch_size': sizes.patch,
    'qkv_bias': True,
  }
  constants = {}
  if kind == 'dinov2':
    values |= {
      'drop_path_rate': model.stochastic_depth,
      'layerscale_value': model.layer_scale,
      'mlp_ratio': sizes.mlp_dim // sizes.width,
      'use_swiglu_ffn': False,
    }
    # transformers warns where it is missing, and only pre-training uses it.
    constants[prefix + 'embeddings.mask_token'] = np.zeros((1, sizes.width), np.float32)
    if model.register_tokens:
      values['num_register_tokens'] = model.register_tokens
  else:
    values |= {'intermediate_size': sizes.mlp_dim, 'encoder_stride': sizes.patch}
    if pooler:
      values |= {'pooler_act': 'tanh', 'pooler_output_size': model.representation_size}
  if head is not None:
    names = portable.class_names or tuple(f'LABEL_{i}' for i in range(portable.num_classes))
    values['id2label'] = {str(i): name for i, name in enumerate(names)}
    values['label2id'] = {name: i for i, name in enumerate(names)}
  text, more = preprocessor_config.write(portable.preprocess)
  return Export(
    rules=_rules(family, prefix, head, pooler),
    tokens=_tokens(family, prefix),
    config=values,
    texts={preprocessor_config.FILE: text},
    constants=constants,
    dropped=dropped,
    notes=notes + more,
  )


def _check_kind(portable: Portable, kind: str) -> None:
  """Raises UserError where transformers' model of a kind cannot be this one."""
  model, sizes = portable.model, resolve(portable.model)
  dinov2 = kind == 'dinov2'
  pool = 'token_gap' if dinov2 and portable.num_classes else 'token'
  registers = {'vit': (0,), 'deit': (1,)}.get(kind)
  wrong = None
  if model.pool != pool:
    wrong = f'pool {pool!r} and this model {model.pool!r}'
  elif registers is not None and model.register_tokens not in registers:
    wrong = f'{registers[0]} register tokens and this model {model.register_tokens}'
  elif dinov2 != (model.layer_scale is not None):
    wrong = 'LayerScale and this model has none' if dinov2 else 'no LayerScale and this model has it'
  elif dinov2 and sizes.mlp_dim % sizes.width:
    wrong = f'an mlp_dim that is a multiple of the width and this model {sizes.mlp_dim} and {sizes.width}'
  elif dinov2 and portable.image_size[0] != portable.image_size[1]:
    wrong = f'square images and this model {portable.image_size[0]} x {portable.image_size[1]}'
  if wrong:
    raise UserError(f"Kind {kind!r} of Hugging Face folder has {wrong}; choose another kind, such as 'timm'.")


def _model(folder: pathlib.Path, model_type: str, values: dict[str, Any]) -> config.Model:
  """The config of our model, but for pool and representation layer."""
  gelu = [name for name, theirs in _ACTIVATIONS.items() if values['hidden_act'] in theirs]
  if not gelu:
    raise UserError(f'{folder} has hidden_act {values["hidden_act"]!r}, and vit_jax computes GELU only.')
  if values.get('use_swiglu_ffn'):
    raise UserError(f'{folder} has SwiGLU instead of an MLP (use_swiglu_ffn), which vit_jax does not have.')
  patch = config_json.sides(folder, values, 'patch_size')
  if patch[0] != patch[1]:
    raise UserError(f'{folder} has patches of {patch[0]} x {patch[1]}, and those of vit_jax are square.')
  width = config_json.integer(folder, values, 'hidden_size')
  if model_type.startswith('dinov2'):
    mlp_dim = int(width * config_json.number(folder, values, 'mlp_ratio'))
    registers = (
      config_json.integer(folder, values, 'num_register_tokens') if 'num_register_tokens' in values else 0
    )
    layer_scale = config_json.number(folder, values, 'layerscale_value')
  else:
    mlp_dim = config_json.integer(folder, values, 'intermediate_size')
    registers, layer_scale = int(model_type == 'deit'), None
  return config.Model(
    variant='custom',
    patch=patch[0],
    width=width,
    mlp_dim=mlp_dim,
    depth=config_json.integer(folder, values, 'num_hidden_layers'),
    heads=config_json.integer(folder, values, 'num_attention_heads'),
    pool='token',
    register_tokens=registers,
    gelu=gelu[0],
    norm_epsilon=config_json.number(folder, values, 'layer_norm_eps'),
    layer_scale=layer_scale,
  )


def _rules(family: _Family, prefix: str, head: str | None, pooler: bool) -> tuple[Rule, ...]:
  rules = [*_AROUND, *family.block]
  if pooler:
    rules += layer('representation', 'pooler.dense')
  rules = [dataclasses.replace(rule, name=prefix + rule.name) for rule in rules]
  if head is not None:
    rules += layer('head', head)
  return tuple(rules)


def _tokens(family: _Family, prefix: str) -> Tokens:
  return Tokens(
    position=prefix + 'embeddings.position_embeddings',
    class_token=prefix + 'embeddings.cls_token',
    registers=family.registers and prefix + family.registers,
    positioned=family.positioned,
  )


def _head(files: TensorFiles) -> tuple[str | None, int]:
  """The name of the head that class tokens go to, and its classes."""
  for head in ('classifier', 'cls_classifier'):
    shape = files.shapes.get(f'{head}.weight')
    if shape:
      return head, shape[0]
  return None, 0


def _default(family: _Family, image_size: tuple[int, int]) -> dict[str, Any]:
  result = {'antialias': True} | family.preprocess
  if family.stem != 'ViT':  # both keep the middle 224 of 256 pixels
    result['shorter'] = round(max(image_size) * 256 / 224)
  return result


def _one_or_both(size: tuple[int, int]) -> int | list[int]:
  return size[0] if size[0] == size[1] else list(size)
