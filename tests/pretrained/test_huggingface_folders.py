"""How folders of Hugging Face prepare images, against transformers itself, and folders that are damaged."""

import functools
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import flax
import numpy as np
import pytest
from PIL import Image
from released_files import read, write_folder
from transformers_peers import (
  MLP,
  SIZES,
  TEXT,
  VISION,
  make_peer,
  safetensors_numpy,
  tensors_in,
  transformers,
)

from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import formats, preprocessor_config

pytestmark = pytest.mark.slow  # it compares with another framework


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


# Of each family one whose class AutoImageProcessor knows, and sizes that it has.
UNNAMED = {
  'aimv2_vision_model': ('Aimv2VisionModel', {**MLP, 'image_size': 16}),
  'beit': ('BeitModel', {**MLP, 'image_size': 16}),
  'bit': ('BitModel', {'embedding_size': 32, 'hidden_sizes': [128, 256], 'depths': [1, 1]}),
  'clip': ('CLIPModel', {'vision_config': VISION, 'text_config': TEXT, 'projection_dim': 8}),
  'data2vec-vision': ('Data2VecVisionModel', {**MLP, 'image_size': 16}),
  'deit': ('DeiTModel', {**MLP, 'image_size': 16}),
  'dinov2': ('Dinov2Model', {'mlp_ratio': 2, 'image_size': 16}),
  'efficientnet': ('EfficientNetModel', {'image_size': 16, 'width_coefficient': 1.0, 'hidden_dim': 1280}),
  'ijepa': ('IJepaModel', {**MLP, 'image_size': 16}),
  'metaclip_2': ('MetaClip2Model', {'vision_config': VISION, 'text_config': TEXT, 'projection_dim': 8}),
  'pixio': ('PixioModel', {'mlp_ratio': 2, 'image_size': 16}),
  'siglip': ('SiglipModel', {'vision_config': VISION, 'text_config': TEXT}),
  'vit_msn': ('ViTMSNModel', {**MLP, 'image_size': 16}),
}


@pytest.mark.parametrize('name', UNNAMED)
def test_file_that_names_no_processor_is_that_of_its_model(name, tmp_path):
  cls, options = UNNAMED[name]
  cls = getattr(transformers, cls)
  shared = {} if {'vision_config', 'embedding_size'} & options.keys() else SIZES
  cls(cls.config_class(**shared, **options)).save_pretrained(tmp_path)
  size = {'size': {'height': 16, 'width': 16}, 'crop_size': {'height': 16, 'width': 16}}
  (tmp_path / 'preprocessor_config.json').write_text(json.dumps(size))
  theirs = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend='pil')
  photographs = make_photographs()
  wanted = theirs(photographs, return_tensors='np')['pixel_values'].transpose(0, 2, 3, 1)
  found = formats.preprocess(tmp_path, image_size=(16, 16))
  np.testing.assert_allclose(found(photographs), wanted, atol=1e-5)


@pytest.mark.parametrize('beside', [{}, {'image_processor': {'image_mean': [0.48, 0.45, 0.4]}}])
def test_section_of_processor_config_comes_first(beside, tmp_path):
  processor = {'image_processor_type': 'ViTImageProcessor', 'size': {'height': 16, 'width': 32}}
  (tmp_path / 'preprocessor_config.json').write_text(json.dumps(processor | {'image_std': [0.1, 0.2, 0.3]}))
  beside = {name: processor | section for name, section in beside.items()}
  (tmp_path / 'processor_config.json').write_text(json.dumps({'processor_class': 'Mine'} | beside))
  theirs = transformers.ViTImageProcessorPil.from_pretrained(tmp_path)
  found, _ = preprocessor_config.read(tmp_path, image_size=None, channels=3, default={})
  photographs = make_photographs()
  wanted = theirs(photographs, return_tensors='np')['pixel_values'].transpose(0, 2, 3, 1)
  np.testing.assert_allclose(found(photographs), wanted, atol=1e-5)


