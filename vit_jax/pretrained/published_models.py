"""The checkpoints that can be loaded by name: `vit_jax.list_models('B/16')`."""

import math
import re
from typing import NamedTuple

from vit_jax.foundation import text_table
from vit_jax.models.base import MODELS, Architecture
from vit_jax.pretrained import catalogue

# Parameters at 224 pixels without a head; building the networks would take 20 s.
_WITHOUT_HEAD = {
  'Ti/16': 5_524_416,
  'S/16': 21_665_664,
  'S/32': 22_493_952,
  'B/16': 85_798_656,
  'B/32': 87_455_232,
  'L/16': 303_301_632,
  'L/32': 305_510_400,
  'H/14': 630_764_800,
  'R+Ti/16': 6_144_704,
  'R26+S/32': 36_046_912,
  'R26+B/32': 100_614_976,
  'R50+B/16': 97_890_112,
  'R50+L/32': 327_969_856,
  'Mixer-B/16': 59_111_472,
  'Mixer-B/32': 59_524_428,
  'Mixer-L/16': 207_171_168,
  'R50x1': 23_500_352,
  'R50x3': 211_174_080,
  'R101x1': 42_492_480,
  'R101x3': 381_789_888,
  'R152x2': 232_238_208,
  'R152x4': 928_340_224,
}
_IMAGENET, _IMAGENET_21K = 1000, 21_843  # classes

# ImageNet top-1 accuracy in percent that the authors of a file state for it: the READMEs of google-research's
# vision_transformer and big_transfer (of distilled models, arXiv 2106.05237).
_ACCURACY = {
  'imagenet21k+imagenet2012/ViT-B_16-224': 81.2,
  'imagenet21k+imagenet2012/ViT-L_16-224': 82.7,
  'bit/distill/R50x1_224': 82.8,
  'bit/distill/R50x1_160': 80.5,
}
# Learning rate of the fine-tuning at 384 pixels and, likewise, accuracy of AugReg's recommended checkpoints.
_AUGREG_TUNED = {
  'Ti_16': (0.03, 78.22),
  'S_32': (0.01, 79.58),
  'S_16': (0.03, 83.73),
  'B_32': (0.01, 83.59),
  'B_16': (0.03, 85.49),
  'L_16': (0.01, 85.59),
  'R_Ti_16': (0.03, 75.40),
  'R26_S_32': (0.01, 83.85),
  'R50_L_32': (0.01, 85.99),
}


class PublishedModel(NamedTuple):
  """A checkpoint that `vit_jax.load` takes by its name.

  Attributes:
    name: what `vit_jax.load` takes.
    model: its architecture, such as 'B/16'.
    parameters: how many; in float32 the file has 4 bytes for each.
    image_size: pixels along a side of the images that `load` prepares for it.
    num_classes: classes of its head.
    accuracy: ImageNet top-1 in percent, as its authors state it; None if they state none for this file.
  """

  name: str
  model: str
  parameters: int
  image_size: int
  num_classes: int
  accuracy: float | None


class ModelTable(list[PublishedModel]):
  """A list that is shown as a table."""

  def __repr__(self) -> str:
    if not self:
      return 'None of that name; models of the Hugging Face Hub and folders load by name too (docs/checkpoints.md).'
    header = ('name', 'model', 'parameters', 'MiB', 'pixels', 'classes', 'ImageNet')
    return '\n'.join(text_table.aligned([header, *map(_row, self)], right=range(2, len(header))))


def list_models(pattern: str = '') -> ModelTable:
  """The published checkpoints, those whose model or name contains `pattern`, in any case.

  Downloads nothing. `vit_jax.load` takes local files, folders, runs and addresses as well, and the names of all
  of AugReg's checkpoints, of which those that its authors recommend are listed.

  Args:
    pattern: such as 'B/16', 'mixer', 'imagenet21k/'; empty for all.

  Returns:
    Those found, perhaps none.
  """
  found = ModelTable()
  for name in _names():
    variant = _variant(name)
    if pattern.lower() in variant.lower() or pattern.lower() in name.lower():
      found.append(_published(name, variant))
  return found


def _names() -> list[str]:
  """All names that are listed: none of LiT's image towers, whose head is no classifier."""
  names = [name for name in catalogue.names() if not name.startswith('lit/')]
  for size, (rate, _) in _AUGREG_TUNED.items():
    names.append(f'augreg/{catalogue.RECOMMENDED[size]}--imagenet2012-steps_20k-lr_{rate}-res_384')
  return names


def _variant(name: str) -> str:
  """The architecture in a name: 'augreg/R50_L_32-i21k-…' -> 'R50+L/32'."""
  file = name.partition('/')[2]
  resnet = re.search(r'R\d+x\d', file)
  if resnet:
    return resnet[0]
  size = re.match(r'(Mixer-|ViT-|R\d*[+_](?:ViT-)?)?([A-Z][a-z]?)_(\d+)', file)
  assert size, f'{name} names no model'
  prefix = (size[1] or '').replace('ViT-', '').replace('_', '+')
  return f'{prefix}{size[2]}/{size[3]}'


def _published(name: str, variant: str) -> PublishedModel:
  folder, _, file = name.partition('/')
  size, _, fine_tuned = file.partition('-')
  accuracy = _ACCURACY.get(name)
  if folder == 'augreg' and '--' in fine_tuned:
    accuracy = _AUGREG_TUNED[size][1]
  knows_imagenet = folder in ('imagenet1k', 'sam') or re.search('2012|BiT-S|distill', name)
  classes = _IMAGENET if knows_imagenet else _IMAGENET_21K
  side = 384 if file.endswith('res_384') or (folder.endswith('2012') and '-224' not in file) else 224
  has_pre_logits = folder == 'imagenet21k' and 'Mixer' not in file
  return PublishedModel(
    name, variant, _parameters(variant, side, classes, has_pre_logits), side, classes, accuracy
  )


def _parameters(variant: str, side: int, classes: int, has_pre_logits: bool) -> int:
  """How many numbers the network has."""
  kind = next(kind for kind in MODELS.names() if variant in MODELS[kind].variants)
  model = MODELS[kind](variant=variant)
  head = model.layers(Architecture(model, (side, side), 3, classes))[-1]
  width = head.multiplications // classes
  positions = 0
  if model.position_table('position_embedding'):
    positions = (math.prod(model.grid((side, side))) - math.prod(model.grid((224, 224)))) * width
  pre_logits = (width + 1) * width if has_pre_logits else 0
  return _WITHOUT_HEAD[variant] + positions + pre_logits + (width + 1) * classes


def _row(model: PublishedModel) -> tuple[str, ...]:
  accuracy = '' if model.accuracy is None else f'{model.accuracy:.1f} %'
  mebibytes = f'{model.parameters * 4 / 2**20:.0f}'
  numbers = f'{model.parameters:,}', mebibytes, str(model.image_size), f'{model.num_classes:,}'
  return model.name, model.model, *numbers, accuracy
