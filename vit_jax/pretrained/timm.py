"""`config.json` and tensors of timm's Vision Transformers: its modules vision_transformer, deit, eva, beit, and others.

timm_names.py has the names of tensors, timm_defaults.py what only the names of architectures tell.
"""

import dataclasses
import math
import pathlib
import re
from typing import Literal

from vit_jax.models.base import Architecture, Grid, Pooling
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained import safetensors_files, timm_config, timm_derived, timm_export, timm_names
from vit_jax.pretrained.base import Pretrained, ReadOptions, UnknownModelError, with_told
from vit_jax.pretrained.huggingface import NO_DISTILLATION_HEAD, FolderFormat, config_of, link_of, taken
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.timm_defaults import Defaults, refusal
from vit_jax.pretrained.timm_names import Naming, Shapes, shape_of
from vit_jax.pretrained.torch_names import Export, Layout, Tokens
from vit_jax.pretrained.transformers_bit import stage_blocks

# Of its Vision Transformers.
NAME = re.compile(
  r'(vit|deit3?|naflexvit|eva(02)?|beit(3|v2)?|aimv2|flexivit|samvit|test_vit\d?)_|test_vit\d?$'
)
_OF_PATCHES = re.compile(r'(embeds\.|patch_embed\.)')  # a tensor that tells them without a config.json
# model_args of Vision Transformers: those that are read here,
_KNOWN = {
  *('num_heads', 'act_layer', 'init_values', 'ref_feat_shape', 'pool_include_prefix', 'attn_pool_num_heads'),
  # those that the tensors tell,
  *('depth', 'norm_layer', 'embed_norm_layer', 'attn_pool_mlp_ratio', 'num_kv_heads', 'pos_embed_grid_size'),
  *('qkv_bias', 'qkv_fused', 'qk_norm', 'proj_bias', 'swiglu_mlp', 'swiglu_align_to'),
  *('attn_only_layer_scale', 'attn_type'),
  *('scale_attn_norm', 'scale_mlp_norm', 'scale_mlp', 'scale_attn_inner', 'scale_attn_inner_norm'),
  *('class_token', 'reg_tokens', 'num_reg_tokens', 'no_embed_class', 'pre_norm', 'final_norm', 'fc_norm'),
  *('use_fc_norm', 'use_pre_transformer_norm', 'use_post_transformer_norm'),
  *('pos_embed', 'use_abs_pos_emb', 'use_rel_pos_bias', 'use_shared_rel_pos_bias'),
  *('rel_pos_type', 'rel_pos_dim', 'shared_rel_pos'),
  # and those of training, or of images that `load` is given.
  *('pos_drop_rate', 'patch_drop_rate', 'attn_drop_rate', 'weight_init', 'fix_init', 'head_init_scale'),
  *('dynamic_img_size', 'dynamic_img_pad'),
}
# Names of norms that ours are, without underscores; timm has SimpleNorm too, whose tensors are those of RMSNorm.
_NORMS = ('layernorm', 'layernormfp32', 'rmsnorm', 'rmsnormfp32')
_POOLS: dict[str, Pooling] = {
  'token': 'token',
  'avg': 'gap_patches',
  'max': 'max_patches',
  'avgmax': 'avgmax_patches',
  'map': 'map_patches',
  '': 'none',
}
_WITH_OTHERS: dict[str, Pooling] = {'gap_patches': 'gap', 'map_patches': 'map'}


