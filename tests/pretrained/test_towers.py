"""Towers of transformers that people fine-tune: their outputs, folders written again, heads of texts."""

import dataclasses
import json
import re
import shutil
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from released_files import read, write_folder
from transformers_peers import (
  TEXT,
  VISION,
  load_whole,
  make_images,
  make_ours,
  randomise,
  safetensors_numpy,
  tensors_in,
  to_torch,
  torch,
  transformers,
)

import vit_jax
from vit_jax import recipes
from vit_jax.adapters.lora import AdapterConfig
from vit_jax.checkpoint.config import CheckpointConfig
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.parts import rotary
from vit_jax.pretrained import tokenizing
from vit_jax.pretrained.transformers_beit import BeitFormat
from vit_jax.training import loop, preprocessing
from vit_jax.training.initialization import read_initial
from vit_jax.training.run import open_training

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

  @jax.jit
  def ours_of(flat):
    ours = nnx.merge(graphdef, pytrees.unflatten(flat))
    return ours(images) if ours.head.kernel.shape[-1] else ours.head_input(ours.features(images))

  loaded = relative(ours_of(flat), expected)
  assert loaded < 1e-5
  # Each parameter counts, so that one in the wrong place would be noticed.
  for path, array in flat.items():
    if array.size > 1 and not re.fullmatch(f'{tower.unread}|{KEY_BIAS}', path):
      assert relative(ours_of(flat | {path: np.roll(array, 1)}), expected) > 30 * loaded, path
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


WORDS = ['<s>', '<unk>', '<pad>', 'a', 'dog', 'cat', 'red', 'of', 'photo', '.', '</s>']
CLASSES = ('Dog', 'red cat of a dog of a cat')


def save_tokenizer(folder, *, start: str = '') -> Any:
  """A tokenizer of a few words, as a file of the library tokenizers, in transformers' terms."""
  tokenizers = pytest.importorskip('tokenizers')
  numbers = {word: number for number, word in enumerate(WORDS)}
  tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token='<unk>'))
  tokenizer.normalizer = tokenizers.normalizers.Lowercase()
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  special = [(token, numbers[token]) for token in ('<s>', '</s>')]
  tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
    single=f'{start}$A </s>', special_tokens=special
  )
  fast = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, eos_token='</s>', pad_token='<pad>', unk_token='<unk>'
  )
  fast.save_pretrained(folder)
  return fast


def two_towers(name: str, folder) -> Any:
  """A peer of two towers in a folder, and its logits of images and texts that its tokenizer prepares."""
  if name == 'siglip':
    peer, padding = peer_of('siglip'), 'max_length'
  else:
    end = 2 if name == 'clip by argmax' else WORDS.index('</s>')
    cls = getattr(transformers, 'MetaClip2Model' if name.startswith('metaclip2') else 'CLIPModel')
    text = {**TEXT, 'eos_token_id': end}
    options = TOWERS['clip'].options | {'text_config': text}
    peer, padding = randomise(cls(cls.config_class(**options)), 0), True
  peer.save_pretrained(folder)
  if name.endswith('sections twice'):
    values = json.loads((folder / 'config.json').read_text())
    for section in ('vision_config', 'text_config'):
      others = {'hidden_act': 'relu', 'layer_norm_eps': 0.5, 'num_attention_heads': 2}
      values[f'{section}_dict'] = {
        key: value for key, value in values[section].items() if key != 'hidden_act'
      }
      values[section] |= others
    (folder / 'config.json').write_text(json.dumps(values))
    peer = load_whole(type(peer), folder)
  tokenizer = save_tokenizer(folder, start='' if name == 'siglip' else '<s> ')

  def logits(images: np.ndarray, texts) -> np.ndarray:
    inputs = tokenizer(list(texts), padding=padding, truncation=True, max_length=8, return_tensors='pt')
    with torch.no_grad():
      output = peer(pixel_values=to_torch(images), input_ids=inputs['input_ids'])
    return output.logits_per_image.numpy()

  return logits


@pytest.mark.parametrize(
  'name',
  ['clip', 'clip by argmax', 'clip, sections twice', 'metaclip2', 'metaclip2, sections twice', 'siglip'],
)
def test_classes_by_their_names_get_the_logits_of_transformers(name, tmp_path):
  logits = two_towers(name, tmp_path / 'peer')
  alone = read(tmp_path / 'peer')
  assert any('The text tower is left out' in note for note in alone.notes)
  images = make_images(alone)
  texts = ['a photo of a dog', *CLASSES]
  model = vit_jax.load(tmp_path / 'peer', classes=texts)
  np.testing.assert_allclose(model(images), logits(images, texts), atol=1e-5, rtol=0)
  assert model.class_names == tuple(texts) and model.link == ('sigmoid' if name == 'siglip' else 'softmax')
  assert np.abs(np.asarray(model(images))).max() > 0.01


