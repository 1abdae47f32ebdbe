"""`config.json` and tensor names of timm's Vision Transformers (`vit_*`)."""

import math
import pathlib
import re
from typing import Any

import numpy as np

from vit_jax import config
from vit_jax.errors import UserError
from vit_jax.models.variants import has_class_token, resolve
from vit_jax.pretrained.base import Portable, Preprocess
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import Export, Layout, Rule, Tokens, attention, layer, norm

# What timm says in code only. Heads of the widths that have not 64 channels each:
_HEADS = {1152: 16, 1280: 16, 1408: 16, 1536: 16, 1664: 16}
_HEADS_OF = {'vit_base_patch16_gap_224': 16}
_TANH = re.compile(
  r'vit_(so400m_patch16|giantopt_patch16|base_patch32)_siglip(_gap)?_\d+|vit_large_patch16_siglip(_gap)?_512'
)
# Models whose tensors have our names and that compute something else.
_OTHER = re.compile(r'.*_(rpn|clip)_.*|(?!vit_).*')

_BLOCK = (
  *norm('blocks/attention_norm', 'blocks.{}.norm1'),
  *attention('blocks/attention/query', 'blocks.{}.attn.qkv', (0, 3)),
  *attention('blocks/attention/key', 'blocks.{}.attn.qkv', (1, 3)),
  *attention('blocks/attention/value', 'blocks.{}.attn.qkv', (2, 3)),
  *layer('blocks/attention/out', 'blocks.{}.attn.proj', 'out'),
  *norm('blocks/mlp_norm', 'blocks.{}.norm2'),
  *layer('blocks/mlp/dense_in', 'blocks.{}.mlp.fc1'),
  *layer('blocks/mlp/dense_out', 'blocks.{}.mlp.fc2'),
)
_SCALES = (
  Rule('blocks/attention_scale', 'blocks.{}.ls1.gamma'),
  Rule('blocks/mlp_scale', 'blocks.{}.ls2.gamma'),
)
_QK_NORM = (
  *norm('blocks/attention/query_norm', 'blocks.{}.attn.q_norm'),
  *norm('blocks/attention/key_norm', 'blocks.{}.attn.k_norm'),
)
_MAP_POOL = (
  Rule('map_pool/probe', 'attn_pool.latent'),
  *attention('map_pool/attention/query', 'attn_pool.q'),
  *attention('map_pool/attention/key', 'attn_pool.kv', (0, 2)),
  *attention('map_pool/attention/value', 'attn_pool.kv', (1, 2)),
  *layer('map_pool/attention/out', 'attn_pool.proj', 'out'),
  *norm('map_pool/norm', 'attn_pool.norm'),
  *layer('map_pool/mlp/dense_in', 'attn_pool.mlp.fc1'),
  *layer('map_pool/mlp/dense_out', 'attn_pool.mlp.fc2'),
)
_POOLS = {'token': 'token', 'avg': 'gap', 'map': 'map'}


