"""Classes by their names: heads that the text towers of transformers' CLIP, MetaCLIP 2 and SigLIP make."""

import dataclasses
import json
import shutil
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from released_files import read
from test_towers import TOWERS, peer_of
from transformers_peers import (
  TEXT,
  load_whole,
  make_images,
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
from vit_jax.pretrained import tokenizing
from vit_jax.training import loop, preprocessing
from vit_jax.training.initialization import read_initial
from vit_jax.training.run import open_training

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('precise')]  # it compares with another framework

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
