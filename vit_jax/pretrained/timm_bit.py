"""`config.json` and tensors of timm's ResNets of 'Big Transfer' (`resnetv2_*_bit`)."""

import pathlib
import re

from vit_jax.models.base import Architecture
from vit_jax.models.resnet import ResNetConfig
from vit_jax.pretrained import timm_config
from vit_jax.pretrained.base import Pretrained, ReadOptions, UnknownModelError, with_told
from vit_jax.pretrained.huggingface import FolderFormat, Unfit, config_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import HEAD_PATHS, Export, Layout, Rule
from vit_jax.pretrained.transformers_bit import stage_blocks, unit_rules

_BIT = re.compile(r'resnetv2_(\d+)x(\d+)_bit')
_STAGES: dict[tuple[int, ...], int] = {(3, 4, 6, 3): 50, (3, 4, 23, 3): 101, (3, 8, 36, 3): 152}
_HEAD = (Rule('head/kernel', 'head.fc.weight', 'conv_1x1'), Rule('head/bias', 'head.fc.bias'))


class TimmBitFormat(FolderFormat):
  """A folder of a `resnetv2_*_bit` of timm's."""

  title = "a folder of timm's BiT"
  tellable = frozenset({'norm_epsilon'})

  def recognises(self, path: pathlib.Path) -> bool:
    return timm_config.names(config_of(path), 'resnetv2_')

  def layout(self, files: TensorFiles, values: JsonObject, options: ReadOptions) -> Layout:
    published, shapes = timm_config.published(values), files.shapes
    if _BIT.fullmatch(values.text('architecture')) is None:
      raise UnknownModelError("of timm's ResNets v2, vit_jax has those of BiT (resnetv2_*_bit)")
    timm_config.check(values)
    if 'stem.conv.weight' not in shapes:
      raise UnknownModelError('it has no tensor stem.conv.weight')
    width, channels = shapes['stem.conv.weight'][:2]
    model = ResNetConfig('custom', stage_blocks(shapes), width)
    model = with_told(values.path.parent, model, options.told)
    image_size = timm_config.image_size(published) or (224, 224)
    num_classes = shapes.get('head.fc.bias', (0,))[0]
    architecture = Architecture(model, image_size, channels, num_classes)
    return timm_config.layout(architecture, _rules(architecture), published)

  def export(self, pretrained: Pretrained) -> Export:
    architecture = pretrained.architecture
    model = architecture.model
    if type(model) is not ResNetConfig:
      raise Unfit(f'it is for ResNets, and this is {model.title}')
    layers, factor = _STAGES.get(model.sizes.blocks), model.sizes.width / 64
    if layers is None or factor != int(factor):
      raise Unfit('it has the published sizes only')
    published, notes = timm_config.written(pretrained, first_conv='stem.conv', classifier='head.fc')
    name, arguments = f'resnetv2_{layers}x{int(factor)}_bit', {'in_chans': architecture.channels}
    return Export(
      rules=_rules(architecture),
      tokens=None,
      config=timm_config.config(
        name, architecture, published, features=2048 * int(factor), arguments=arguments
      ),
      dropped=frozenset() if architecture.num_classes else HEAD_PATHS,
      notes=notes + timm_config.about(pretrained, epsilon=1e-5),
    )


def _rules(architecture: Architecture) -> tuple[Rule, ...]:
  around = {'root/kernel': 'stem.conv.weight', 'norm/scale': 'norm.weight', 'norm/bias': 'norm.bias'}
  units = unit_rules(architecture.shapes(), around, 'stages.{}.blocks.{}.')
  return units + (_HEAD if architecture.num_classes else ())
