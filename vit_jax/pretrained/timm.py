"""`config.json` and tensor names of timm's Vision Transformers (`vit_*`, `deit_*`, `deit3_*`)."""

import dataclasses
import math
import pathlib
import re

from vit_jax.models.base import Architecture, Pooling
from vit_jax.models.parts.mlps import Activation
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained import timm_config
from vit_jax.pretrained.base import SIGMOID_LOST, Pretrained, ReadOptions, UnknownModelError, with_told
from vit_jax.pretrained.huggingface import NO_DISTILLATION_HEAD, FolderFormat, Unfit, config_of, vit_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.tensor_names import some
from vit_jax.pretrained.torch_names import HEAD_PATHS, Export, Layout, Rule, Tokens, attention, layer, norm

# What timm says in code only. Heads of the widths that have not 64 channels each:
_HEADS = {1152: 16, 1280: 16, 1408: 16, 1536: 16, 1664: 16}
_HEADS_OF = {'vit_base_patch16_gap_224': 16}
_TANH = re.compile(
  r'vit_(so400m_patch16|giantopt_patch16|base_patch32)_siglip(_gap)?_\d+|vit_large_patch16_siglip(_gap)?_512'
)
# Names of models that are read; those of rpn and clip have the same tensors and compute something else.
_NAME = re.compile(r'(vit_|deit3?_)(?!.*_(rpn|clip)_).*')

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
_POOLS: dict[str, Pooling] = {'token': 'token', 'avg': 'gap', 'map': 'map', '': 'none'}
# Every name of a tensor that some ViT of ours has; {} is the number of a block.
_TENSORS = frozenset(
  rule.name
  for rule in (
    *(*_BLOCK, *_SCALES, *_QK_NORM, *_MAP_POOL, *norm('', 'norm'), *layer('', 'patch_embed.proj')),
    *(*layer('', 'head'), *layer('', 'head_dist')),
  )
) | {'cls_token', 'reg_token', 'dist_token', 'pos_embed'}
_NUMBER = re.compile(r'\.\d+\.')
# (width, mlp_dim, depth, heads) -> what timm calls that size, and the patches that it has of it, plain and DINOv2's.
_SIZES = {
  (192, 768, 12, 3): ('tiny', (16,), ()),
  (384, 1536, 12, 6): ('small', (8, 16, 32), (14,)),
  (768, 3072, 12, 12): ('base', (8, 16, 32), (14,)),
  (1024, 4096, 24, 16): ('large', (14, 16, 32), (14,)),
  (1280, 5120, 32, 16): ('huge', (14,), ()),
  (1408, 6144, 40, 16): ('giant', (14,), ()),
  (1664, 8192, 48, 16): ('gigantic', (14,), ()),
}
_ANY_SIZE = 'vit_base_patch16_224'  # the name of what timm has no name for
_ANY_DISTILLED = 'deit_base_distilled_patch16_224'
_DISTILLED = ('tiny', 'small', 'base')  # with patches of 16


