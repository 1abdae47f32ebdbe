"""Vision Transformers written for timm: an architecture of its names, and model_args that change all its sizes.

What an architecture has in code only, such as its kind of block, MLP or rotary positions, decides whose name is taken.
"""

from typing import Any

import numpy as np

from vit_jax.models.base import Architecture
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained import timm_config, timm_names
from vit_jax.pretrained.base import Pretrained
from vit_jax.pretrained.huggingface import Unfit
from vit_jax.pretrained.timm_defaults import Defaults
from vit_jax.pretrained.timm_names import Naming
from vit_jax.pretrained.torch_names import HEAD_PATHS, Export, Tokens

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
# timm's names by our block, MLP and norm; '': by the sizes.
_OF_PARTS = {
  ('sequential', 'dense', 'layer_norm'): '',
  ('sequential', 'swiglu', 'layer_norm'): 'vit_giant_patch14_dinov2',
  ('sequential', 'dense', 'rms_norm'): 'test_vit4',
  ('sequential', 'swiglu', 'rms_norm'): 'aimv2_large_patch14_224',
  ('post_norm', 'dense', 'layer_norm'): 'vit_base_patch16_rpn_224',
  ('parallel', 'dense', 'layer_norm'): 'vit_pwee_patch16_reg1_gap_256',
  ('parallel', 'dense', 'rms_norm'): 'vit_base_patch16_xp_224',
  ('parallel_pairs', 'dense', 'layer_norm'): 'vit_base_patch16_18x2_224',
}
_ROTARY = {
  'rotary': 'vit_base_patch16_rope_224',
  'rotary_eva': 'eva02_base_patch14_224',
  'rotary_mixed': 'vit_base_patch16_rope_mixed_224',
  'rotary_pe': 'vit_pe_core_base_patch16_224',
  'rotary_dinov3': 'vit_base_patch16_dinov3_qkvb',
}
_STEMS = {
  (): 'vit_tiny_r_s16_p8_224',
  (2, 2, 2, 2): 'vit_base_r26_s32_224',
  (3, 4, 9): 'vit_base_r50_s16_224',
  (3, 4, 6, 3): 'vit_large_r50_s32_224',
}
_POOLS = {
  **{'token': 'token', 'gap': 'avg', 'gap_patches': 'avg', 'max_patches': 'max', 'avgmax_patches': 'avgmax'},
  **{'map': 'map', 'map_patches': 'map', 'none': ''},
}


def export(pretrained: Pretrained) -> Export:
  """What timm's folder of a Vision Transformer is to hold; Unfit where timm has no such model."""
  model, architecture = pretrained.architecture.model, pretrained.architecture
  if type(model) is not ViTConfig:
    raise Unfit(f'it is for Vision Transformers, and this is {model.title}')
  _check(model)
  grid, paths = model.grid(architecture.image_size), set(architecture.shapes())
  positioned = 'position_embedding' in paths
  # As timm's models with registers, the prefix has no positions: the class token takes up its own.
  before = 0 if model.register_tokens or not positioned else model.leading_tokens
  arguments = _common(model, architecture) | {'no_embed_class': before == 0 and positioned}
  if 'rotary' in model.position:
    name = _rotary(model, arguments, grid, positioned)
    naming = Naming(
      packed=not model.mlp_sub_norm, gamma=True, interleaved=not model.position.endswith('rotary_dinov3')
    )
  elif model.position == 'relative':
    name, naming = _relative(model, arguments), Naming(table=timm_names.REL_POS_TABLE)
  elif model.position in ('learned', 'none'):
    name = _plain(model, arguments)
    naming = Naming(packed=model.norm == 'layer_norm')
  else:
    raise Unfit(f'it has no positions {model.position!r}')
  name, notes = (name, ()) if name else architecture_name(model)
  notes += timm_config.about(pretrained, epsilon=Defaults.of(name, model.sizes.width).norm_epsilon)
  if model.sizes.stem_blocks is not None and model.stem_epsilons != 'timm':
    notes += ("timm's ResNet has other epsilons than the released code: logits differ a little.",)
  published, about_images = timm_config.written(
    pretrained,
    first_conv='patch_embed.proj',
    classifier=['head', 'head_dist'] if model.distillation_token else 'head',
  )
  rules = timm_names.rules(model, naming, grid) + timm_names.heads(model, architecture.num_classes > 0)
  if model.sizes.stem_blocks is not None:
    rules += timm_names.stem(model, paths)
  constants = {}
  if not (model.patch_bias or model.pre_norm):
    constants['patch_embed.proj.bias'] = np.zeros(model.sizes.width, np.float32)
  published |= {'fixed_input_size': True}
  return Export(
    rules=rules,
    tokens=Tokens(
      position='pos_embed' if positioned else None,
      class_token='cls_token' if model.has_class_token else None,
      registers='dist_token' if model.distillation_token else 'reg_token' if model.register_tokens else None,
      positioned=before,
      registers_path='distillation_token' if model.distillation_token else 'register_tokens',
    ),
    config=timm_config.config(
      name,
      pretrained,
      published,
      features=model.sizes.width,
      arguments=arguments,
      pool=_POOLS[model.pool],
    ),
    constants=constants,
    merged={'rope.freqs': 'blocks.{}.rope.freqs'} if 'rotary_mixed' in model.position else {},
    dropped=frozenset() if architecture.num_classes else HEAD_PATHS,
    notes=notes + about_images,
  )