class TimmFormat(FolderFormat):
  """A folder of a Vision Transformer of timm's, or a .safetensors file with timm's names alone.

  The distillation token of a folder without a head for it becomes a register token.
  """

  title = "a folder of timm's"
  tellable = frozenset({'activation', 'norm_epsilon', 'heads'})

  def recognises(self, path: pathlib.Path) -> bool:
    values = config_of(path)
    if values is None:
      alone = path.suffix == '.safetensors' and not path.is_dir()
      return alone and any(map(_OF_PATCHES.match, safetensors_files.names(path)))
    return timm_config.names(values, NAME)

  def layout(self, files: TensorFiles, values: JsonObject, options: ReadOptions) -> Layout:
    alone = values.path == files.source
    values = values.with_defaults(timm_config.ALONE) if alone else values
    name = values.text('architecture')
    arguments = values.section('model_args')
    published = timm_config.published(values)
    _check(files.shapes, name, arguments)
    renamed = timm_derived.renamed(files.shapes, arguments.integer('in_chans', 3))
    shapes = timm_derived.view(files.shapes, renamed)
    pool = timm_config.global_pool(values, Defaults.pool(name, shapes))
    model, defaults = _model(shapes, name, arguments, pool)
    model = with_told(values.path.parent, model, options.told)
    image_size, notes = _image_size(shapes, arguments, published, model, options.image_size)
    model = dataclasses.replace(model, cut_images=any(side % model.patch_pixels for side in image_size))
    if model.cut_images and arguments.flag('dynamic_img_pad', False):
      raise UnknownModelError('it pads images that its patches do not divide (dynamic_img_pad)')
    notes += (NO_DISTILLATION_HEAD,) if 'dist_token' in shapes and not model.distillation_token else ()
    guessed = not alone and 'embed_dim' in arguments  # otherwise the architecture's name tells
    if guessed and 'num_heads' not in arguments and 'heads' not in options.told:
      notes += (
        f'{files.source} does not say how many heads the model has; {model.heads} are taken, as timm has at this '
        'width (vit_jax.load(…, heads=…) takes others).',
      )
    if not alone and 'global_pool' not in values and 'global_pool' not in arguments:
      notes += (f'{values.path} does not say how the model pools (global_pool): {pool!r} is taken.',)
    grid = model.grid(image_size)
    if defaults.rotary == 'rotary' and arguments.sides('ref_feat_shape', grid) != grid:
      raise UnknownModelError(
        'it stretches rotary positions that go from one patch to the next (ref_feat_shape)'
      )
    num_classes = shape_of(shapes, 'head.weight', 2)[0] if 'head.weight' in shapes else 0
    naming = Naming.of(shapes, interleaved=defaults.rotary not in ('', 'rotary_dinov3'))
    derived = renamed | timm_derived.tensors(shapes, model, grid)
    table = renamed.get('pos_embed')
    if table is not None:
      resize = model.position_resize
      derived['pos_embed'] = timm_derived.positions(table, resize, grid, square=defaults.square_positions)
    shapes = timm_derived.view(files.shapes, derived)
    channels = shape_of(shapes, 'patch_embed.proj.weight', 4)[1]
    if model.stem_blocks is not None:
      channels = shape_of(shapes, _root(shapes), 4)[1]
    architecture = Architecture(model, image_size, channels, num_classes)
    rules = (*timm_names.rules(model, naming, grid), *timm_names.heads(model, num_classes > 0))
    if model.stem_blocks is not None:
      rules += timm_names.stem(model, architecture.shapes())
    layout = Layout(
      architecture=architecture,
      rules=rules,
      tokens=_tokens(model, shapes, grid),
      preprocess=timm_config.preprocess(published, options.image_size or image_size, channels),
      class_names=timm_config.class_names(values, num_classes),
      zeros=timm_names.missing_biases(rules, shapes.keys()),
      notes=notes,
      derived=derived,
      link=link_of(values, num_classes),
    )
    if alone:
      layout = dataclasses.replace(layout, notes=(*notes, taken(files, layout, options.told)))
    return layout

  def export(self, pretrained: Pretrained) -> Export:
    return timm_export.export(pretrained)


def _check(shapes: Shapes, name: str, arguments: JsonObject) -> None:
  """Raises UnknownModelError for what no model of ours has."""
  why = refusal(name)
  if why is not None:
    raise UnknownModelError(why)
  if 'conv_proj.weight' in shapes:
    raise UnknownModelError("its tensors have torchvision's names")
  timm_config.check_arguments(arguments, _KNOWN)
  for option in ('norm_layer', 'embed_norm_layer'):
    norm = arguments.text(option)
    if norm and norm.replace('_', '').lower() not in _NORMS:
      raise UnknownModelError(f'it has {option} {norm!r}, and vit_jax has {", ".join(_NORMS)}')