def test_preprocessing_for_another_size_is_adapted_and_noted(tmp_path):
  make_peer('dinov2').save_pretrained(tmp_path)
  processor = {'size': {'shortest_edge': 10}, 'crop_size': {'height': 8, 'width': 8}, 'do_center_crop': True}
  processor |= {'image_processor_type': 'BitImageProcessor', 'resample': 3}
  (tmp_path / 'preprocessor_config.json').write_text(json.dumps(processor))
  pretrained = read(tmp_path)
  assert (pretrained.preprocess.size, pretrained.preprocess.shorter) == ((16, 16), 20)
  assert any('image_size=(8, 8)' in note for note in pretrained.notes)


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


DAMAGES = {
  'no config': (lambda folder: (folder / 'config.json').unlink(), 'has no config.json; get it'),
  'cut short': (_truncate, 'cut short or no safetensors file|is not a checkpoint'),
  'config no JSON': (lambda folder: (folder / 'config.json').write_text('<html>'), 'cannot be read as JSON'),
  'another model': (
    _change_config(model_type='swin'),
    "'swin', which vit_jax does not have; of folders it reads .*vit, deit, dinov2",
  ),
  'Mish': (_change_config(hidden_act='mish'), "hidden_act 'mish'"),
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
    ({'size': {'shortest_edge': 3}}, 'without do_center_crop'),
    ({'size': {'shortest_edge': 3, 'longest_edge': 9}}, 'has the size'),
    ({'crop_pct': 0.875}, 'has crop_pct 0.875'),
    ({'do_resize': False}, 'do_resize false'),
  ):
    (folder / 'preprocessor_config.json').write_text(json.dumps(changes))
    with pytest.raises(UserError, match=words):
      read(folder)


def test_the_package_never_imports_torch():
  program = (
    'import sys; from vit_jax.pretrained import huggingface; '
    'sys.exit(any(name in sys.modules for name in ("torch", "transformers", "huggingface_hub")))'
  )
  assert subprocess.run([sys.executable, '-c', program], check=False).returncode == 0


def test_code_of_a_folder_that_is_not_run_is_noted(sound, tmp_path):
  shutil.copytree(sound, tmp_path / 'own')
  _change_config(auto_map={'AutoModel': 'modeling_mine.RotaryViT'})(tmp_path / 'own')
  notes = [note for note in read(tmp_path / 'own').notes if 'auto_map' in note]
  assert len(notes) == 1 and 'which is not run' in notes[0]
  assert not any('auto_map' in note for note in read(sound).notes)


def test_line_that_a_file_of_flax_is_refused_with_makes_a_checkpoint(sound, tmp_path, monkeypatch):
  """Flax has kernels (inputs, outputs) and (height, width, inputs, outputs), and calls the weights of norms scales."""
  tensors = tensors_in(sound)
  nested = {}
  for name, array in tensors.items():
    kernel = name.endswith('.weight') and array.ndim > 1
    leaf = 'kernel' if kernel else 'scale' if name.endswith('.weight') else name.rpartition('.')[2]
    array = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T if kernel else array
    *path, _ = name.split('.')
    functools.reduce(lambda node, key: node.setdefault(key, {}), path, nested)[leaf] = array
  (tmp_path / 'flax_model.msgpack').write_bytes(flax.serialization.msgpack_serialize(nested))
  shutil.copy(sound / 'config.json', tmp_path)
  with pytest.raises(UserError, match=r'flax_model\.msgpack, a file of Flax, which') as error:
    read(tmp_path)
  program, arguments = re.search(r'python -c "(.*)" (.*) makes ', str(error.value)).groups()
  monkeypatch.setattr(sys, 'argv', ['-c', *shlex.split(arguments)])
  exec(program, {})
  again = tensors_in(tmp_path)
  assert again.keys() == tensors.keys()
  for name, array in tensors.items():
    np.testing.assert_array_equal(again[name], array)
