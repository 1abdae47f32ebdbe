"""`config.json` and tensors of timm's MLP-Mixers (`mixer_*`)."""

import pathlib
import re

from vit_jax.models.base import Architecture
from vit_jax.models.mixer import MixerConfig
from vit_jax.pretrained import timm_config
from vit_jax.pretrained.base import Pretrained, ReadOptions, UnknownModelError, with_told
from vit_jax.pretrained.huggingface import FolderFormat, Unfit, config_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import HEAD_PATHS, Export, Layout, Rule, layer, norm

_RULES = (
  *layer('patch_embedding', 'stem.proj', 'conv'),
  *norm('blocks/token_norm', 'blocks.{}.norm1'),
  *layer('blocks/token_mlp/dense_in', 'blocks.{}.mlp_tokens.fc1'),
  *layer('blocks/token_mlp/dense_out', 'blocks.{}.mlp_tokens.fc2'),
  *norm('blocks/channel_norm', 'blocks.{}.norm2'),
  *layer('blocks/channel_mlp/dense_in', 'blocks.{}.mlp_channels.fc1'),
  *layer('blocks/channel_mlp/dense_out', 'blocks.{}.mlp_channels.fc2'),
  *norm('norm', 'norm'),
)
# Patch, width and blocks of timm's names.
_NAMES = {
  (16, 512, 8): 'mixer_s16_224',
  (32, 512, 8): 'mixer_s32_224',
  (16, 768, 12): 'mixer_b16_224',
  (32, 768, 12): 'mixer_b32_224',
  (16, 1024, 24): 'mixer_l16_224',
  (32, 1024, 24): 'mixer_l32_224',
}


class TimmMixerFormat(FolderFormat):
  """A folder of a `mixer_*` of timm's."""

  title = "a folder of timm's Mixer"
  tellable = frozenset({'activation', 'norm_epsilon'})

  def recognises(self, path: pathlib.Path) -> bool:
    values = config_of(path)
    return (
      values is not None and 'model_type' not in values and values.text('architecture').startswith('mixer_')
    )

  def layout(self, files: TensorFiles, values: JsonObject, options: ReadOptions) -> Layout:
    arguments, published = values.section('model_args'), timm_config.published(values)
    shapes = files.shapes
    for name in ('stem.proj.weight', 'blocks.0.mlp_tokens.fc1.weight', 'blocks.0.mlp_channels.fc1.weight'):
      if name not in shapes:
        raise UnknownModelError(f'it has no tensor {name}')
    width, channels, patch, _ = shapes['stem.proj.weight']
    model = MixerConfig(
      variant='custom',
      patch=patch,
      width=width,
      mlp_dim=shapes['blocks.0.mlp_channels.fc1.weight'][0],
      depth=len({match[1] for key in shapes if (match := re.match(r'blocks\.(\d+)\.', key))}),
      tokens_mlp_dim=shapes['blocks.0.mlp_tokens.fc1.weight'][0],
      activation='gelu',
    )
    model = with_told(values.path.parent, model, options.told)
    image_size = arguments.sides('img_size', timm_config.image_size(published) or (224, 224))
    num_classes = shapes.get('head.bias', (0,))[0]
    return Layout(
      architecture=Architecture(model, image_size, channels, num_classes),
      rules=_rules(num_classes),
      tokens=None,
      preprocess=timm_config.preprocess(published, image_size, channels),
      class_names=timm_config.class_names(published, num_classes),
    )

  def export(self, pretrained: Pretrained) -> Export:
    architecture = pretrained.architecture
    model = architecture.model
    if type(model) is not MixerConfig:
      raise Unfit(f'it is for Mixers, and this is {model.title}')
    sizes = model.sizes
    name = _NAMES.get((sizes.patch, sizes.width, sizes.depth))
    if name is None:
      raise Unfit('it has the published sizes only')
    if model.activation != 'gelu':
      raise Unfit(f"it has activation 'gelu' only, and this model {model.activation!r}")
    published, notes = timm_config.written(pretrained, first_conv='stem.proj', classifier='head')
    arguments = {
      'img_size': list(architecture.image_size),
      'in_chans': architecture.channels,
      'mlp_ratio': [
        timm_config.ratio(sizes.tokens_mlp_dim, sizes.width),
        timm_config.ratio(sizes.mlp_dim, sizes.width),
      ],
    }
    return Export(
      rules=_rules(architecture.num_classes),
      tokens=None,
      config={
        'architecture': name,
        'global_pool': 'avg',
        'model_args': arguments,
        'num_classes': architecture.num_classes,
        'num_features': sizes.width,
        'pretrained_cfg': published,
      },
      dropped=frozenset() if architecture.num_classes else HEAD_PATHS,
      notes=notes + timm_config.about(pretrained),
    )


def _rules(num_classes: int) -> tuple[Rule, ...]:
  return (*_RULES, *(layer('head', 'head') if num_classes else ()))