def test_folder_without_a_text_tower_or_tokenizer_says_so(tmp_path):
  peer_of('clip vision').save_pretrained(tmp_path / 'vision')
  with pytest.raises(UserError, match='has no text tower'):
    vit_jax.load(tmp_path / 'vision', classes=['a dog'])
  with pytest.raises(UserError, match='There are no classes'):
    vit_jax.load(tmp_path / 'vision', classes=[])
  peer_of('clip').save_pretrained(tmp_path / 'both')
  with pytest.raises(UserError, match=r'has no tokenizer\.json'):
    vit_jax.load(tmp_path / 'both', classes=['a dog'])
  save_tokenizer(tmp_path / 'both')
  tensors = tensors_in(tmp_path / 'both')
  del tensors['text_model.final_layer_norm.bias']
  safetensors_numpy.save_file(tensors, tmp_path / 'both/model.safetensors')
  with pytest.raises(UserError, match=r'no tensor text_model\.final_layer_norm\.bias as its text tower'):
    vit_jax.load(tmp_path / 'both', classes=['a dog'])


def of_two_classes(folder) -> None:
  """Images of a dog and of a red cat."""
  rng = np.random.default_rng(0)
  for place in ('train/dog', 'train/red cat', 'val/dog', 'val/red cat'):
    (folder / 'data' / place).mkdir(parents=True)
    for number in range(4):
      image = Image.fromarray(rng.integers(0, 256, (20, 20, 3), np.uint8))
      image.save(folder / 'data' / place / f'{number}.png')


def test_fine_tuning_begins_with_the_head_of_texts(tmp_path):
  two_towers('clip', tmp_path / 'peer')
  of_two_classes(tmp_path)
  config = recipes.fitted(str(tmp_path / 'peer'), f'folder:{tmp_path}/data', 'text')
  run, _ = open_training(preprocessing.resolved(config))
  assert run.dataset.class_names == ('dog', 'red cat')
  arrays, _ = read_initial(run.config, run.architecture, run.dataset.class_names)
  texts = [f'a photo of a {name}.' for name in run.dataset.class_names]
  begun = vit_jax.load(tmp_path / 'peer', classes=texts)
  state = pytrees.flatten(nnx.to_pure_dict(nnx.state(begun.module)))
  assert arrays.keys() == state.keys()
  for path, array in arrays.items():
    np.testing.assert_allclose(array, state[path], atol=1e-6, err_msg=path)


@pytest.mark.nightly  # the same code as of other adapters' runs, and two trainings
def test_a_run_with_an_adapter_goes_on_without_the_tokenizer_that_made_its_head(tmp_path):
  two_towers('clip', tmp_path / 'peer')
  of_two_classes(tmp_path)
  config = recipes.fitted(str(tmp_path / 'peer'), f'folder:{tmp_path}/data', 'text')
  config = dataclasses.replace(
    config,
    total='2 steps',
    batch_size=8,
    adapter=AdapterConfig(rank=2),
    checkpoint=CheckpointConfig(every='1 steps', keep=2),
  )
  loop.train(config, tmp_path / 'run')
  expected = read(tmp_path / 'run').params
  shutil.rmtree(tmp_path / 'run/checkpoints/2')
  (tmp_path / 'peer/tokenizer.json').unlink()
  loop.train(config, tmp_path / 'run')
  jax.tree.map(np.testing.assert_array_equal, read(tmp_path / 'run').params, expected)


@pytest.mark.parametrize('tokenizer', ['Siglip2Tokenizer', 'GemmaTokenizer'])
def test_tokens_of_siglip2_are_those_of_transformers(tokenizer, tmp_path):
  """Also where the folder names the class from which SigLIP 2's is derived."""
  tokens = ['<pad>', '<eos>', '<bos>', '<unk>', '<mask>', *'abcdegot▁', 'do', 'dog', 'ca', 'cat']
  merges = [('d', 'o'), ('do', 'g'), ('c', 'a'), ('ca', 't')]
  vocabulary = {token: number for number, token in enumerate(tokens)}
  transformers.Siglip2Tokenizer(vocab=vocabulary, merges=merges).save_pretrained(tmp_path)
  values = json.loads((tmp_path / 'tokenizer_config.json').read_text())
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(values | {'tokenizer_class': tokenizer}))
  transformers.Siglip2Config().save_pretrained(tmp_path)
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
  texts = ['A Dog', 'a cat to a dog to a cat to a toad']
  expected = theirs(texts, padding='max_length', truncation=True, max_length=12, return_tensors='np')
  np.testing.assert_array_equal(tokenizing.of_folder(tmp_path, 12)(texts), expected['input_ids'])
