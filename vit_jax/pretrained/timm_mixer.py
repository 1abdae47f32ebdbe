"""`config.json` and tensors of timm's MLP-Mixers, ResMLPs and gMLPs."""

import dataclasses
from typing import Any

from vit_jax.models.base import Architecture
from vit_jax.models.mixer import MixerConfig
from vit_jax.pretrained.huggingface import Unfit
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.timm_folder import TimmFolder
from vit_jax.pretrained.timm_names import Shapes, depth_of, shape_of
from vit_jax.pretrained.torch_names import Rule, layer, norm

# What comes before the size of timm's name, by token_mixing and mlp.
_KINDS = {
  ('mlp', 'dense'): 'mixer',
  ('mlp', 'swiglu'): 'gmixer',
  ('linear', 'dense'): 'resmlp',
  ('gate', 'dense'): 'gmlp',
}
# Hidden units over channels for each channel; those over tokens are half as many as channels.
_HIDDEN = {'mixer': 4, 'gmixer': 2, 'resmlp': 4, 'gmlp': 3}
# Patch, width and blocks of timm's names.
_NAMES = {
  ('mixer', 16, 512, 8): 'mixer_s16_224',
  ('mixer', 32, 512, 8): 'mixer_s32_224',
  ('mixer', 16, 768, 12): 'mixer_b16_224',
  ('mixer', 32, 768, 12): 'mixer_b32_224',
  ('mixer', 16, 1024, 24): 'mixer_l16_224',
  ('mixer', 32, 1024, 24): 'mixer_l32_224',
  ('gmixer', 16, 384, 12): 'gmixer_12_224',
  ('gmixer', 16, 384, 24): 'gmixer_24_224',
  ('resmlp', 16, 384, 12): 'resmlp_12_224',
  ('resmlp', 16, 384, 24): 'resmlp_24_224',
  ('resmlp', 16, 384, 36): 'resmlp_36_224',
  ('resmlp', 8, 768, 24): 'resmlp_big_24_224',
  ('gmlp', 16, 128, 30): 'gmlp_ti16_224',
  ('gmlp', 16, 256, 30): 'gmlp_s16_224',
  ('gmlp', 16, 512, 30): 'gmlp_b16_224',
}


class TimmMixerFormat(TimmFolder):
  """A folder of a `mixer_*`, `gmixer_*`, `resmlp_*` or `gmlp_*` of timm's."""

  title = "a folder of timm's Mixer"
  tellable = frozenset({'activation', 'norm_epsilon'})
  names, model = 'g?mixer_|resmlp_|gmlp_', MixerConfig
  first_conv, classifier = 'stem.proj', 'head'
  one_size = True
  epsilon = 1e-6

  def model_of(self, values: JsonObject, shapes: Shapes) -> tuple[MixerConfig, int]:
    width, channels, patch, _ = shape_of(shapes, 'stem.proj.weight', 4)
    hidden = shape_of(shapes, 'blocks.0.mlp_channels.fc2.weight', 2)[1]
    gate, linear = (
      f'blocks.0.{name}.weight' in shapes for name in ('mlp_channels.gate.proj', 'linear_tokens')
    )
    gated = shape_of(shapes, 'blocks.0.mlp_channels.fc1.weight', 2)[0] == 2 * hidden and not gate
    model = MixerConfig(
      variant='custom',
      patch=patch,
      width=width,
      mlp_dim=hidden,
      depth=depth_of(shapes),
      tokens_mlp_dim=shapes.get('blocks.0.mlp_tokens.fc2.weight', (0, None))[1],
      token_mixing='linear' if linear else 'gate' if gate else 'mlp',
      mlp='swiglu' if gated else 'dense',
      norm='affine' if 'norm.alpha' in shapes else 'layer_norm',
      layer_scale=1e-5 if 'blocks.0.ls1' in shapes else None,
      activation='silu' if gated else 'gelu',
    )
    return model, channels

  def rules(self, architecture: Architecture) -> tuple[Rule, ...]:
    model: Any = architecture.model
    found = [*layer('patch_embedding', 'stem.proj', 'conv'), *_norm(model, 'norm', 'norm')]
    if model.token_mixing == 'gate':
      found += [*_norm(model, 'blocks/channel_norm', 'blocks.{}.norm')]
      found += norm('blocks/channel_mlp/gate_norm', 'blocks.{}.mlp_channels.gate.norm')
      found += layer('blocks/channel_mlp/gate', 'blocks.{}.mlp_channels.gate.proj')
    else:
      found += [*_norm(model, 'blocks/token_norm', 'blocks.{}.norm1')]
      found += [*_norm(model, 'blocks/channel_norm', 'blocks.{}.norm2')]
    if model.token_mixing == 'linear':
      found += layer('blocks/token_mlp', 'blocks.{}.linear_tokens')
    elif model.token_mixing == 'mlp':
      found += _mlp(model, 'token')
    if model.layer_scale is not None:
      found += [Rule('blocks/token_scale', 'blocks.{}.ls1'), Rule('blocks/channel_scale', 'blocks.{}.ls2')]
    found += _mlp(model, 'channel')
    return (*found, *(layer('head', 'head') if architecture.num_classes else ()))

  def named(self, model: MixerConfig) -> tuple[str, int, dict[str, Any]]:
    sizes, kind = model.sizes, _KINDS.get((model.token_mixing, model.mlp), '')
    name = _NAMES.get((kind, sizes.patch, sizes.width, sizes.depth))
    usual = ('affine', True) if kind == 'resmlp' else ('layer_norm', False)
    mlps = sizes.mlp_dim == _HIDDEN.get(kind, 0) * sizes.width
    if model.token_mixing == 'mlp':
      mlps &= sizes.tokens_mlp_dim == sizes.width // 2
    if name is None or not mlps or (model.norm, model.layer_scale is not None) != usual:
      raise Unfit('it has the published sizes and parts only')
    if model.activation != ('silu' if kind == 'gmixer' else 'gelu'):
      raise Unfit(f'it has no activation {model.activation!r} in such blocks')
    return name, sizes.width, {}


def _mlp(model: MixerConfig, over: str) -> list[Rule]:
  ours, theirs = f'blocks/{over}_mlp', f'blocks.{{}}.mlp_{over}s'
  found = [*layer(f'{ours}/dense_out', f'{theirs}.fc2')]
  if model.mlp == 'dense':
    return [*found, *layer(f'{ours}/dense_in', f'{theirs}.fc1')]
  for number, part in enumerate(('dense_in', 'dense_gate')):  # the gate is the second half
    found += [
      dataclasses.replace(rule, part=(number, 2)) for rule in layer(f'{ours}/{part}', f'{theirs}.fc1')
    ]
  return found


def _norm(model: MixerConfig, path: str, name: str) -> tuple[Rule, ...]:
  if model.norm == 'layer_norm':
    return norm(path, name)
  return Rule(f'{path}/scale', f'{name}.alpha', 'leading'), Rule(f'{path}/bias', f'{name}.beta', 'leading')