def _model(shapes: Shapes, name: str, arguments: JsonObject, pool: str) -> tuple[ViTConfig, Defaults]:
  """The config of our model, and what its name says."""
  block = timm_names.block_kind(shapes)
  width, _, patch, _ = shape_of(shapes, 'patch_embed.proj.weight', 4)
  defaults = Defaults.of(name, width) if name else Defaults.guessed(shapes, width)
  at = timm_names.first_block(block)
  heads = arguments.integer(
    'num_heads', _heads(shapes, f'{at("attn.q_norm")}.weight', width) or defaults.heads
  )
  mlp_dim = (
    width if f'{at("mlp.fc2")}.weight' not in shapes else shape_of(shapes, f'{at("mlp.fc2")}.weight', 2)[1]
  )
  gated = f'{at("mlp.fc1_g")}.weight' in shapes
  gated = gated or shapes.get(f'{at("mlp.fc1")}.weight', (mlp_dim,))[0] == 2 * mlp_dim
  distilled = 'head_dist.weight' in shapes
  registers = sum(shapes[token][1] for token in ('reg_token', 'dist_token') if token in shapes) - distilled
  scaled = any(name in shapes for name in (f'{at("ls1")}.gamma', 'blocks.0.gamma_1', 'blocks.0.ls.gamma'))
  if distilled and (pool != 'token' or registers or 'cls_token' not in shapes):
    raise UnknownModelError(
      'it has a head for a distillation token (head_dist), which goes with a class token, global_pool '
      "'token' and no register tokens"
    )
  if gated and pool == 'map':
    raise UnknownModelError(
      "its attention pool has an MLP without gates, and its blocks have gated ones (global_pool 'map')"
    )
  model = ViTConfig(
    variant='custom',
    patch=patch,
    width=width,
    mlp_dim=mlp_dim,
    depth=timm_names.depth_of(shapes),
    heads=heads,
    pool=_pool(
      pool, arguments.flag('pool_include_prefix', defaults.map_of_all and pool == 'map'), shapes, registers
    ),
    class_token='cls_token' in shapes,
    position=_position(shapes, defaults),
    position_resize=defaults.position_resize,
    rotary_grid=_rotary_grid(arguments, defaults),
    register_tokens=registers,
    distillation_token=distilled,
    activation=timm_config.activation(arguments, 'silu' if gated else defaults.activation),
    layer_scale=arguments.number('init_values', 1e-5, low=0) if scaled else None,
    norm='layer_norm' if f'{at("norm1")}.bias' in shapes else 'rms_norm',
    norm_epsilon=1e-6 if 'norm_layer' in arguments else defaults.norm_epsilon,
    block='post_norm' if defaults.post_norm else block,
    mlp='swiglu' if gated else 'dense',
    mlp_sub_norm=f'{at("mlp.norm")}.weight' in shapes,
    attention_sub_norm=f'{at("attn.norm")}.weight' in shapes,
    qk_norm=f'{at("attn.q_norm")}.weight' in shapes,
    pre_norm='norm_pre.weight' in shapes,
    patch_norm='patch_embed.norm.weight' in shapes,
    patch_bias='patch_embed.proj.bias' in shapes,
    final_norm=_final_norm(shapes),
  )
  if any(name.startswith('patch_embed.backbone.') for name in shapes):
    model = dataclasses.replace(
      model,
      stem_blocks=stage_blocks(shapes, 'patch_embed.backbone.'),
      stem_width=shape_of(shapes, _root(shapes), 4)[0],
      stem_epsilons='timm',
    )
  if model.pool.startswith('map'):
    hidden = shape_of(shapes, 'attn_pool.mlp.fc1.weight', 2)[0]
    own_heads = arguments.integer('attn_pool_num_heads', defaults.pool_heads or heads)
    model = dataclasses.replace(
      model,
      pool_heads=None if own_heads == heads else own_heads,
      pool_mlp_dim=None if hidden == mlp_dim else hidden,
    )
  return model, defaults


def _heads(shapes: Shapes, norm: str, width: int) -> int | None:
  """The number of heads, where the norm of a head's queries, relative or mixed rotary positions tell it."""
  table = next((name for name in shapes if name.endswith('relative_position_bias_table')), None)
  if norm in shapes:
    return width // shape_of(shapes, norm, 1)[0]
  if table is not None:
    return shape_of(shapes, table, 2)[1]
  made = next((name for name in shapes if name.endswith('rel_pos.mlp.fc2.weight')), None)
  if made is not None:
    return shape_of(shapes, made, 2)[0]
  return shape_of(shapes, 'rope.freqs', 4)[2] if 'rope.freqs' in shapes else None


def _root(shapes: Shapes) -> str:
  """The first convolution of a hybrid."""
  name = 'patch_embed.backbone.stem.conv.weight'
  return name if name in shapes else 'patch_embed.backbone.conv.weight'


