"""Towers of transformers that people fine-tune: their outputs, and folders written again."""

import dataclasses
import re
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from flax import nnx
from released_files import read, write_folder
from transformers_peers import (
  TEXT,
  VISION,
  load_whole,
  make_images,
  make_ours,
  randomise,
  to_torch,
  torch,
  transformers,
)

import vit_jax
from vit_jax.foundation import pytrees
from vit_jax.models.parts import rotary
from vit_jax.pretrained.transformers_beit import BeitFormat

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('precise')]  # it compares with another framework

SIGLIP2 = {name: size for name, size in VISION.items() if name != 'image_size'} | {'num_patches': 4}
PIXIO = {name: value for name, value in VISION.items() if name != 'intermediate_size'} | {'mlp_ratio': 2}


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
    'ViTMAEForPreTraining',
    {**VISION, 'mask_ratio': 0.0, 'decoder_num_attention_heads': 4},
    'first',
    'ViTMAEModel',
  ),
  'msn': Tower('ViTMSNForImageClassification', VISION, 'logits'),
  'msn model': Tower('ViTMSNModel', VISION, 'first'),
  'ijepa': Tower('IJepaForImageClassification', VISION, 'logits'),
  'ijepa model': Tower('IJepaModel', {**VISION, 'image_size': [16, 32]}, 'mean'),
  'clip': Tower(
    'CLIPModel',
    {'text_config': TEXT, 'vision_config': VISION, 'projection_dim': 24},
    'image',
    'CLIPVisionModelWithProjection',
  ),
  'clip classifier': Tower(
    'CLIPForImageClassification', {'text_config': TEXT, 'vision_config': VISION, 'num_labels': 3}, 'logits'
  ),
  'metaclip2': Tower(
    'MetaClip2Model',
    {'text_config': TEXT, 'vision_config': VISION, 'projection_dim': 24},
    'image',
    'CLIPVisionModelWithProjection',
  ),
  'beit': Tower(
    'BeitForImageClassification',
    {**VISION, 'use_relative_position_bias': True, 'use_mask_token': True},
    'logits',
  ),
  'beit shared': Tower(
    'BeitModel',
    {**VISION, 'use_shared_relative_position_bias': True, 'use_mean_pooling': False},
    'pooler_output',
  ),
  'beit absolute': Tower(
    'BeitModel', {**VISION, 'image_size': [16, 16], 'use_absolute_position_embeddings': True}, 'pooler_output'
  ),
  'data2vec': Tower(
    'Data2VecVisionForImageClassification',
    {**VISION, 'use_relative_position_bias': True},
    'logits',
    'BeitForImageClassification',
  ),
  'aimv2': Tower('Aimv2VisionModel', {**VISION, 'use_head': False}, 'mean', unread='.*/bias'),
  'aimv2 native': Tower(
    'Aimv2VisionModel',
    {**VISION, 'use_head': False, 'is_native': True},
    'mean',
    unread='.*/bias|position_embedding',
  ),
  'pixio': Tower('PixioModel', {**PIXIO, 'n_cls_tokens': 3}, 'pooler_output'),
  'clip vision': Tower('CLIPVisionModel', VISION, 'pooler_output'),
  'clip projection': Tower('CLIPVisionModelWithProjection', {**VISION, 'projection_dim': 24}, 'image_embeds'),
  'dinov2 giant': Tower(
    'Dinov2ForImageClassification',
    {**VISION, 'mlp_ratio': 4, 'use_swiglu_ffn': True, 'num_labels': 3},
    'logits',
  ),
  'dinov2 alone': Tower(
    'Dinov2WithRegistersForImageClassification',
    {**VISION, 'mlp_ratio': 4, 'num_register_tokens': 0, 'num_labels': 3},
    'logits',
    'Dinov2ForImageClassification',
  ),
  'dinov3': Tower(
    'DINOv3ViTModel', {**VISION, 'image_size': [16, 32], 'num_register_tokens': 3}, 'pooler_output'
  ),
  'dinov3 alone': Tower('DINOv3ViTModel', {**VISION, 'num_register_tokens': 0}, 'pooler_output'),
  'dinov3 gated': Tower(
    'DINOv3ViTModel',
    {**VISION, 'num_register_tokens': 4, 'use_gated_mlp': True, 'hidden_act': 'silu', 'key_bias': True},
    'pooler_output',
  ),
  'siglip2': Tower('Siglip2VisionModel', SIGLIP2, 'pooler_output', 'SiglipVisionModel'),
  'siglip2 classifier': Tower(
    'Siglip2ForImageClassification',
    {'text_config': TEXT, 'vision_config': SIGLIP2, 'num_labels': 3},
    'logits',
    'SiglipForImageClassification',
  ),
  'siglip': Tower(
    'SiglipModel', {'text_config': TEXT, 'vision_config': VISION}, 'pooler_output', 'SiglipVisionModel'
  ),
  'siglip vision': Tower('SiglipVisionModel', VISION, 'pooler_output'),
  'siglip cut': Tower('SiglipVisionModel', {**VISION, 'image_size': 21}, 'pooler_output'),
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
  if type(peer).__name__.startswith('Siglip2'):  # which takes rows of pixels
    b, side, _, c = images.shape
    grid = images.reshape(b, side // 8, 8, side // 8, 8, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, 64 * c)
    shape = torch.tensor([[side // 8] * 2] * b)
    with torch.no_grad():
      output = peer(torch.from_numpy(grid), torch.ones(grid.shape[:2]), shape)
      return getattr(output, TOWERS[name].output).numpy()
  if TOWERS[name].output == 'image':
    with torch.no_grad():
      output = (
        peer.get_image_features(to_torch(images))
        if hasattr(peer, 'get_image_features')
        else peer(to_torch(images))
      )
      return getattr(output, 'image_embeds', output.get('pooler_output')).numpy()
  with torch.no_grad():
    output = peer(to_torch(images), **options)
  match TOWERS[name].output:
    case 'first':
      return output.last_hidden_state[:, 0].numpy()
    case 'mean':
      return output.last_hidden_state.mean(dim=1).numpy()
    case attribute:
      return getattr(output, attribute).numpy()


def ours_of(ours: nnx.Module, images: np.ndarray) -> jax.Array:
  """What our model makes of images: logits where it has a head."""
  return ours(images) if ours.head.kernel.shape[-1] else ours.head_input(ours.features(images))


def relative(a: np.ndarray, b: np.ndarray) -> float:
  return float(np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(np.asarray(b)).max())


@pytest.mark.parametrize('name', TOWERS)
def test_tower_is_that_of_transformers_and_written_again(name, tmp_path):
  tower, peer = TOWERS[name], peer_of(name)
  peer.save_pretrained(tmp_path / 'theirs')
  pretrained = read(tmp_path / 'theirs')
  images = make_images(pretrained)
  expected, flat = output_of(peer, name, images), pytrees.flatten(pretrained.params)
  graphdef, _ = pretrained.architecture.graph_and_shapes()

  computed = jax.jit(lambda flat: ours_of(nnx.merge(graphdef, pytrees.unflatten(flat)), images))
  loaded = relative(computed(flat), expected)
  assert loaded < 1e-5
  # Each parameter counts, so that one in the wrong place would be noticed.
  for path, array in flat.items():
    if array.size > 1 and not re.fullmatch(f'{tower.unread}|{KEY_BIAS}', path):
      assert relative(computed(flat | {path: np.roll(array, 1)}), expected) > 30 * loaded, path
  kind = formats_kind(name)
  write_folder(pretrained, tmp_path / 'ours', kind)
  cls = getattr(transformers, tower.written or tower.cls)
  written = relative(output_of(load_whole(cls, tmp_path / 'ours'), name, images), expected)
  assert written < 1e-6
  print(f'{name} | {tower.cls} | {loaded:.1e} | {written:.1e}')


@pytest.mark.parametrize('size', [(16, 32), (24, 24)])
def test_absolute_positions_of_beit_are_resized_as_transformers_does(size, tmp_path):
  peer = peer_of('beit absolute')
  peer.save_pretrained(tmp_path)
  images = np.random.default_rng(0).standard_normal((2, *size, 3)).astype(np.float32)
  with torch.no_grad():
    expected = peer(to_torch(images), interpolate_pos_encoding=True).pooler_output
  assert relative(vit_jax.load(tmp_path, image_size=size).embeddings(images), expected) < 1e-5


def test_tables_of_relative_positions_for_oblong_images_are_not_written_as_beit(tmp_path):
  peer_of('beit').save_pretrained(tmp_path)
  square = read(tmp_path)
  oblong = dataclasses.replace(
    square, architecture=dataclasses.replace(square.architecture, image_size=(16, 32))
  )
  assert BeitFormat().unfit(square) is None
  assert 'oblong' in BeitFormat().unfit(oblong)


@pytest.mark.parametrize('shared', [False, True])
@pytest.mark.parametrize('size', [[16, 32], [32, 16]])
def test_tables_of_relative_positions_for_oblong_images_are_read_as_transformers_does(size, shared, tmp_path):
  peer = peer_of('beit')
  config = type(peer.config).from_dict(
    peer.config.to_dict()
    | {
      'image_size': size,
      'use_shared_relative_position_bias': shared,
      'use_relative_position_bias': not shared,
    }
  )
  peer = randomise(type(peer)(config), 0)
  peer.save_pretrained(tmp_path)
  images = np.random.default_rng(0).standard_normal((2, *size, 3)).astype(np.float32)
  with torch.no_grad():
    expected = peer(to_torch(images)).logits
  assert relative(vit_jax.load(tmp_path)(images), expected) < 1e-5


@pytest.mark.parametrize('size', [(16, 32), (24, 24)])
def test_positions_of_aimv2_that_are_computed_are_those_of_the_size_that_is_loaded(size, tmp_path):
  peer_of('aimv2 native').save_pretrained(tmp_path)
  images = make_images(read(tmp_path))
  images = np.random.default_rng(0).standard_normal((2, *size, images.shape[-1])).astype(np.float32)
  expected = output_of(transformers.AutoModel.from_pretrained(tmp_path).eval(), 'aimv2 native', images)
  ours = vit_jax.load(tmp_path, image_size=size)
  assert relative(ours.embeddings(images), expected) < 1e-5


def formats_kind(name: str) -> str:
  kinds = {'siglip2': 'siglip', 'data2vec': 'beit', 'metaclip2': 'clip'}
  return kinds.get(name.split()[0], name.split()[0])


def test_positions_of_dinov3_move_in_training_as_in_transformers(tmp_path, monkeypatch):
  """By draws that both are given; in evaluation they stay."""
  limits = {'pos_embed_shift': 0.3, 'pos_embed_jitter': 1.5, 'pos_embed_rescale': 2.5}
  config = transformers.DINOv3ViTConfig(**TOWERS['dinov3'].options, **limits)
  peer = randomise(transformers.DINOv3ViTModel(config), 0)
  peer.save_pretrained(tmp_path / 'theirs')
  pretrained = read(tmp_path / 'theirs')
  assert pretrained.architecture.model.rotary_moves == tuple(limits.values())
  write_folder(pretrained, tmp_path / 'ours', 'dinov3')
  written = transformers.AutoConfig.from_pretrained(tmp_path / 'ours')
  assert {name: getattr(written, name) for name in limits} == limits
  ours, images = make_ours(pretrained), make_images(pretrained)
  still = peer(to_torch(images)).pooler_output.detach().numpy()
  assert relative(ours.head_input(ours.features(images)), still) < 1e-5

  numbers = np.random.default_rng(0).uniform(-1, 1, 5).astype(np.float32)
  given = list(numbers)
  uniform = lambda tensor, low, high: tensor.copy_(
    torch.tensor([low + (high - low) * (given.pop(0) + 1) / 2 for _ in range(tensor.numel())]).reshape(
      tensor.shape
    )
  )
  monkeypatch.setattr(torch.Tensor, 'uniform_', uniform)
  expected = peer.train()(to_torch(images)).pooler_output.detach().numpy()
  keys = jax.random.split(jax.random.key(0), len(images))
  drawn = rotary.DinoV3Rotary.moves(keys, tuple(limits.values()))
  assert not np.array_equal(drawn[0], drawn[1])  # of each image its own
  moves = rotary.moves_of(np.stack([numbers] * len(images)), tuple(limits.values()))
  monkeypatch.setattr(rotary.DinoV3Rotary, 'moves', staticmethod(lambda keys, limits: moves))
  assert relative(ours.head_input(ours.encode(ours.embed(images), keys)), expected) < 1e-5
  assert relative(expected, still) > 1e-3
