"""Folders of Hugging Face, against transformers and timm themselves."""

import dataclasses
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from released_files import read, write_folder

from vit_jax import config, pytrees
from vit_jax.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.pretrained import formats
from vit_jax.pretrained.base import Pretrained
from vit_jax.pretrained.preprocess import Preprocess

REASON = "needs the extra 'peers' (pip install -e '.[peers]')"
torch = pytest.importorskip('torch', reason=REASON)
transformers = pytest.importorskip('transformers', reason=REASON)
safetensors = pytest.importorskip('safetensors', reason=REASON)
safetensors_numpy = pytest.importorskip('safetensors.numpy', reason=REASON)

SIZES = {'hidden_size': 32, 'num_hidden_layers': 3, 'num_attention_heads': 4, 'patch_size': 8}
MLP = {'intermediate_size': 48}
PEERS = {
  'vit': ('ViTForImageClassification', {**MLP, 'image_size': [16, 32], 'num_labels': 5}),
  'vit tanh': (
    'ViTForImageClassification',
    {**MLP, 'image_size': 16, 'hidden_act': 'gelu_pytorch_tanh', 'layer_norm_eps': 1e-2},
  ),
  'vit gray, no bias': (
    'ViTForImageClassification',
    {**MLP, 'image_size': 16, 'num_channels': 1, 'qkv_bias': False},
  ),
  'vit model': ('ViTModel', {**MLP, 'image_size': 16}),
  'deit': ('DeiTForImageClassification', {**MLP, 'image_size': 16, 'num_labels': 5}),
  'deit distilled': ('DeiTForImageClassificationWithTeacher', {**MLP, 'image_size': 16, 'num_labels': 5}),
  'deit model': ('DeiTModel', {**MLP, 'image_size': 16}),
  'dinov2': ('Dinov2ForImageClassification', {'mlp_ratio': 2, 'image_size': 16, 'num_labels': 5}),
  'dinov2 model': ('Dinov2Model', {'mlp_ratio': 2, 'image_size': 16}),
  'registers': (
    'Dinov2WithRegistersForImageClassification',
    {'mlp_ratio': 2, 'image_size': 16, 'num_labels': 5, 'num_register_tokens': 3},
  ),
  'registers model': ('Dinov2WithRegistersModel', {'mlp_ratio': 2, 'image_size': 16}),
}


@pytest.fixture(scope='module', autouse=True)
def _precision():
  """The highest precision on both sides, and one thread."""
  torch.set_num_threads(1)
  with jax.default_matmul_precision('highest'):
    yield


def make_peer(name: str, seed: int = 0):
  """A small model of transformers, in which no parameter is zero, one or equal to another."""
  cls, options = PEERS[name]
  cls = getattr(transformers, cls)
  return randomise(cls(cls.config_class(**{**SIZES, **options})), seed)


def randomise(model, seed: int):
  generator = torch.Generator().manual_seed(seed)
  with torch.no_grad():
    for key, parameter in model.named_parameters():
      noise = torch.randn(parameter.shape, generator=generator)
      center = 1.0 if 'norm' in key and key.endswith('weight') else 0.0
      scale = 0.15 if parameter.ndim == 2 else 0.3
      parameter.copy_(center + scale * noise)
  return model.eval()


def make_images(pretrained: Pretrained, size: tuple[int, int] | None = None) -> np.ndarray:
  architecture = pretrained.architecture
  shape = (2, *(size or architecture.image_size), architecture.channels)
  return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def to_torch(images: np.ndarray):
  return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


def make_ours(pretrained: Pretrained) -> nnx.Module:
  graphdef, shapes = pretrained.architecture.graph_and_shapes()
  flat = pytrees.flatten(pretrained.params)
  assert {path: leaf.shape for path, leaf in flat.items()} == {
    path: leaf.shape for path, leaf in shapes.items()
  }
  return nnx.merge(graphdef, jax.tree.map(jax.numpy.asarray, pretrained.params))