class TimmFormat(FolderFormat):
  """A folder of a `vit_*`, `deit_*` or `deit3_*` of timm's, or a .safetensors file with timm's names alone.

  The distillation token of a folder without a head for it becomes a register token.
  """

  title = "a folder of timm's"
  tellable = frozenset({'activation', 'norm_epsilon', 'heads'})

  def recognises(self, path: pathlib.Path) -> bool:
    values = config_of(path)
    if values is None:
      return path.suffix == '.safetensors' and not path.is_dir()
    return 'model_type' not in values and _NAME.fullmatch(values.text('architecture')) is not None

  def layout(self, files: TensorFiles, values: JsonObject, options: ReadOptions) -> Layout:
    alone = values.path == files.source
    values = values.with_defaults(timm_config.ALONE) if alone else values
    name = values.text('architecture', 'vit_')
    arguments = values.section('model_args')
    published = timm_config.published(values)
    shapes = files.shapes
    _check_names(files)
    channels, patch = _shape(files, 'patch_embed.proj.weight', 4)[1:3]
    positions = _shape(files, 'pos_embed', 3)[1]
    class_token, registers = 'cls_token' in shapes, 0
    distilled, notes = 'head_dist.weight' in shapes, ()
    if 'reg_token' in shapes:
      registers = _shape(files, 'reg_token', 3)[1]
    elif 'dist_token' in shapes and not distilled:
      registers, notes = 1, (NO_DISTILLATION_HEAD,)
    before = class_token + registers + distilled
    pool = timm_config.global_pool(values, _usual_pool(shapes))
    if distilled and (pool != 'token' or registers or not class_token):
      raise UnknownModelError(
        'it has a head for a distillation token (head_dist), which goes with a class token, global_pool '
        "'token' and no register tokens"
      )
    _check_pool(pool, arguments.flag('pool_include_prefix', False), class_token, registers)
    model = _model(files, name, arguments, pool, registers)
    model = dataclasses.replace(model, distillation_token=distilled)
    model = with_told(values.path.parent, model, options.told)
    image_size, about_size = _image_size(files, arguments, published, positions - before, patch)
    notes += about_size
    if 'num_heads' not in arguments and 'heads' not in options.told:
      notes += (
        f'{files.source} does not say how many heads the model has; {model.heads} are taken, as timm has at this '
        'width (vit_jax.load(…, heads=…) takes others).',
      )
    if alone:
      notes += _guesses(files, model, pool, options)
    if image_size[0] % patch or image_size[1] % patch:
      raise UnknownModelError(
        f'its images of {image_size[0]} x {image_size[1]} pixels do not divide into patches of {patch}'
      )
    patches = (image_size[0] // patch) * (image_size[1] // patch)
    num_classes = _shape(files, 'head.weight', 2)[0] if 'head.weight' in shapes else 0
    return Layout(
      architecture=Architecture(model, image_size, channels, num_classes),
      rules=_rules(model, num_classes > 0),
      tokens=_tokens(model, 0 if positions == patches else before, 'reg_token' in shapes),
      preprocess=timm_config.preprocess(published, image_size, channels),
      class_names=timm_config.class_names(published, num_classes),
      zeros=_without_bias(shapes, pool),
      notes=notes,
    )

  def export(self, pretrained: Pretrained) -> Export:
    model, architecture = vit_of(pretrained), pretrained.architecture
    sizes, class_token = model.sizes, model.has_class_token
    pools = {ours: theirs for theirs, ours in _POOLS.items()}
    if model.pool not in pools:
      raise Unfit(f'it has no pool {model.pool!r}')
    if model.pre_logits_size is not None:
      raise Unfit(f'it has no layer between pooling and head (pre_logits_size {model.pre_logits_size})')
    if model.distillation_token and model.register_tokens:
      raise Unfit('it has no register tokens beside a distillation token')
    include = _includes(model.pool, class_token, model.register_tokens)
    if not include:
      raise Unfit('it has no mean over class token and patches without the registers')
    name, notes = _architecture_name(model)
    if pretrained.link == 'sigmoid':
      notes += (SIGMOID_LOST,)
    if model.norm_epsilon != 1e-6:
      notes += (
        f"timm's norms have an epsilon of 1e-6, which its config.json cannot change, and this model "
        f'{model.norm_epsilon}: logits differ a little.',
      )
    arguments = {
      'act_layer': model.activation,
      'class_token': class_token,
      'depth': sizes.depth,
      'embed_dim': sizes.width,
      'fc_norm': False,
      'global_pool': pools[model.pool],
      'img_size': list(architecture.image_size),
      'in_chans': architecture.channels,
      # timm takes 0 for no factors; any other value does, since the factors themselves are stored.
      'init_values': 1e-5 if model.layer_scale == 0 else model.layer_scale,
      'mlp_ratio': _ratio(sizes.mlp_dim, sizes.width),
      'no_embed_class': bool(model.register_tokens),
      'num_classes': architecture.num_classes,
      'num_heads': sizes.heads,
      'patch_size': sizes.patch,
      'pool_include_prefix': include[-1],
      'qk_norm': model.qk_norm,
      'reg_tokens': model.register_tokens,
    }
    published, about_images = timm_config.written(
      pretrained,
      first_conv='patch_embed.proj',
      classifier=['head', 'head_dist'] if model.distillation_token else 'head',
    )
    values = {
      'architecture': name,
      'global_pool': pools[model.pool],
      'model_args': arguments,
      'num_classes': architecture.num_classes,
      'num_features': sizes.width,
      'pretrained_cfg': published | {'fixed_input_size': True},
    }
    # As timm's models with registers, the prefix has no positions: the class token takes up its own.
    positioned = 0 if model.register_tokens else class_token + model.distillation_token
    return Export(
      rules=_rules(model, architecture.num_classes > 0),
      tokens=_tokens(model, positioned, registers=model.register_tokens > 0),
      config=values,
      dropped=frozenset() if architecture.num_classes else HEAD_PATHS,
      notes=notes + about_images,
    )


def _shape(files: TensorFiles, name: str, rank: int) -> tuple[int, ...]:
  """The shape of a tensor; UnknownModelError where it is not there, or has another number of dimensions."""
  shape = files.shapes.get(name)
  if shape is None:
    raise UnknownModelError(f'it has no tensor {name}')
  if len(shape) != rank:
    raise UnknownModelError(
      f"it has {name} of shape {shape}, and that of a ViT of timm's has {rank} dimensions"
    )
  return shape


def _check_names(files: TensorFiles) -> None:
  """Raises UnknownModelError for a tensor that no model of ours has."""
  if 'fc_norm.weight' in files.shapes:
    raise UnknownModelError('it has its last norm behind the pooling (fc_norm), and vit_jax before it')
  if 'conv_proj.weight' in files.shapes:
    raise UnknownModelError("its tensors have torchvision's names")
  extra = sorted(name for name in files.shapes if _NUMBER.sub('.{}.', name, count=1) not in _TENSORS)
  if extra:
    raise UnknownModelError(f'it has a tensor {some(extra)} that no ViT has in vit_jax')


def _guesses(files: TensorFiles, model: ViTConfig, pool: str, options: ReadOptions) -> tuple[str, ...]:
  """A sentence on what tensors without a config.json do not tell, and the caller neither."""
  taken = [
    f'{name} {getattr(model, name)!r}' for name in ('activation', 'norm_epsilon') if name not in options.told
  ]
  return (
    f'{files.source} has no config.json beside it: {", ".join([*taken, ""])}global_pool {pool!r} and pixels from -1 '
    "to 1 are taken, as most of timm's models have them (vit_jax.load(…, activation='gelu_tanh', norm_epsilon=1e-5) "
    'takes others).',
  )


def _model(files: TensorFiles, name: str, arguments: JsonObject, pool: str, registers: int) -> ViTConfig:
  """The config of our model."""
  shapes = files.shapes
  width, _, patch, _ = _shape(files, 'patch_embed.proj.weight', 4)
  usual_heads = _HEADS_OF.get(name) or _HEADS.get(width) or max(width // 64, 1)
  return ViTConfig(
    variant='custom',
    patch=patch,
    width=width,
    mlp_dim=_shape(files, 'blocks.0.mlp.fc1.weight', 2)[0],
    depth=len({match[1] for key in shapes if (match := re.match(r'blocks\.(\d+)\.', key))}),
    heads=arguments.integer('num_heads', usual_heads),
    pool=_POOLS[pool],
    class_token='cls_token' in shapes,
    position_resize='bicubic_antialias',
    register_tokens=registers,
    activation=_activation(name, arguments),
    layer_scale=arguments.number('init_values', 1e-5, low=0) if 'blocks.0.ls1.gamma' in shapes else None,
    qk_norm='blocks.0.attn.q_norm.weight' in shapes,
  )


def _architecture_name(model: ViTConfig) -> tuple[str, tuple[str, ...]]:
  """timm's name of a model of these sizes, and a sentence where it has none."""
  sizes = model.sizes
  key = (sizes.width, sizes.mlp_dim, sizes.depth, sizes.heads)
  word, plain, dinov2 = _SIZES.get(key, ('', (), ()))
  any_size = _ANY_SIZE
  if model.distillation_token:
    any_size = _ANY_DISTILLED
    if word in _DISTILLED and sizes.patch == 16:
      return f'deit_{word}_distilled_patch16_224', ()
  elif model.layer_scale is not None and sizes.patch in dinov2 and model.register_tokens in (0, 4):
    registers = '_reg4' if model.register_tokens else ''
    return f'vit_{word}_patch{sizes.patch}{registers}_dinov2', ()
  elif sizes.patch in plain:
    return f'vit_{word}_patch{sizes.patch}_224', ()
  return any_size, (
    f'timm has no name for a model of these sizes: its config.json calls it {any_size}, and model_args there '
    f'change every size.',
  )


def _rules(model: ViTConfig, head: bool) -> tuple[Rule, ...]:
  return (
    *layer('patch_embedding', 'patch_embed.proj', 'conv'),
    *_BLOCK,
    *(_SCALES if model.layer_scale is not None else ()),
    *(_QK_NORM if model.qk_norm else ()),
    *norm('norm', 'norm'),
    *(_MAP_POOL if model.pool == 'map' else ()),
    *(layer('head', 'head') if head else ()),
    *(layer('distillation_head', 'head_dist') if head and model.distillation_token else ()),
  )


def _tokens(model: ViTConfig, positioned: int, registers: bool) -> Tokens:
  """Of `positioned` tokens before the patches; `registers`: whether registers have timm's name of them."""
  if model.distillation_token:
    name, path = 'dist_token', 'distillation_token'
  else:
    name, path = 'reg_token' if registers else 'dist_token', 'register_tokens'
  return Tokens(
    position='pos_embed',
    class_token='cls_token' if model.has_class_token else None,
    registers=name if model.distillation_token or model.register_tokens else None,
    positioned=positioned,
    registers_path=path,
  )


def _includes(pool: str, class_token: bool, registers: int) -> tuple[bool, ...]:
  """Which values of timm's `pool_include_prefix` pool as we do: our mean leaves out the registers only."""
  if pool in ('token', 'none') or not (class_token or registers):
    return True, False
  if pool == 'map':
    return (True,)
  return (not registers,) if not (class_token and registers) else ()


def _check_pool(pool: str, include: bool, class_token: bool, registers: int) -> None:
  """Raises UnknownModelError for a pooling that we do not have."""
  if pool not in _POOLS:
    raise UnknownModelError(f'it has global_pool {pool!r}, and vit_jax has {", ".join(map(repr, _POOLS))}')
  if class_token + registers and include not in _includes(_POOLS[pool], class_token, registers):
    raise UnknownModelError(
      f'it pools {"all" if include else "none"} of the tokens before the patches (global_pool {pool!r})'
    )


def _usual_pool(shapes: dict[str, tuple[int, ...]]) -> str:
  if 'attn_pool.latent' in shapes:
    return 'map'
  return 'token' if 'cls_token' in shapes else 'avg'


def _image_size(
  files: TensorFiles, arguments: JsonObject, published: JsonObject, patches: int, patch: int
) -> tuple[tuple[int, int], tuple[str, ...]]:
  """Height and width, and a sentence where they are guessed."""
  if 'img_size' in arguments:
    return arguments.sides('img_size'), ()
  size = timm_config.image_size(published)
  if size is not None:
    return size, ()
  side = math.isqrt(max(patches, 0))
  if side * side != patches:
    side = math.isqrt(files.shapes['pos_embed'][1])
  guess = (side * patch, side * patch)
  return guess, (f'The file does not tell its image size: {guess[0]} x {guess[1]}, a square.',)


def _activation(name: str, arguments: JsonObject) -> Activation:
  activation = arguments.text('act_layer') or ('gelu_tanh' if _TANH.fullmatch(name) else 'gelu')
  if activation not in ('gelu', 'gelu_tanh'):
    raise UnknownModelError(f'it has act_layer {activation!r}, and vit_jax computes GELU only')
  return 'gelu_tanh' if activation == 'gelu_tanh' else 'gelu'


def _without_bias(shapes: dict[str, tuple[int, ...]], pool: str) -> frozenset[str]:
  """Paths of the biases of queries, keys and values that a model without them lacks."""
  rules = [*_BLOCK, *(_MAP_POOL if pool == 'map' else ())]
  return frozenset(rule.path for rule in rules if rule.form == 'flat' and rule.name.format(0) not in shapes)


def _ratio(mlp_dim: int, width: int) -> float:
  """The number of which int(width * number) is mlp_dim."""
  ratio = mlp_dim / width
  return ratio if int(width * ratio) == mlp_dim else math.nextafter(ratio, math.inf)