def _check(model: ViTConfig) -> None:
  """Raises Unfit for what no Vision Transformer of timm's has."""
  if model.pool not in _POOLS:
    raise Unfit(f'it has no pool {model.pool!r}')
  if model.pre_logits_size is not None:
    raise Unfit(f'it has no layer between pooling and head (pre_logits_size {model.pre_logits_size})')
  if model.distillation_token and model.register_tokens:
    raise Unfit('it has no register tokens beside a distillation token')
  if model.pool == 'gap' and model.has_class_token and model.register_tokens:
    raise Unfit('it has no mean over class token and patches without the registers')
  if model.pre_norm and model.patch_bias:
    raise Unfit('it has no bias of the patch embedding beside a norm before the blocks (pre_norm)')
  if model.sizes.stem_convolutions:
    raise Unfit('it has no convolutions in front of the patches (stem_convolutions)')
  if model.patch_sizes:
    raise Unfit(f'it has patches of one size, and this model {model.patch_sizes}')


def _common(model: ViTConfig, architecture: Architecture) -> dict[str, Any]:
  """The model_args that all of timm's classes have."""
  sizes = model.sizes
  return {
    'class_token': model.has_class_token,
    'depth': sizes.depth,
    'embed_dim': sizes.width,
    'global_pool': _POOLS[model.pool],
    'img_size': list(architecture.image_size),
    'in_chans': architecture.channels,
    # timm takes 0 for no factors; any other value does, since the factors themselves are stored.
    'init_values': 1e-5 if model.layer_scale == 0 else model.layer_scale,
    'mlp_ratio': timm_config.ratio(sizes.mlp_dim, sizes.width),
    'num_heads': sizes.heads,
    'patch_size': sizes.patch,
    'qk_norm': model.qk_norm,
    'qkv_bias': True,
  }


def _plain(model: ViTConfig, arguments: dict[str, Any]) -> str:
  """timm's name, '' for that of the sizes; of its class VisionTransformer."""
  parts = (model.block, model.mlp, model.norm)
  if parts not in _OF_PARTS or (model.block == 'post_norm' and model.layer_scale is not None):
    raise Unfit(f'it has no blocks {model.block!r} of {model.mlp!r} and {model.norm!r} with these options')
  name = _OF_PARTS[parts]
  if not name and model.norm_epsilon == 1e-5:
    name = 'vit_base_patch16_clip_224'
  if model.sizes.stem_blocks is not None:
    name = _hybrid(model, parts)
  if model.distillation_token and name:
    raise Unfit('it has distillation tokens in plain models only')
  if model.patch_norm and 'aimv2' not in name:
    raise Unfit('it has a norm of the patch embedding beside RMSNorm and SwiGLU only')
  if 'dinov2' in name:  # whose MLPs count gate and value
    arguments['mlp_ratio'] = timm_config.ratio(2 * model.sizes.mlp_dim, model.sizes.width)
  if 'aimv2' in name:
    arguments |= {'proj_bias': True} | ({} if model.patch_norm else {'embed_norm_layer': None})
  if model.pool_heads is not None or model.pool_mlp_dim is not None:
    raise Unfit('it has attention pooling of the sizes of a block only')
  arguments |= {
    'act_layer': model.activation,
    'fc_norm': model.final_norm == 'pooled',
    'final_norm': model.final_norm != 'none',
    'pool_include_prefix': model.pool == 'map' or (model.pool == 'gap' and model.has_class_token),
    'pre_norm': model.pre_norm,
    'reg_tokens': model.register_tokens,
    'scale_attn_norm': model.attention_sub_norm,
    'scale_mlp_norm': model.mlp_sub_norm,
  }
  if model.position == 'none':
    arguments['pos_embed'] = 'none'
  return name


