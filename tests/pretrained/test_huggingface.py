"""Folders of Hugging Face, against transformers itself."""

import dataclasses
import hashlib
import shutil

import jax
import numpy as np
import pytest
from released_files import read, write_folder
from transformers_peers import (
  PEERS,
  assert_same,
  load_whole,
  make_images,
  make_ours,
  make_peer,
  make_pretrained,
  metadata,
  outputs,
  run,
  tensors_in,
  to_torch,
  torch,
  transformers,
)

import vit_jax
from vit_jax import config
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import formats

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('precise')]  # it compares with another framework


@pytest.mark.parametrize('name', PEERS)
def test_read_and_written_again_it_is_the_same_model_to_the_bit(name, tmp_path, capfd):
  """The hidden states and logits of transformers, which loads what we write without a warning."""
  peer = make_peer(name)
  peer.save_pretrained(tmp_path / 'theirs')
  pretrained = read(tmp_path / 'theirs')
  assert_same(pretrained, peer)
  expected = 'bicubic_antialias' if name.startswith('registers') else 'bicubic'
  assert pretrained.architecture.model.position_table('position_embedding').resize == expected
  write_folder(pretrained, tmp_path / 'ours')
  capfd.readouterr()
  again = load_whole(getattr(transformers, PEERS[name][0]), tmp_path / 'ours')
  assert '[transformers]' not in capfd.readouterr().err  # what its warnings begin with
  assert_same(pretrained, again)
  theirs, ours = tensors_in(tmp_path / 'theirs'), tensors_in(tmp_path / 'ours')
  # What is left out or added, each of which is said elsewhere.
  if name == 'vit gray, no bias':
    added = {key for key in ours if key.endswith(('query.bias', 'key.bias', 'value.bias'))}
    assert len(added) == 9 and not any(ours.pop(key).any() for key in added)
  assert ours.keys() == theirs.keys()
  assert metadata(tmp_path / 'ours') == metadata(tmp_path / 'theirs')
  for key in ours:
    if name.startswith('deit') and key.endswith(('position_embeddings', 'distillation_token')):
      continue
    if key.endswith('mask_token'):
      assert not ours[key].any()
    else:
      np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key, strict=True)
  if name.startswith('deit'):
    prefix = '' if name == 'deit model' else 'deit.'

    def total(side):
      token, position = (
        side[prefix + 'embeddings.distillation_token'],
        side[prefix + 'embeddings.position_embeddings'],
      )
      return np.concatenate([position[:, :1], token + position[:, 1:2], position[:, 2:]], axis=1)

    np.testing.assert_array_equal(total(ours), total(theirs))