def outputs(peer, images: np.ndarray):
  with torch.no_grad():
    return peer(to_torch(images), output_hidden_states=True)


@jax.jit
def run(ours: nnx.Module, images: np.ndarray):
  """The tokens of every layer, those after the last norm, what the head reads, and the logits."""
  states = [ours.embed(images), *(ours.features(images, layer=i) for i in range(ours.config.num_layers))]
  final = ours.features(images)
  return states, final, ours.head_input(final), ours(images)


def assert_same(pretrained: Pretrained, peer, *, logits: str = 'logits') -> None:
  """All hidden states, and the logits or what a model without head gives."""
  images = make_images(pretrained)
  states, final, pooled, mine = run(make_ours(pretrained), images)
  theirs = outputs(peer, images)
  assert len(theirs.hidden_states) == len(states)
  for state, other in zip(states, theirs.hidden_states, strict=True):
    np.testing.assert_allclose(state, other, atol=1e-4, rtol=0)
  if pretrained.architecture.num_classes:
    np.testing.assert_allclose(mine, theirs[logits], atol=1e-4, rtol=0)
  else:
    np.testing.assert_allclose(final, theirs.last_hidden_state, atol=1e-4, rtol=0)
    np.testing.assert_allclose(pooled, theirs.pooler_output, atol=1e-4, rtol=0)


def tensors_in(folder: pathlib.Path) -> dict[str, np.ndarray]:
  return safetensors_numpy.load_file(folder / 'model.safetensors')


def metadata(folder: pathlib.Path) -> dict[str, str]:
  with safetensors.safe_open(folder / 'model.safetensors', 'np') as file:
    return file.metadata()


@pytest.mark.parametrize('name', PEERS)
def test_read_gives_the_same_hidden_states_and_logits(name, tmp_path):
  peer = make_peer(name)
  peer.save_pretrained(tmp_path)
  pretrained = read(tmp_path)
  assert_same(pretrained, peer, logits='cls_logits' if name == 'deit distilled' else 'logits')
  expected = 'bicubic_antialias' if name.startswith('registers') else 'bicubic'
  assert pretrained.architecture.model.position_table('position_embedding').resize == expected


def test_distilled_deit_notes_the_head_that_is_left_out(tmp_path):
  make_peer('deit distilled').save_pretrained(tmp_path)
  notes = ' '.join(read(tmp_path).notes)
  assert 'The head of the distillation token is left out' in notes


@pytest.mark.parametrize('name', PEERS)
def test_write_loads_without_a_warning_and_gives_the_same(name, tmp_path, capfd):
  make_peer(name).save_pretrained(tmp_path / 'theirs')
  pretrained = read(tmp_path / 'theirs')
  write_folder(pretrained, tmp_path / 'ours')
  stem = PEERS[name][0].replace('WithTeacher', '')
  capfd.readouterr()
  peer, info = getattr(transformers, stem).from_pretrained(tmp_path / 'ours', output_loading_info=True)
  assert not any(info.values()), info
  assert '[transformers]' not in capfd.readouterr().err  # what its warnings begin with
  assert_same(pretrained, peer.eval())


@pytest.mark.parametrize('name', PEERS)
def test_round_trip_gives_the_same_bits(name, tmp_path):
  make_peer(name).save_pretrained(tmp_path / 'theirs')
  write_folder(read(tmp_path / 'theirs'), tmp_path / 'ours')
  theirs, ours = tensors_in(tmp_path / 'theirs'), tensors_in(tmp_path / 'ours')
  # What is left out or added, each of which is said elsewhere.
  theirs = {key.replace('cls_classifier', 'classifier'): value for key, value in theirs.items()}
  theirs = {key: value for key, value in theirs.items() if not key.startswith('distillation_')}
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