def _hybrid(model: ViTConfig, parts: tuple[str, str, str]) -> str:
  name = _STEMS.get(model.sizes.stem_blocks or ())
  if name is None or parts != ('sequential', 'dense', 'layer_norm') or model.sizes.stem_width != 64:
    raise Unfit(f'it has no hybrid of stem_blocks {model.sizes.stem_blocks} with these options')
  return name


def _rotary(model: ViTConfig, arguments: dict[str, Any], grid: tuple[int, int], positioned: bool) -> str:
  """The same of its class Eva."""
  parts = (model.block, model.mlp, model.norm, model.activation)
  if parts not in (
    ('sequential', 'dense', 'layer_norm', 'gelu'),
    ('sequential', 'swiglu', 'layer_norm', 'silu'),
  ):
    raise Unfit('with rotary positions it has ordinary blocks, LayerNorm, and GELU by erf or SwiGLU only')
  if model.pool not in ('token', 'gap', 'gap_patches', 'max_patches', 'avgmax_patches', 'map', 'none'):
    raise Unfit(f'with rotary positions it has no pool {model.pool!r}')
  if (model.pool == 'gap' and model.has_class_token) or model.distillation_token or model.patch_norm:
    raise Unfit('with rotary positions it has no mean with the class token, distillation token or patch_norm')
  if model.position.endswith(('rotary_eva', 'rotary_pe')):
    if model.rotary_grid is None and grid[0] != grid[1]:
      raise Unfit('it stretches rotary positions of oblong images to a square')
    side = model.rotary_grid or grid[0]
    arguments['ref_feat_shape'] = [side, side]
  arguments |= {
    'attn_pool_mlp_ratio': timm_config.ratio(model.pool_mlp_dim or model.sizes.mlp_dim, model.sizes.width),
    'attn_pool_num_heads': model.pool_heads or model.sizes.heads,
    'attn_type': 'rope',
    'num_reg_tokens': model.register_tokens,
    'qkv_fused': True,
    'scale_attn_inner': model.attention_sub_norm,
    'scale_mlp': model.mlp_sub_norm,
    'swiglu_align_to': 0,
    'swiglu_mlp': model.mlp == 'swiglu',
    'use_abs_pos_emb': positioned,
    'use_fc_norm': model.final_norm == 'pooled',
    'use_post_transformer_norm': model.final_norm == 'tokens',
    'use_pre_transformer_norm': model.pre_norm,
  }
  return _ROTARY[model.position.removeprefix('learned+')]


def _relative(model: ViTConfig, arguments: dict[str, Any]) -> str:
  """The same of its class VisionTransformerRelPos."""
  if (model.mlp, model.norm, model.activation) != ('dense', 'layer_norm', 'gelu') or model.block not in (
    'sequential',
    'post_norm',
  ):
    raise Unfit('with relative positions it has dense MLPs with GELU by erf, and LayerNorm only')
  pools = ('token', 'gap_patches', 'none') if model.has_class_token else ('gap', 'gap_patches', 'none')
  plain = not (model.pre_norm or model.patch_norm or model.mlp_sub_norm or model.attention_sub_norm)
  if model.pool not in pools or model.leading_tokens > model.has_class_token or not plain:
    raise Unfit('with relative positions it has no such pool, tokens or norms')
  if model.final_norm == 'none' or (model.block == 'post_norm' and model.layer_scale is not None):
    raise Unfit('with relative positions it has a last norm, and no LayerScale in blocks with norms behind')
  del arguments['no_embed_class']
  arguments |= {
    'fc_norm': model.final_norm == 'pooled',
    'rel_pos_type': 'bias',
    'shared_rel_pos': False,
  }
  kind = '_rpn' if model.block == 'post_norm' else ''
  return f'vit_relpos_base_patch16{kind}_224'


def architecture_name(model: ViTConfig) -> tuple[str, tuple[str, ...]]:
  """timm's name of a plain model of these sizes, and a sentence where it has none."""
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
