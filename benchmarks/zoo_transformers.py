"""The classes of transformers for zoo.py: those of tests/pretrained, and others that vit_jax may refuse.

A class that vit_jax has is small (two or three blocks of width 32), with random numbers for all parameters; the kinds
of a class, such as BEiT's positions, stand behind a comma. Of another class only config.json is written, whose
model_type decides: the table has the reason by which the folder is refused.
"""

import pathlib
import re
import shutil
import sys

import jax
import numpy as np
import safetensors.numpy

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / 'tests/pretrained'), str(ROOT / 'tests')]
import conftest  # noqa: E402, F401  (lets transformers import torchvision)
import released_files  # noqa: E402
import test_bit_files as bits  # noqa: E402
import test_efficientnet_files as efficientnets  # noqa: E402
import test_towers as towers  # noqa: E402
import transformers_peers as peers  # noqa: E402
from transformers_peers import torch, transformers  # noqa: E402

import vit_jax  # noqa: E402
from vit_jax.foundation.errors import UserError  # noqa: E402
from vit_jax.pretrained.base import FORMATS, Pretrained  # noqa: E402

OWN = {
  **{f'{tower.cls}, {name}': name for name, tower in towers.TOWERS.items()},
  **{f'{cls}, {name}': name for name, (cls, _) in peers.PEERS.items()},
}
FOLDERS = {'registers': 'dinov2'}  # the format of a kind that has another name


def _timm_wrapper() -> torch.nn.Module:
  arguments = {'depth': 2, 'embed_dim': 64, 'num_heads': 4, 'img_size': 32}
  config = transformers.TimmWrapperConfig(
    architecture='vit_tiny_patch16_224',
    model_args=arguments,
    pretrained_cfg={'input_size': [3, 32, 32]},
    num_labels=3,
  )
  return peers.randomise(transformers.TimmWrapperForImageClassification(config), 0)


# Convolutional networks and timm's models: how a small one is made, and the format of what is written.
MADE = {
  'BitForImageClassification': (lambda: bits.make_peer(transformers, 'small'), 'bit'),
  'EfficientNetForImageClassification': (
    lambda: efficientnets.make_peer(*efficientnets.TINY),
    'efficientnet',
  ),
  'TimmWrapperForImageClassification': (_timm_wrapper, 'timm'),
}
# Towers like those.
OTHERS = [
  *(
    'AltCLIPVisionModel',
    'BlipVisionModel',
    'ChineseCLIPVisionModel',
    'CLIPSegVisionModel',
    'DINOv3ConvNextModel',
  ),
  *('InternVLVisionModel', 'MLCDVisionModel', 'OwlViTVisionModel', 'PixtralVisionModel', 'SamVisionModel'),
  *('SwinForImageClassification', 'Tipsv2VisionModel', 'VideoMAEModel', 'VJEPA2Model'),
]


def names() -> list[str]:
  """The classes, those that vit_jax has first."""
  return [*OWN, *MADE, *OTHERS]


def check(name: str, place: pathlib.Path, close: float, written_close: float) -> tuple[str, str]:
  """(outcome, detail) of a class, in an empty folder, as zoo.check; both limits are of relative differences."""
  if name not in OWN | MADE:
    return 'refused', _reason(name, place)
  kind = OWN.get(name, '')
  if name in MADE:
    make, written_as = MADE[name]
    peer = make()
  else:
    peer = towers.peer_of(kind) if kind in towers.TOWERS else peers.make_peer(kind)
    written_as = FOLDERS.get(kind.split()[0], towers.formats_kind(kind))
  peer.save_pretrained(place / 'theirs')
  pretrained = released_files.read(place / 'theirs')
  images = peers.make_images(pretrained)
  expected = _theirs(peer, kind, images)
  with jax.default_matmul_precision('highest'):
    difference = towers.relative(_ours(pretrained, kind, images), expected)
    _damage(place / 'theirs', place / 'damaged')
    noticed = towers.relative(_ours(released_files.read(place / 'damaged'), kind, images), expected)
  if not difference < close or not noticed > 2 * close:
    return 'WRONG', f'{difference:.1e} (damaged: {noticed:.1e})'
  reason = FORMATS[written_as]().unfit(pretrained)
  if reason is not None:
    return 'same', f'{difference:.1e}; not written: {reason}'
  released_files.write_folder(pretrained, place / 'ours', written_as)
  tower = towers.TOWERS.get(kind)
  cls = getattr(transformers, (tower and tower.written) or type(peer).__name__)
  again, info = cls.from_pretrained(place / 'ours', output_loading_info=True)
  written = towers.relative(_theirs(again.eval(), kind, images), expected)
  wrong = any(info.values()) or not written < written_close
  return 'same', f'{difference:.1e}; written {written:.1e}' + (' WRONG' if wrong else '')


def _theirs(peer: torch.nn.Module, kind: str, images: np.ndarray) -> np.ndarray:
  """What their model makes of images; of the older classes logits or tokens."""
  if kind in towers.TOWERS:
    return towers.output_of(peer, kind, images)
  found = peers.outputs(peer, images)
  return (found.logits if 'logits' in found else found.last_hidden_state).numpy()


def _ours(pretrained: Pretrained, kind: str, images: np.ndarray) -> np.ndarray:
  module = peers.make_ours(pretrained)
  if kind in towers.TOWERS or pretrained.architecture.num_classes:
    return np.asarray(towers.ours_of(module, images) if kind else module(images))
  return np.asarray(module.features(images))


def _damage(place: pathlib.Path, copy: pathlib.Path) -> None:
  """A copy in which the rows of the last kernel of a block are in another order."""
  shutil.copytree(place, copy)
  tensors = peers.tensors_in(copy)
  of_tower = [
    name
    for name in tensors
    if re.search(r'(layers?|blocks)\.\d', name) and not re.search('text_model|decoder', name)
  ]
  last = [name for name in of_tower if tensors[name].ndim in (2, 4) and len(tensors[name]) > 1][-1]
  tensors[last] = np.roll(tensors[last], 1, axis=0)
  safetensors.numpy.save_file(tensors, copy / 'model.safetensors', metadata={'format': 'pt'})


def _reason(name: str, place: pathlib.Path) -> str:
  """Why a folder of a class is refused, by its config.json alone."""
  getattr(transformers, name).config_class(architectures=[name]).save_pretrained(place)
  safetensors.numpy.save_file({'any': np.zeros(1, np.float32)}, place / 'model.safetensors')
  try:
    vit_jax.load(place)
  except UserError as error:
    return re.sub(r'^.* (of type .*?)(; of folders.*)?\.?$', r'\1', str(error))
  raise AssertionError(f'{name} is loaded from its config.json alone')