@pytest.mark.parametrize('name', ['vit', 'dinov2', 'registers model'])
def test_shards_give_the_same_as_one_file(name, tmp_path):
  peer = make_peer(name)
  peer.save_pretrained(tmp_path / 'one')
  peer.save_pretrained(tmp_path / 'many', max_shard_size='20KB')
  assert len(list((tmp_path / 'many').glob('*.safetensors'))) > 2
  one, many = read(tmp_path / 'one'), read(tmp_path / 'many')
  jax.tree.map(np.testing.assert_array_equal, one.params, many.params)
  lost = sorted((tmp_path / 'many').glob('*.safetensors'))[1]
  lost.unlink()
  with pytest.raises(UserError, match=f'lacks {lost.name}'):
    read(tmp_path / 'many')


def test_bfloat16_is_read_into_float32(tmp_path):
  peer = make_peer('vit').to(torch.bfloat16)
  peer.save_pretrained(tmp_path)
  pretrained = read(tmp_path)
  assert {leaf.dtype for leaf in jax.tree.leaves(pretrained.params)} == {np.dtype('float32')}
  assert any('BF16' in note for note in pretrained.notes)
  assert_same(pretrained, peer.float())


@pytest.mark.parametrize('size', [(24, 24), (16, 32), (8, 16)])
@pytest.mark.parametrize('name', ['vit tanh', 'deit', 'dinov2', 'registers'])
def test_position_resize_is_that_of_transformers(name, size, tmp_path):
  peer = make_peer(name)
  peer.save_pretrained(tmp_path)
  pretrained = read(tmp_path)
  images = make_images(pretrained, size)
  options = {} if name in ('dinov2', 'registers') else {'interpolate_pos_encoding': True}
  with torch.no_grad():
    theirs = peer(to_torch(images), **options).logits
  np.testing.assert_allclose(make_ours(pretrained)(images), theirs, atol=1e-4, rtol=0)


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


def make_photographs() -> list[Image.Image]:
  rng = np.random.default_rng(1)
  coarse = [rng.integers(0, 256, (5, 7, 3), np.uint8), rng.integers(0, 256, (9, 6, 3), np.uint8)]
  return [
    Image.fromarray(coarse[0]).resize((70, 41), Image.Resampling.BICUBIC),
    Image.fromarray(coarse[1]).resize((30, 50), Image.Resampling.BICUBIC),
  ]


PROCESSORS = {
  'vit': ('ViTImageProcessor', {'size': {'height': 16, 'width': 32}, 'image_mean': [0.1, 0.2, 0.3]}),
  'vit raw': ('ViTImageProcessor', {'size': {'height': 16, 'width': 32}, 'do_normalize': False}),
  'vit range': ('ViTImageProcessor', {'size': {'height': 16, 'width': 32}, 'rescale_factor': 1 / 127.5}),
  'deit': (
    'DeiTImageProcessor',
    {'size': {'height': 20, 'width': 36}, 'crop_size': {'height': 16, 'width': 32}},
  ),
  'bit': ('BitImageProcessor', {'size': {'shortest_edge': 33}, 'crop_size': {'height': 16, 'width': 32}}),
}


@pytest.mark.parametrize('name', PROCESSORS)
def test_images_are_prepared_as_by_transformers_both_ways(name, tmp_path):
  cls, options = PROCESSORS[name]
  theirs = getattr(transformers, cls + 'Pil')(**options)
  make_peer('vit').save_pretrained(tmp_path / 'theirs')
  theirs.save_pretrained(tmp_path / 'theirs')
  pretrained = read(tmp_path / 'theirs')
  photographs = make_photographs()
  wanted = theirs(photographs, return_tensors='np')['pixel_values'].transpose(0, 2, 3, 1)
  np.testing.assert_allclose(pretrained.preprocess(photographs), wanted, atol=1e-5)
  assert not write_folder(pretrained, tmp_path / 'ours')
  again = transformers.AutoImageProcessor.from_pretrained(tmp_path / 'ours', backend='pil')
  given = again(photographs, return_tensors='np')['pixel_values'].transpose(0, 2, 3, 1)
  np.testing.assert_allclose(given, wanted, atol=1e-5)
  again = read(tmp_path / 'ours').preprocess
  np.testing.assert_allclose(again(photographs), wanted, atol=1e-5)