def test_each_head_of_a_distilled_deit_is_that_of_transformers(tmp_path):
  peer = make_peer('deit distilled')
  peer.save_pretrained(tmp_path)
  pretrained = read(tmp_path)
  assert pretrained.architecture.model.distillation_token
  assert not any('distillation' in note for note in pretrained.notes if 'preprocessor_config' not in note)
  images = make_images(pretrained)
  of_labels, of_teachers = make_ours(pretrained).distillation_logits(images)
  theirs = outputs(peer, images)
  np.testing.assert_allclose(of_labels, theirs.cls_logits, atol=1e-4, rtol=0)
  np.testing.assert_allclose(of_teachers, theirs.distillation_logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize('name', ['vit', 'registers model'])
def test_shards_give_the_same_as_one_file(name, tmp_path):
  peer = make_peer(name)
  peer.save_pretrained(tmp_path / 'one')
  peer.save_pretrained(tmp_path / 'many', max_shard_size='20KB')
  assert len(list((tmp_path / 'many').glob('*.safetensors'))) > 2
  one, many = read(tmp_path / 'one'), read(tmp_path / 'many')
  jax.tree.map(np.testing.assert_array_equal, one.params, many.params)
  lost = sorted((tmp_path / 'many').glob('*.safetensors'))[1]
  by_shard = read(lost)  # naming one of the files is naming the folder
  jax.tree.map(np.testing.assert_array_equal, one.params, by_shard.params)
  lost.unlink()
  with pytest.raises(UserError, match=f'lacks {lost.name}'):
    read(tmp_path / 'many')


@pytest.mark.parametrize('whole', [True, False])
def test_one_file_beside_an_index_is_read_as_transformers_does(whole, tmp_path):
  """Left by a model that was saved again, of which the index names other weights, or files that are gone."""
  make_peer('vit', seed=1).save_pretrained(tmp_path / 'many', max_shard_size='20KB')
  make_peer('vit').save_pretrained(tmp_path / 'one')
  for path in (tmp_path / 'many').glob('*.safetensors*' if whole else '*.json'):
    if path.name != 'config.json':
      shutil.copy(path, tmp_path / 'one')
  peer = transformers.ViTForImageClassification.from_pretrained(tmp_path / 'one').eval()
  pretrained = read(tmp_path / 'one')
  assert_same(pretrained, peer)
  assert any('model.safetensors.index.json, which is left aside' in note for note in pretrained.notes)


def test_bfloat16_is_read_into_float32(tmp_path):
  peer = make_peer('vit').to(torch.bfloat16)
  peer.save_pretrained(tmp_path)
  pretrained = read(tmp_path)
  assert {leaf.dtype for leaf in jax.tree.leaves(pretrained.params)} == {np.dtype('float32')}
  assert any('BF16' in note for note in pretrained.notes)
  assert_same(pretrained, peer.float())


@pytest.mark.parametrize('name', ['vit tanh', 'deit distilled', 'dinov2', 'registers'])
def test_position_resize_is_that_of_transformers(name, tmp_path):
  peer = make_peer(name)
  peer.save_pretrained(tmp_path)
  pretrained = read(tmp_path)
  options = {} if name in ('dinov2', 'registers') else {'interpolate_pos_encoding': True}
  for size in ((24, 24), (8, 16)):
    images = make_images(pretrained, size)
    with torch.no_grad():
      theirs = peer(to_torch(images), **options).logits
    np.testing.assert_allclose(make_ours(pretrained)(images), theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize('name', ['vit', 'registers'])
def test_a_model_that_cuts_images_is_loaded_for_oblong_ones_with_the_positions_of_transformers(
  name, tmp_path
):
  peer = make_peer(name, image_size=20)  # patches of 8
  peer.save_pretrained(tmp_path)
  images = make_images(read(tmp_path), (15, 60))
  with torch.no_grad():
    theirs = peer(to_torch(images), **({'interpolate_pos_encoding': True} if name == 'vit' else {})).logits
  ours = vit_jax.load(tmp_path, image_size=(15, 60))(images)
  np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)


def test_class_names_are_read_and_written(tmp_path):
  names = ('tench', 'great white shark', 'hen', 'tiger', 'owl')
  peer = make_peer('vit')
  peer.config.id2label = dict(enumerate(names))
  peer.config.label2id = {name: i for i, name in enumerate(names)}
  peer.save_pretrained(tmp_path / 'theirs')
  pretrained = read(tmp_path / 'theirs')
  assert pretrained.class_names == names
  write_folder(pretrained, tmp_path / 'ours')
  assert transformers.AutoConfig.from_pretrained(tmp_path / 'ours').id2label == dict(enumerate(names))
  with pytest.raises(UserError, match='4 class names do not fit a head of 5'):
    write_folder(dataclasses.replace(pretrained, class_names=names[:4]), tmp_path / 'no')


@pytest.mark.parametrize('name', ['vit', 'bit', 'efficientnet'])
def test_heads_of_several_labels_have_sigmoids_and_those_of_regression_are_refused(name, tmp_path):
  """A head of one output has a sigmoid in transformers' pipeline."""
  kind = {
    'vit': transformers.ViTConfig,
    'bit': transformers.BitConfig,
    'efficientnet': transformers.EfficientNetConfig,
  }
  sizes = {
    'vit': {
      'hidden_size': 8,
      'num_hidden_layers': 1,
      'num_attention_heads': 2,
      'intermediate_size': 8,
      'image_size': 8,
      'patch_size': 8,
    },
    'bit': {'embedding_size': 32, 'hidden_sizes': [128], 'depths': [1]},
    'efficientnet': {
      'width_coefficient': 1.0,
      'depth_coefficient': 0.1,
      'image_size': 32,
      'hidden_dim': 1280,
    },
  }[name]
  for labels, problem, link in (
    (2, 'multi_label_classification', 'sigmoid'),
    (2, None, 'softmax'),
    (1, None, 'sigmoid'),
    (2, 'regression', None),
  ):
    config = kind[name](**sizes, num_labels=labels, problem_type=problem)
    folder = tmp_path / f'{labels}{problem}'
    transformers.AutoModelForImageClassification.from_config(config).save_pretrained(folder)
    (folder / 'preprocessor_config.json').write_text('{"size": {"height": 8, "width": 8}}')
    if link is not None:
      assert read(folder).link == link
    else:
      with pytest.raises(UserError, match='its head is one of regression'):
        read(folder)


# Model options -> the kind that is written where none is named.
OURS = {
  'vit': config.ViTConfig(pool='token', activation='gelu_tanh', position_resize='bicubic'),
  'deit': config.ViTConfig(pool='token', register_tokens=1, position_resize='bicubic'),
  'deit distilled': config.ViTConfig(pool='token', distillation_token=True, position_resize='bicubic'),
  'dinov2': config.ViTConfig(
    pool='token_gap',
    layer_scale=0.1,
    register_tokens=2,
    activation='gelu',
    position_resize='bicubic_antialias',
  ),
}


@pytest.mark.parametrize('kind', OURS)
def test_model_is_written_as_the_first_kind_that_fits(kind, tmp_path):
  pretrained = make_pretrained(OURS[kind], class_names=('a', 'b', 'c'))
  notes = write_folder(pretrained, tmp_path)
  assert any('antialias' in note for note in notes)
  peer = load_whole(transformers.AutoModelForImageClassification, tmp_path)
  assert peer.config.model_type.startswith(kind.split()[0])
  assert_same(pretrained, peer)
  again = read(tmp_path)
  jax.tree.map(np.testing.assert_array_equal, again.params, pretrained.params)
  assert again.class_names == pretrained.class_names
  assert again.architecture == pretrained.architecture


@pytest.mark.parametrize('registers', [0, 3])
def test_dinov2_whose_head_reads_the_class_token_is_written_with_zeros_for_the_patches(registers, tmp_path):
  """Fine-tuned here, where the head is (D, K); transformers' is (2 D, K)."""
  pretrained = make_pretrained(
    config.ViTConfig(layer_scale=0.1, register_tokens=registers, activation='gelu')
  )
  writer, chosen = formats.written_by('hf', pretrained)
  assert "the kind 'dinov2' is written" in chosen[0] and "not 'vit', since" in chosen[0]
  notes = writer.write(pretrained, tmp_path)
  assert any('the weights of the mean are zeros there' in note for note in notes)
  peer = load_whole(transformers.AutoModelForImageClassification, tmp_path)
  assert type(peer).__name__ == ('Dinov2WithRegisters' if registers else 'Dinov2') + 'ForImageClassification'
  assert_same(pretrained, peer)
  images = make_images(pretrained)
  again = read(tmp_path)
  assert again.architecture.model.pool == 'token_gap'
  np.testing.assert_allclose(make_ours(again)(images), make_ours(pretrained)(images), atol=1e-6)


def test_written_folder_has_a_checksum_that_is_checked(tmp_path):
  write_folder(make_pretrained(config.ViTConfig()), tmp_path)
  content = bytearray((tmp_path / 'model.safetensors').read_bytes())
  expected = f'{hashlib.sha256(content).hexdigest()}  model.safetensors\n'
  assert (tmp_path / 'model.safetensors.sha256').read_text() == expected
  read(tmp_path)
  for position in (len(content) - 4, len(content) // 2):
    content[position] ^= 1  # a bit of a number, which nothing else would notice
    (tmp_path / 'model.safetensors').write_bytes(content)
    for path in (tmp_path, tmp_path / 'model.safetensors'):
      with pytest.raises(UserError, match=r'does not match model\.safetensors\.sha256; get the file again'):
        read(path)


def test_pretraining_head_of_zeros_is_written_as_a_pooler(tmp_path):
  pretrained = make_pretrained(config.ViTConfig(pre_logits_size=24))
  with pytest.raises(UserError, match='no layer between pooling and head'):
    write_folder(pretrained, tmp_path)
  params = pretrained.params | {'head': jax.tree.map(np.zeros_like, pretrained.params['head'])}
  notes = write_folder(dataclasses.replace(pretrained, params=params), tmp_path)
  assert any('all zeros, is left out' in note for note in notes)
  peer = load_whole(transformers.ViTModel, tmp_path)
  images = make_images(pretrained)
  _, _, pooled, _ = run(make_ours(pretrained), images)
  np.testing.assert_allclose(pooled, outputs(peer, images).pooler_output, atol=1e-4)


@pytest.mark.parametrize(
  ('kind', 'model', 'options', 'words'),
  [
    ('vit', config.ViTConfig(pool='gap'), {}, "has pool 'token' and this model 'gap'"),
    ('vit', config.ViTConfig(layer_scale=0.1), {}, 'has layer_scale None and this model 0.1'),
    ('deit', config.ViTConfig(), {}, 'has register_tokens 1 and this model 0'),
    ('dinov2', config.ViTConfig(layer_scale=0.1, qk_norm=True), {}, 'has qk_norm False and this model True'),
    ('hf', config.ViTConfig(position='rotary'), {}, "No kind of hf.*not 'vit', since.*not 'timm', since"),
    ('vit', config.MixerConfig(tokens_mlp_dim=8), {}, 'Vision Transformers, and this is an MLP-Mixer'),
    ('dinov2', config.ViTConfig(pool='token_gap', layer_scale=1.0), {'image_size': (8, 16)}, 'square images'),
    (
      'timm',
      config.ViTConfig(pool='gap', class_token=True, register_tokens=1),
      {},
      'no mean over class token',
    ),
    ('bert', config.ViTConfig(), {}, "no checkpoint format 'bert'"),
  ],
)
def test_model_that_a_kind_cannot_hold_is_refused_before_writing(kind, model, options, words, tmp_path):
  with pytest.raises(UserError, match=words):
    write_folder(make_pretrained(model, **options), tmp_path, kind=kind)
  assert not list(tmp_path.iterdir())


def test_folder_in_use_is_not_overwritten(tmp_path):
  names = ['model.safetensors.partial', 'notes.txt']
  for name in names:
    (tmp_path / name).write_text('mine')
  with pytest.raises(UserError, match='not empty'):
    write_folder(make_pretrained(config.ViTConfig()), tmp_path)
  assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(names, 'mine')


def test_what_an_interrupted_conversion_left_is_written_over(tmp_path):
  for name in ('config.json', 'model.safetensors.partial', 'model.safetensors.sha256'):
    (tmp_path / name).write_text('cut sho')
  pretrained = make_pretrained(OURS['vit'], class_names=('a', 'b', 'c'))
  write_folder(pretrained, tmp_path, kind='vit')
  assert not list(tmp_path.glob('*.partial'))
  assert formats.read(tmp_path).class_names == ('a', 'b', 'c')