def _rotary_grid(arguments: JsonObject, defaults: Defaults) -> int | None:
  if defaults.rotary_grid is None or arguments.says_null('ref_feat_shape'):
    return None
  rows, columns = arguments.sides('ref_feat_shape', defaults.rotary_grid)
  if rows != columns:
    raise UnknownModelError(
      f'it stretches rotary positions to {rows} x {columns} patches, and vit_jax to a square'
    )
  return rows


def _position(shapes: Shapes, defaults: Defaults) -> str:
  learned = 'pos_embed' in shapes
  if any('rel_pos' in name or 'relative_position' in name for name in shapes):
    if learned:
      raise UnknownModelError('it has positions of several kinds')
    return 'relative'
  if defaults.rotary:
    return f'learned+{defaults.rotary}' if learned else defaults.rotary
  return 'learned' if learned else 'none'


def _final_norm(shapes: Shapes) -> Literal['tokens', 'pooled', 'none']:
  if 'norm.weight' in shapes and 'fc_norm.weight' in shapes:
    raise UnknownModelError('it has a norm before the pooling and one behind it (norm, fc_norm)')
  return 'tokens' if 'norm.weight' in shapes else 'pooled' if 'fc_norm.weight' in shapes else 'none'


def _tokens(model: ViTConfig, shapes: Shapes, grid: Grid) -> Tokens:
  registers = 'reg_token' if 'reg_token' in shapes else 'dist_token'
  positions = math.prod(shapes['pos_embed'][:-1]) if 'pos_embed' in shapes else math.prod(grid)
  return Tokens(
    position='pos_embed' if 'pos_embed' in shapes else None,
    class_token='cls_token' if model.has_class_token else None,
    registers=registers if model.distillation_token or model.register_tokens else None,
    positioned=0 if positions == math.prod(grid) else model.leading_tokens,
    registers_path='distillation_token' if model.distillation_token else 'register_tokens',
  )


def _pool(theirs: str, include: bool, shapes: Shapes, registers: int) -> Pooling:
  """Our pool; UnknownModelError for one that we do not have."""
  if theirs not in _POOLS:
    raise UnknownModelError(f'it has global_pool {theirs!r}, and vit_jax has {", ".join(map(repr, _POOLS))}')
  pool, class_token = _POOLS[theirs], 'cls_token' in shapes
  if pool not in _WITH_OTHERS:
    if include and pool.endswith('_patches') and (class_token or registers):
      raise UnknownModelError(f'it pools all of the tokens before the patches (global_pool {theirs!r})')
    return pool
  if theirs == 'map':  # of all tokens, or of the patches
    return 'map' if include or not (class_token or registers) else 'map_patches'
  if include and registers:
    raise UnknownModelError(f'it pools all of the tokens before the patches (global_pool {theirs!r})')
  return 'gap' if include or not class_token else 'gap_patches'  # our 'gap' leaves registers out


def _image_size(
  shapes: Shapes,
  arguments: JsonObject,
  published: JsonObject,
  model: ViTConfig,
  asked: tuple[int, int] | None,
) -> tuple[tuple[int, int], tuple[str, ...]]:
  """Height and width, and a sentence where they are guessed, or timm shows the model others and none are `asked`."""
  size = timm_config.image_size(published)
  if 'img_size' in arguments:
    own = arguments.sides('img_size')
    fixed = published.flag('fixed_input_size', False) and not arguments.flag('dynamic_img_size', False)
    if size in (None, own) or fixed or asked is not None:
      return own, ()
    return own, (
      f'{published.path} has a model for {own[0]} x {own[1]} and evaluates it with images of {size[0]} x {size[1]} '
      f'(pretrained_cfg): images are prepared for the former; image_size={size} resizes the model.',
    )
  if size is not None:
    return size, ()
  table = next((shapes[name] for name in shapes if name.endswith('relative_position_bias_table')), None)
  if table is not None:
    side = (math.isqrt(table[0]) + 1) // 2
  else:
    length = math.prod(shapes.get('pos_embed', (1, 14 * 14, 1))[:-1])
    side = math.isqrt(max(length - model.leading_tokens, 0))
    if side * side != length - model.leading_tokens:
      side = math.isqrt(length)
  guess = (side * model.patch_pixels, side * model.patch_pixels)
  return guess, (f'The file does not tell its image size: {guess[0]} x {guess[1]}, a square.',)