def test_preprocessing_for_another_size_is_adapted_and_noted(tmp_path):
  make_peer('dinov2').save_pretrained(tmp_path)
  processor = {'size': {'shortest_edge': 10}, 'crop_size': {'height': 8, 'width': 8}, 'do_center_crop': True}
  processor |= {'image_processor_type': 'BitImageProcessor', 'resample': 3}
  (tmp_path / 'preprocessor_config.json').write_text(json.dumps(processor))
  pretrained = read(tmp_path)
  assert (pretrained.preprocess.size, pretrained.preprocess.shorter) == ((16, 16), 20)
  assert any('image_size=(8, 8)' in note for note in pretrained.notes)


# Model options -> the kind that is written where none is named.
OURS = {
  'vit': config.ViTConfig(pool='token', gelu='tanh', position_resize='bicubic'),
  'deit': config.ViTConfig(pool='token', register_tokens=1, position_resize='bicubic'),
  'dinov2': config.ViTConfig(
    pool='token_gap', layer_scale=0.1, register_tokens=2, gelu='erf', position_resize='bicubic_antialias'
  ),
}


def make_pretrained(
  model: config.ViTConfig, *, num_classes: int = 3, image_size=(16, 16), **options
) -> Pretrained:
  sizes = {'patch': 8, 'width': 32, 'mlp_dim': 64, 'depth': 2, 'heads': 4}
  options_of_model = {field.name for field in dataclasses.fields(model)}
  sizes = {name: size for name, size in sizes.items() if name in options_of_model}
  model = dataclasses.replace(model, variant='custom', **sizes)
  architecture = Architecture(model, image_size, 3, num_classes)
  rng = np.random.default_rng(3)
  flat = {
    path: (0.2 * rng.normal(size=leaf.shape) + path.endswith('scale')).astype(np.float32)
    for path, leaf in sorted(architecture.shapes().items())
  }
  preprocess = Preprocess.from_range(image_size, -1, 1)
  return Pretrained(architecture, pytrees.unflatten(flat), preprocess, **options)


@pytest.mark.parametrize('kind', OURS)
def test_model_is_written_as_the_first_kind_that_fits(kind, tmp_path):
  pretrained = make_pretrained(OURS[kind], class_names=('a', 'b', 'c'))
  notes = write_folder(pretrained, tmp_path)
  assert any('antialias' in note for note in notes)
  peer, info = transformers.AutoModelForImageClassification.from_pretrained(
    tmp_path, output_loading_info=True
  )
  assert not any(info.values()), info
  assert peer.config.model_type.startswith(kind)
  assert_same(pretrained, peer.eval())
  again = read(tmp_path)
  jax.tree.map(np.testing.assert_array_equal, again.params, pretrained.params)
  assert again.class_names == pretrained.class_names
  assert again.architecture == pretrained.architecture


@pytest.mark.parametrize('registers', [0, 3])
def test_dinov2_whose_head_reads_the_class_token_is_written_with_zeros_for_the_patches(registers, tmp_path):
  """Fine-tuned here, where the head is (D, K); transformers' is (2 D, K)."""
  pretrained = make_pretrained(config.ViTConfig(layer_scale=0.1, register_tokens=registers, gelu='erf'))
  writer, chosen = formats.written_by('hf', pretrained)
  assert "the kind 'dinov2' is written" in chosen[0] and "not 'vit', since" in chosen[0]
  notes = writer.write(pretrained, tmp_path)
  assert any('the weights of the mean are zeros there' in note for note in notes)
  peer, info = transformers.AutoModelForImageClassification.from_pretrained(
    tmp_path, output_loading_info=True
  )
  assert type(peer).__name__ == ('Dinov2WithRegisters' if registers else 'Dinov2') + 'ForImageClassification'
  assert not any(info.values()), info
  assert_same(pretrained, peer.eval())
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
  peer, info = transformers.ViTModel.from_pretrained(tmp_path, output_loading_info=True)
  assert not any(info.values()), info
  images = make_images(pretrained)
  _, _, pooled, _ = run(make_ours(pretrained), images)
  np.testing.assert_allclose(pooled, outputs(peer.eval(), images).pooler_output, atol=1e-4)


