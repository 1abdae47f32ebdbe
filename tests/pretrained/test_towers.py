"""Towers of transformers that people fine-tune: their outputs, folders written again, heads of texts."""

import json
import re
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from flax import nnx
from released_files import read, write_folder
from transformers_peers import make_images, make_ours, randomise, to_torch, torch, transformers

from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError

pytestmark = pytest.mark.slow  # it compares with another framework

SIZES = {'hidden_size': 32, 'num_hidden_layers': 2, 'num_attention_heads': 4, 'intermediate_size': 48}
VISION = {**SIZES, 'patch_size': 8, 'image_size': 16}
TEXT = {**SIZES, 'vocab_size': 20, 'max_position_embeddings': 8}


class Tower(NamedTuple):
  """A class of transformers, its options, and what of its output our head reads or gives."""

  cls: str
  options: dict[str, Any]
  output: str
  written: str | None = None  # the class of the folder that we write; None: that one
  unread: str = 'a^'  # regex of our parameters that the output does not depend on


KEY_BIAS = '.*/key/bias'  # the softmax does not depend on it
TOWERS = {
  'mae': Tower('ViTMAEModel', {**VISION, 'mask_ratio': 0.0}, 'first'),
  'mae pretraining': Tower(
    'ViTMAEForPreTraining', {**VISION, 'mask_ratio': 0.0, 'decoder_num_attention_heads': 4}, 'first', 'ViTMAEModel'
  ),
  'msn': Tower('ViTMSNForImageClassification', VISION, 'logits'),
  'msn model': Tower('ViTMSNModel', VISION, 'first'),
  'ijepa': Tower('IJepaForImageClassification', VISION, 'logits'),
  'ijepa model': Tower('IJepaModel', {**VISION, 'image_size': [16, 32]}, 'mean'),
  'siglip': Tower('SiglipModel', {'text_config': TEXT, 'vision_config': VISION}, 'pooler_output', 'SiglipVisionModel'),
  'siglip vision': Tower('SiglipVisionModel', VISION, 'pooler_output'),
  'siglip no head': Tower('SiglipVisionModel', {**VISION, 'vision_use_head': False}, 'mean'),
  'siglip classifier': Tower(
    'SiglipForImageClassification', {'text_config': TEXT, 'vision_config': VISION, 'num_labels': 3}, 'logits'
  ),
}


def peer_of(name: str):
  cls = getattr(transformers, TOWERS[name].cls)
  torch.manual_seed(0)
  return randomise(cls(cls.config_class(**TOWERS[name].options)), 0)


def output_of(peer, name: str, images: np.ndarray) -> np.ndarray:
  """What the peer makes of images."""
  peer = getattr(peer, 'vit', peer) if name == 'mae pretraining' else peer
  peer = getattr(peer, 'vision_model', peer) if TOWERS[name].output == 'pooler_output' else peer
  options = {}
  if 'mae' in name:
    peer.config.mask_ratio = 0.0
    patches = images.shape[1] * images.shape[2] // VISION['patch_size'] ** 2
    options['noise'] = torch.arange(patches).repeat(len(images), 1).float()
  with torch.no_grad():
    output = peer(to_torch(images), **options)
  match TOWERS[name].output:
    case 'first':
      return output.last_hidden_state[:, 0].numpy()
    case 'mean':
      return output.last_hidden_state.mean(dim=1).numpy()
    case attribute:
      return getattr(output, attribute).numpy()


@nnx.jit
def ours_of(ours, images):
  return ours(images) if ours.head.kernel.shape[-1] else ours.head_input(ours.features(images))


def relative(a: np.ndarray, b: np.ndarray) -> float:
  return float(np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(np.asarray(b)).max())


@pytest.fixture(scope='module', autouse=True)
def _precision():
  torch.set_num_threads(1)
  with jax.default_matmul_precision('highest'):
    yield


@pytest.mark.parametrize('name', TOWERS)
def test_tower_is_that_of_transformers_and_written_again(name, tmp_path):
  tower, peer = TOWERS[name], peer_of(name)
  peer.save_pretrained(tmp_path / 'theirs')
  pretrained = read(tmp_path / 'theirs')
  images = make_images(pretrained)
  expected, module = output_of(peer, name, images), make_ours(pretrained)
  loaded = relative(ours_of(module, images), expected)
  assert loaded < 1e-5
  # Each parameter counts, so that one in the wrong place would be noticed.
  graphdef, variables = nnx.split(module)
  for path, array in pytrees.flatten(pretrained.params).items():
    if array.size > 1 and not re.fullmatch(f'{tower.unread}|{KEY_BIAS}', path):
      flat = pytrees.flatten(nnx.to_pure_dict(variables))
      flat[path] = jax.numpy.asarray(np.roll(array, 1))
      changed = nnx.merge(graphdef, pytrees.unflatten(flat))
      assert relative(ours_of(changed, images), expected) > 30 * loaded, path
  kind = formats_kind(name)
  write_folder(pretrained, tmp_path / 'ours', kind)
  cls = getattr(transformers, tower.written or tower.cls)
  again, info = cls.from_pretrained(tmp_path / 'ours', output_loading_info=True)
  assert not any(info.values()), info
  written = relative(output_of(again.eval(), name, images), expected)
  assert written < 1e-6
  print(f'{name} | {tower.cls} | {loaded:.1e} | {written:.1e}')


def formats_kind(name: str) -> str:
  kinds = {'mae': 'masked', 'msn': 'masked'}
  return kinds.get(name.split()[0], name.split()[0])