def layout(
  files: TensorFiles, folder: pathlib.Path, values: dict[str, Any] | None, told: dict[str, Any]
) -> Layout:
  """What a folder, or a file without config.json (`values` None), holds.

  Args:
    files: its tensors.
    folder: where its files are.
    values: of its config.json.
    told: fields of `config.Model` that are to be other than timm's.

  Raises:
    UserError: a model that we do not have.
  """
  values = values or {}
  name = str(values.get('architecture', 'vit_'))
  if values and 'architecture' not in values:
    raise UserError(f'{folder}/config.json has neither model_type nor architecture; get the file again.')
  if _OTHER.fullmatch(name):
    raise UserError(f"{folder} holds {name}, which vit_jax does not have; of timm's models it reads vit_*.")
  saved = {'model_args': {}, 'pretrained_cfg': values} | values
  arguments, published = saved['model_args'] or {}, saved['pretrained_cfg'] or {}
  shapes = files.shapes
  for needed in ('patch_embed.proj.weight', 'pos_embed', 'blocks.0.mlp.fc1.weight'):
    if needed not in shapes:
      raise UserError(
        f"{files.source} has no tensor {needed}, which every vit_* of timm's has; check what the file holds."
      )
  if 'fc_norm.weight' in shapes:
    raise UserError(f'{files.source} has its last norm behind the pooling (fc_norm), and vit_jax before it.')
  width, channels, patch, _ = (*shapes['patch_embed.proj.weight'], 0, 0, 0)[:4]
  class_token, registers = 'cls_token' in shapes, shapes.get('reg_token', (1, 0))[1]
  before = class_token + registers
  pool = arguments.get('global_pool') or values.get('global_pool') or _usual_pool(shapes)
  if pool not in _POOLS:
    raise UserError(f'{folder} has global_pool {pool!r}, and vit_jax has {", ".join(_POOLS)}.')
  include = bool(arguments.get('pool_include_prefix'))
  if before and include not in _includes(_POOLS[pool], class_token, registers):
    raise UserError(
      f'{folder} pools with {"all" if include else "none"} of the tokens before the patches '
      f'(global_pool {pool!r}), which vit_jax does not do.'
    )
  image_size, notes = _image_size(arguments, published, shapes['pos_embed'][1], before, patch)
  patches = (image_size[0] // patch) * (image_size[1] // patch)
  model = config.Model(
    **{
      'variant': 'custom',
      'patch': patch,
      'width': width,
      'mlp_dim': shapes['blocks.0.mlp.fc1.weight'][0],
      'depth': len({match[1] for key in shapes if (match := re.match(r'blocks\.(\d+)\.', key))}),
      'heads': arguments.get('num_heads') or _HEADS_OF.get(name) or _HEADS.get(width) or max(width // 64, 1),
      'pool': _POOLS[pool],
      'class_token': class_token,
      'register_tokens': registers,
      'gelu': _gelu(folder, name, arguments),
      'layer_scale': float(arguments.get('init_values') or 1e-5) if 'blocks.0.ls1.gamma' in shapes else None,
      'qk_norm': 'blocks.0.attn.q_norm.weight' in shapes,
    }
    | told
  )
  if 'num_heads' not in arguments and 'heads' not in told:
    notes += (
      f'timm does not save the number of heads: {model.heads}, as its models of that width (heads=…).',
    )
  head = 'head' if 'head.weight' in shapes else None
  zeros = _without_bias(shapes, pool)
  return Layout(
    model=model,
    image_size=image_size,
    channels=channels,
    num_classes=shapes['head.weight'][0] if head else 0,
    rules=_rules(model, head is not None),
    tokens=_tokens(class_token, registers, 0 if shapes['pos_embed'][1] == patches else before),
    preprocess=_preprocess(published, image_size, channels),
    position_resize='bicubic_antialias',
    class_names=_class_names(published, shapes['head.weight'][0] if head else 0),
    zeros=zeros,
    notes=notes,
  )


def export(portable: Portable) -> Export:
  """What a folder is to hold.

  Raises:
    UserError: the model is none of timm's.
  """
  model, sizes = portable.model, resolve(portable.model)
  class_token = has_class_token(model)
  pools = {ours: theirs for theirs, ours in _POOLS.items()}
  wrong = None
  if model.pool not in pools:
    wrong = f'pool {model.pool!r}'
  elif model.representation_size is not None:
    wrong = f'layer between pooling and head (representation_size {model.representation_size})'
  elif not (include := _includes(model.pool, class_token, model.register_tokens)):
    wrong = 'mean over class token and patches without the registers'
  if wrong:
    raise UserError(f"timm's Vision Transformers have no {wrong}; choose another kind, or the .npz format.")
  notes = ()
  if model.norm_epsilon != 1e-6:
    notes = (
      f"timm's norms have an epsilon of 1e-6, which its config.json cannot change, and this model "
      f'{model.norm_epsilon}: logits differ a little.',
    )
  arguments = {
    'act_layer': {'tanh': 'gelu_tanh', 'erf': 'gelu'}[model.gelu],
    'class_token': class_token,
    'depth': sizes.depth,
    'embed_dim': sizes.width,
    'fc_norm': False,
    'global_pool': pools[model.pool],
    'img_size': list(portable.image_size),
    'in_chans': portable.channels,
    'init_values': model.layer_scale,
    'mlp_ratio': _ratio(sizes.mlp_dim, sizes.width),
    'no_embed_class': bool(model.register_tokens),
    'num_classes': portable.num_classes,
    'num_heads': sizes.heads,
    'patch_size': sizes.patch,
    'pool_include_prefix': include[-1],
    'qk_norm': model.qk_norm,
    'reg_tokens': model.register_tokens,
  }
  published, more = _published(portable)
  values = {
    'architecture': 'vit_base_patch16_224',  # of which model_args changes everything
    'global_pool': pools[model.pool],
    'model_args': arguments,
    'num_classes': portable.num_classes,
    'num_features': sizes.width,
    'pretrained_cfg': published,
  }
  # As timm's models with registers, the prefix has no positions: the class token takes up its own.
  positioned = 0 if model.register_tokens else int(class_token)
  return Export(
    rules=_rules(model, portable.num_classes > 0),
    tokens=_tokens(class_token, model.register_tokens, positioned),
    config=values,
    dropped=frozenset() if portable.num_classes else frozenset({'head/kernel', 'head/bias'}),
    notes=notes + more,
  )


def _rules(model: config.Model, head: bool) -> tuple[Rule, ...]:
  return (
    *layer('patch_embedding', 'patch_embed.proj', 'conv'),
    *_BLOCK,
    *(_SCALES if model.layer_scale is not None else ()),
    *(_QK_NORM if model.qk_norm else ()),
    *norm('norm', 'norm'),
    *(_MAP_POOL if model.pool == 'map' else ()),
    *(layer('head', 'head') if head else ()),
  )


def _tokens(class_token: bool, registers: int, positioned: int) -> Tokens:
  return Tokens(
    position='pos_embed',
    class_token='cls_token' if class_token else None,
    registers='reg_token' if registers else None,
    positioned=positioned,
  )


def _includes(pool: str, class_token: bool, registers: int) -> tuple[bool, ...]:
  """Which values of timm's `pool_include_prefix` pool as we do: our mean leaves out the registers only."""
  if pool == 'token' or not (class_token or registers):
    return True, False
  if pool == 'map':
    return (True,)
  return (not registers,) if not (class_token and registers) else ()


def _usual_pool(shapes: dict[str, tuple[int, ...]]) -> str:
  if 'attn_pool.latent' in shapes:
    return 'map'
  return 'token' if 'cls_token' in shapes else 'avg'


def _image_size(
  arguments: dict[str, Any], published: dict[str, Any], positions: int, before: int, patch: int
) -> tuple[tuple[int, int], tuple[str, ...]]:
  """Height and width, and a sentence where they are guessed."""
  size = arguments.get('img_size') or published.get('input_size')
  if size:
    height, width = (size, size) if isinstance(size, int) else size[-2:]
    return (height, width), ()
  side = math.isqrt(positions - before)
  if side * side != positions - before:
    side = math.isqrt(positions)
  size = (side * patch, side * patch)
  return size, (f'The file does not tell its image size: {size[0]} x {size[1]}, a square.',)


def _gelu(folder: pathlib.Path, name: str, arguments: dict[str, Any]) -> str:
  activation = arguments.get('act_layer') or ('gelu_tanh' if _TANH.fullmatch(name) else 'gelu')
  if activation not in ('gelu', 'gelu_tanh'):
    raise UserError(f'{folder} has act_layer {activation!r}, and vit_jax computes GELU only.')
  return 'tanh' if activation == 'gelu_tanh' else 'erf'


def _without_bias(shapes: dict[str, tuple[int, ...]], pool: str) -> frozenset[str]:
  """Paths of the biases of queries, keys and values that a model without them lacks."""
  rules = [*_BLOCK, *(_MAP_POOL if pool == 'map' else ())]
  return frozenset(rule.path for rule in rules if rule.form == 'flat' and rule.name.format(0) not in shapes)


def _class_names(published: dict[str, Any], num_classes: int) -> tuple[str, ...] | None:
  names = published.get('label_names')
  return tuple(names) if names and len(names) == num_classes else None


def _preprocess(published: dict[str, Any], image_size: tuple[int, int], channels: int) -> Preprocess:
  """timm's evaluation: resize, cut the middle `crop_pct`, normalise."""
  mean, std = (tuple(published.get(name) or (0.5,) * channels) for name in ('mean', 'std'))
  scaled = tuple(math.floor(side / (published.get('crop_pct') or 0.9)) for side in image_size)
  squash = published.get('crop_mode') == 'squash' or scaled[0] != scaled[1]
  whole = scaled if squash and scaled != tuple(image_size) else None
  return Preprocess(
    image_size,
    channels,
    mean=mean,
    std=std,
    shorter=None if squash else scaled[0],
    whole=whole,
    method=published.get('interpolation') or 'bicubic',
    antialias=True,
  )


def _published(portable: Portable) -> tuple[dict[str, Any], tuple[str, ...]]:
  """`pretrained_cfg`, and sentences about what it cannot say."""
  preprocess, notes = portable.preprocess, ()
  if not preprocess.antialias:
    notes = (
      f"timm's resize antialiases, and the {preprocess.method} resize of this checkpoint does not: of images "
      'that are shrunk, the pixels differ a little.',
    )
  height = preprocess.size[0]
  whole = preprocess.shorter or (preprocess.whole or preprocess.size)[0]
  values = {
    'classifier': 'head',
    'crop_mode': 'squash' if preprocess.shorter is None else 'center',
    'crop_pct': _share(height, whole),
    'first_conv': 'patch_embed.proj',
    'fixed_input_size': True,
    'input_size': [portable.channels, *portable.image_size],
    'interpolation': preprocess.method,
    'mean': np.broadcast_to(preprocess.mean, portable.channels).tolist(),
    'num_classes': portable.num_classes,
    'std': np.broadcast_to(preprocess.std, portable.channels).tolist(),
  }
  if portable.class_names is not None:
    values['label_names'] = list(portable.class_names)
  return values, notes


def _ratio(mlp_dim: int, width: int) -> float:
  """The number of which int(width * number) is mlp_dim."""
  ratio = mlp_dim / width
  return ratio if int(width * ratio) == mlp_dim else math.nextafter(ratio, math.inf)


def _share(size: int, whole: int) -> float:
  """The number of which floor(size / number) is whole."""
  share = size / whole
  return share if math.floor(size / share) == whole else math.nextafter(share, 0)