@pytest.mark.parametrize(
  ('kind', 'model', 'options', 'words'),
  [
    ('vit', config.ViTConfig(pool='gap'), {}, "has pool 'token' and this model 'gap'"),
    ('vit', config.ViTConfig(register_tokens=2), {}, 'has 0 register tokens and this model 2'),
    ('vit', config.ViTConfig(layer_scale=0.1), {}, 'has no LayerScale'),
    ('deit', config.ViTConfig(), {}, 'has 1 register tokens and this model 0'),
    ('dinov2', config.ViTConfig(pool='token_gap'), {}, 'has LayerScale and this model has none'),
    (
      'dinov2',
      config.ViTConfig(pool='gap', layer_scale=0.1),
      {},
      "has pool 'token_gap' or 'token' and this model 'gap'",
    ),
    ('dinov2', config.ViTConfig(layer_scale=0.1, qk_norm=True), {}, 'no place for blocks/attention/key_norm'),
    ('dinov2', config.ViTConfig(layer_scale=0.1, pre_logits_size=8), {}, 'no layer between pooling and head'),
    ('vit', config.ViTConfig(position='rotary'), {}, "learned positions, and this model 'rotary'"),
    ('hf', config.ViTConfig(position='rotary'), {}, "No kind of hf.*not 'vit', since.*not 'timm', since"),
    ('vit', config.MixerConfig(tokens_mlp_dim=8), {}, 'Vision Transformers, and this is an MLP-Mixer'),
    ('dinov2', config.ViTConfig(pool='token_gap', layer_scale=1.0), {'image_size': (8, 16)}, 'square images'),
    ('timm', config.ViTConfig(pool='token_gap'), {}, "has no pool 'token_gap'"),
    ('timm', config.ViTConfig(pre_logits_size=8), {}, 'no layer between pooling and head'),
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
  (tmp_path / 'notes.txt').write_text('mine')
  with pytest.raises(UserError, match='not empty'):
    write_folder(make_pretrained(config.ViTConfig()), tmp_path)


# Bad folders: what is done to a good one, and what must be said.


def _change_config(**changes):
  def damage(folder: pathlib.Path) -> None:
    path = folder / 'config.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))

  return damage


def _change_tensors(change):
  def damage(folder: pathlib.Path) -> None:
    tensors = tensors_in(folder)
    change(tensors)
    safetensors_numpy.save_file(tensors, folder / 'model.safetensors')

  return damage


def _truncate(folder: pathlib.Path) -> None:
  path = folder / 'model.safetensors'
  path.write_bytes(path.read_bytes()[:-1000])


def _with_nan(tensors) -> None:
  tensors['vit.layernorm.weight'][3] = np.nan


def _of_integers(tensors) -> None:
  tensors['vit.layernorm.weight'] = np.zeros(32, np.int32)


def _to_pickle(folder: pathlib.Path) -> None:
  (folder / 'model.safetensors').rename(folder / 'pytorch_model.bin')


DAMAGES = {
  'no config': (lambda folder: (folder / 'config.json').unlink(), 'has no config.json; get it'),
  'no tensors': (lambda folder: (folder / 'model.safetensors').unlink(), 'has no model.safetensors'),
  'a pickle': (_to_pickle, r'pytorch_model\.bin, a pickle.*save_pretrained'),
  'cut short': (_truncate, 'cut short or no safetensors file'),
  'text': (lambda folder: (folder / 'model.safetensors').write_text('<html>' * 9), 'no safetensors file'),
  'config no JSON': (lambda folder: (folder / 'config.json').write_text('<html>'), 'cannot be read as JSON'),
  'config a list': (lambda folder: (folder / 'config.json').write_text('[]'), 'not a JSON object'),
  'another model': (
    _change_config(model_type='swin'),
    "'swin', which vit_jax does not have; of folders it reads .*vit, deit, dinov2",
  ),
  'ReLU': (_change_config(hidden_act='relu'), "hidden_act 'relu'"),
  'a size of text': (_change_config(hidden_size='32'), "hidden_size '32', which must be a positive integer"),
  'a long patch': (_change_config(patch_size=[8, 4]), 'patches of 8 x 4'),
  'fewer blocks': (
    _change_config(num_hidden_layers=2),
    r'encoder\.layer\.2\..* \(and 15 more\) that no model',
  ),
  'more blocks': (_change_config(num_hidden_layers=4), r'no tensor vit\.encoder\.layer\.3\..*and 15 more'),
  'another size': (
    _change_config(image_size=24),
    r'position_embeddings of shape \(1, 9, 32\).*\(1, 10, 32\)',
  ),
  'names': (_change_config(id2label={'0': 'a'}), 'head of 5 classes, and id2label'),
  'missing': (
    _change_tensors(lambda tensors: tensors.pop('vit.layernorm.bias')),
    r'no tensor vit\.layernorm\.bias, which',
  ),
  'extra': (
    _change_tensors(lambda tensors: tensors.update(gate=np.zeros(3, np.float32))),
    'has a tensor gate that no model of its kind has',
  ),
  'wrong shape': (
    _change_tensors(lambda tensors: tensors.update({'vit.layernorm.bias': np.zeros(31, np.float32)})),
    r'vit\.layernorm\.bias of shape \(31,\)',
  ),
  'NaN': (_change_tensors(_with_nan), r'NaN or infinite values in vit\.layernorm\.weight'),
  'integers': (_change_tensors(_of_integers), r'vit\.layernorm\.weight as I32'),
}


@pytest.fixture(scope='module')
def sound(tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp('sound')
  make_peer('vit').save_pretrained(folder)
  return folder


@pytest.mark.parametrize('name', DAMAGES)
def test_bad_folder_is_one_sentence(name, sound, tmp_path):
  damage, words = DAMAGES[name]
  folder = tmp_path / 'bad'
  shutil.copytree(sound, folder)
  damage(folder)
  with pytest.raises(UserError, match=words) as error:
    read(folder)
  assert str(error.value).endswith('.') and '\n' not in str(error.value)


def test_bad_processor_is_one_sentence(sound, tmp_path):
  folder = tmp_path / 'bad'
  shutil.copytree(sound, folder)
  for changes, words in (
    ({'resample': 9}, 'asks for resample 9'),
    ({'size': {'longest_edge': 3}}, 'has the size'),
    ({'size': {'shortest_edge': 3}}, 'without do_center_crop'),
    ({'image_mean': [0.5, 0.5]}, 'must be 3 numbers'),
    ({'do_resize': False}, 'do_resize false'),
  ):
    (folder / 'preprocessor_config.json').write_text(json.dumps(changes))
    with pytest.raises(UserError, match=words):
      read(folder)


def test_missing_folder_is_one_sentence(tmp_path):
  with pytest.raises(UserError, match='There is no checkpoint'):
    read(tmp_path / 'nowhere')


def test_without_safetensors_the_extra_is_named(sound, monkeypatch):
  monkeypatch.setitem(sys.modules, 'safetensors', None)
  with pytest.raises(UserError, match=r'vit_jax\[huggingface\]'):
    read(sound)


def test_the_package_never_imports_torch():
  program = (
    'import sys; from vit_jax.pretrained import huggingface; '
    'sys.exit(any(name in sys.modules for name in ("torch", "safetensors", "transformers")))'
  )
  assert subprocess.run([sys.executable, '-c', program], check=False).returncode == 0
