"""Folders of Hugging Face that are made to harm: case -> (what makes it, words of the sentence that it must end in)."""

import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

safetensors_numpy = pytest.importorskip('safetensors.numpy', reason="needs the extra 'huggingface'")

# What makes a case: (an empty folder of its own, the folder of sound checkpoints) -> the path to read.
Make = Callable[[pathlib.Path, pathlib.Path], pathlib.Path]


def copy_of(kind: str, folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
  """A copy of a sound checkpoint, without the checksum of its tensors."""
  copy = folder / kind
  shutil.copytree(sound / kind, copy)
  (copy / 'model.safetensors.sha256').unlink(missing_ok=True)
  return copy


def changed(kind: str, file: str = 'config.json', **changes: Any) -> Make:
  """Values of a JSON file replaced."""

  def make(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
    copy = copy_of(kind, folder, sound)
    values = json.loads((copy / file).read_text())
    (copy / file).write_text(json.dumps(values | changes))
    return copy

  return make


def timm_changed(section: str, kind: str = 'timm', **changes: Any) -> Make:
  """Values of a section of timm's config.json replaced."""

  def make(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
    copy = copy_of(kind, folder, sound)
    values = json.loads((copy / 'config.json').read_text())
    values[section] |= changes
    (copy / 'config.json').write_text(json.dumps(values))
    return copy

  return make


def text_in(kind: str, file: str, text: str) -> Make:
  """A file with another content."""

  def make(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
    copy = copy_of(kind, folder, sound)
    (copy / file).write_text(text)
    return copy

  return make


def replaced_by(kind: str, file: str, place: Callable[[pathlib.Path], None]) -> Make:
  """Something else in a file's place."""

  def make(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
    copy = copy_of(kind, folder, sound)
    (copy / file).unlink(missing_ok=True)
    place(copy / file)
    return copy

  return make


def endless(path: pathlib.Path) -> None:
  path.symlink_to('/dev/zero')


def large(path: pathlib.Path) -> None:
  with open(path, 'wb') as file:
    file.truncate(2**40)  # a sparse file


def tensors_changed(kind: str, change: Callable[[dict[str, np.ndarray]], Any]) -> Make:
  def make(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
    copy = copy_of(kind, folder, sound)
    tensors = safetensors_numpy.load_file(copy / 'model.safetensors')
    change(tensors)
    safetensors_numpy.save_file(tensors, copy / 'model.safetensors')
    return copy

  return make


def sharded(weight_map: Any) -> Make:
  """An index beside the tensors, which also lie outside of the folder."""

  def make(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
    copy = copy_of('vit', folder, sound)
    (copy / 'below').mkdir()
    shutil.copy(copy / 'model.safetensors', copy / 'below/inside.safetensors')
    (copy / 'model.safetensors').rename(folder / 'outside.safetensors')
    (copy / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': weight_map}))
    return copy

  return make


def index_alone(place: Callable[[pathlib.Path], Any]) -> Make:
  """An index, and no model.safetensors, which would be read in its place."""

  def make(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
    copy = copy_of('vit', folder, sound)
    (copy / 'model.safetensors').unlink()
    place(copy / 'model.safetensors.index.json')
    return copy

  return make


def same_tensors_twice(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
  copy = copy_of('vit', folder, sound)
  (copy / 'model.safetensors').rename(copy / 'first.safetensors')
  shutil.copy(copy / 'first.safetensors', copy / 'second.safetensors')
  names = {'a': 'first.safetensors', 'b': 'second.safetensors'}
  (copy / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': names}))
  return copy


def shape_of(name: str, *shape: int) -> Callable[[dict[str, np.ndarray]], None]:
  def change(tensors: dict[str, np.ndarray]) -> None:
    tensors[name] = np.zeros(shape, np.float32)

  return change


IMAGES = 'preprocessor_config.json'
DEEP = '[' * 100_000
NESTED = json.loads('[' * 400 + ']' * 400)
FOLDERS: dict[str, tuple[Make, str]] = {
  'a billion blocks': (changed('vit', num_hidden_layers=10**9), 'num_hidden_layers 1000000000, which must'),
  'a million blocks': (changed('vit', num_hidden_layers=10**6), 'a model of 1000000 blocks'),
  'no blocks': (changed('vit', num_hidden_layers=0), 'num_hidden_layers 0, which must'),
  'true blocks': (changed('vit', num_hidden_layers=True), 'num_hidden_layers True'),
  'a million wide': (changed('vit', hidden_size=10**6), 'of shape'),
  'a number of 4,000 digits': (changed('vit', hidden_size=10**4000), 'hidden_size'),
  'a million heads': (changed('vit', num_attention_heads=10**6), 'does not divide into'),
  'images of a million pixels': (changed('vit', image_size=10**6), 'of shape'),
  'patches of a million pixels': (changed('vit', patch_size=10**6), 'does not divide into patches'),
  'a million channels': (changed('vit', num_channels=10**6), 'must be 1000000 numbers'),
  'an epsilon that is no number': (changed('vit', layer_norm_eps=float('nan')), 'layer_norm_eps nan'),
  'an epsilon below zero': (changed('vit', layer_norm_eps=-1), 'layer_norm_eps -1'),
  'an epsilon of text': (changed('vit', layer_norm_eps='1e-6'), "layer_norm_eps '1e-6'"),
  'an activation that is a list': (changed('vit', hidden_act=[]), r'hidden_act \[\]'),
  'a bias that is a text': (changed('vit', qkv_bias='no'), "qkv_bias 'no', which must be true or false"),
  'a kind that is a list': (changed('vit', model_type=['vit']), 'model_type'),
  'a kind that is deep': (changed('vit', model_type=NESTED), 'model_type'),
  'a size that is deep': (changed('vit', hidden_size=NESTED), 'hidden_size .* which must'),
  'an infinite ratio': (changed('dinov2', mlp_ratio=float('inf')), 'mlp_ratio inf'),
  'a million registers': (changed('dinov2', num_register_tokens=10**6), 'of shape'),
  'names that are a list': (changed('vit', id2label=['a']), 'id2label'),
  'names that are deep': (changed('vit', id2label={'0': NESTED, '1': 'b', '2': 'c'}), 'id2label'),
  'a deep config': (text_in('vit', 'config.json', DEEP), 'too deeply nested'),
  'a deep index': (index_alone(lambda path: path.write_text(DEEP)), 'too deeply nested'),
  'deep images': (text_in('vit', IMAGES, DEEP), 'too deeply nested'),
  'a config that is a pipe': (
    replaced_by('vit', 'config.json', os.mkfifo),
    'config.json .*not a regular',
  ),
  'a config without end': (
    replaced_by('vit', 'config.json', endless),
    'config.json .*not a regular',
  ),
  'a config of a terabyte': (
    replaced_by('vit', 'config.json', large),
    'config.json .*more than 64 MiB',
  ),
  'an index without end': (index_alone(endless), 'not a regular file'),
  'images that are a pipe': (replaced_by('vit', IMAGES, os.mkfifo), 'not a regular file'),
  'tensors that are a pipe': (replaced_by('vit', 'model.safetensors', os.mkfifo), 'has no model.safetensors'),
  'tensors without end': (replaced_by('vit', 'model.safetensors', endless), 'has no model.safetensors'),
  'tensors of a terabyte': (replaced_by('vit', 'model.safetensors', large), 'is not a checkpoint'),
  'a list of resampling': (changed('vit', IMAGES, resample=[]), r'asks for resample \[\]'),
  'resampling that is true': (changed('vit', IMAGES, resample=True), 'asks for resample True'),
  'resampling that is deep': (changed('vit', IMAGES, resample=NESTED), 'asks for resample'),
  'a factor of zero': (changed('vit', IMAGES, rescale_factor=0), 'rescale_factor 0, which must be a number'),
  'a factor that is no number': (changed('vit', IMAGES, rescale_factor=float('nan')), 'rescale_factor nan'),
  'a size of zero': (changed('vit', IMAGES, size=0), 'has the size 0'),
  'a size below zero': (changed('vit', IMAGES, size=[-1, 5]), r'has the size \[-1, 5\]'),
  'a size of a billion': (changed('vit', IMAGES, size=10**9), 'has the size 1000000000'),
  'a height of zero': (changed('vit', IMAGES, size={'height': 0, 'width': 5}), 'has the size'),
  'a size of text': (changed('vit', IMAGES, size='large'), "has the size 'large'"),
  'a deviation of zero': (changed('vit', IMAGES, image_std=0), 'image_std 0, which must be 3 numbers'),
  'deviations of zero': (changed('vit', IMAGES, image_std=[1, 0, 1]), r'image_std \[1, 0, 1\]'),
  'a mean of texts': (changed('vit', IMAGES, image_mean=['a', 'b', 'c']), 'image_mean'),
  'an infinite mean': (changed('vit', IMAGES, image_mean=float('inf')), 'image_mean inf'),
  'a file above the folder': (sharded({'a': '../outside.safetensors'}), 'has no weight_map'),
  'a file below the folder': (
    sharded({'a': 'below/inside.safetensors'}),
    'has no weight_map',
  ),
  'a file of the system': (sharded({'a': '/etc/passwd'}), 'has no weight_map'),
  'a file without a name': (sharded({'a': ''}), 'has no weight_map'),
  'a file with a zero in its name': (sharded({'a': 'a\0.safetensors'}), 'has no weight_map'),
  'a file with a long name': (sharded({'a': 'a' * 9999 + '.safetensors'}), 'has no weight_map'),
  'files that are a list': (sharded(['a']), 'has no weight_map'),
  'files that are numbers': (sharded({'a': 5}), 'has no weight_map'),
  'two files with the same tensors': (same_tensors_twice, 'which another file beside it holds too'),
  'a tensor with a line in its name': (
    tensors_changed('vit', shape_of('a\nb', 1)),
    r"holds a tensor called 'a\\nb'",
  ),
  'a tensor without elements': (tensors_changed('vit', shape_of('a', 3, 0)), 'which has no elements'),
  'heads that are a text': (timm_changed('model_args', num_heads='4'), "num_heads '4', which must"),
  'heads below zero': (timm_changed('model_args', num_heads=-4), 'num_heads -4'),
  'an image of zero pixels': (timm_changed('model_args', img_size=0), 'img_size 0'),
  'an image of three sides': (timm_changed('model_args', img_size=[1, 2, 3]), 'img_size'),
  'a pooling that is a list': (timm_changed('model_args', global_pool=['avg']), 'global_pool'),
  'a prefix that is a number': (timm_changed('model_args', pool_include_prefix=1), 'pool_include_prefix'),
  'a GELU that is an object': (timm_changed('model_args', act_layer={}), 'act_layer'),
  'timm: a deviation of zero': (timm_changed('pretrained_cfg', std=[0, 0, 0]), 'std'),
  'timm: a mean of one text': (timm_changed('pretrained_cfg', mean='half'), "mean 'half'"),
  'a share of the image below zero': (timm_changed('pretrained_cfg', crop_pct=-1), 'crop_pct -1'),
  'a share of the image of nothing': (timm_changed('pretrained_cfg', crop_pct=1e-300), 'crop_pct 1e-300'),
  'an unknown interpolation': (
    timm_changed('pretrained_cfg', interpolation='magic'),
    "interpolation 'magic'",
  ),
  'an unknown cropping': (timm_changed('pretrained_cfg', crop_mode='magic'), "crop_mode 'magic'"),
  'timm: names that are numbers': (timm_changed('pretrained_cfg', label_names=[1, 2, 3]), 'label_names'),
  'arguments that are a list': (changed('timm', model_args=[]), 'model_args'),
  'an architecture that is a number': (changed('timm', architecture=5), 'architecture 5'),
  'an architecture of a megabyte': (changed('timm', architecture='vit_' * 2**18), 'architecture'),
  'patches of one dimension': (
    tensors_changed('timm', shape_of('patch_embed.proj.weight', 32)),
    "that of a ViT of timm's has 4 dimensions",
  ),
  'positions of one dimension': (tensors_changed('timm', shape_of('pos_embed', 5)), 'has 3 dimensions'),
  'a billion times as wide': (
    changed('efficientnet', width_coefficient=10**9),
    'width_coefficient 1000000000',
  ),
  'a billion times as deep': (
    changed('efficientnet', depth_coefficient=10**9),
    'depth_coefficient 1000000000',
  ),
  'a width that is no number': (
    changed('efficientnet', width_coefficient=float('nan')),
    'width_coefficient nan',
  ),
  'a depth that is deep': (changed('efficientnet', depth_coefficient=NESTED), 'depth_coefficient'),
  'stages that are an object': (changed('efficientnet', num_block_repeats={}), 'num_block_repeats'),
  'a billion channels at the top': (changed('efficientnet', hidden_dim=10**9), 'hidden_dim 1000000000'),
  'a dropout of everything': (changed('efficientnet', dropout_rate=1), 'dropout_rate 1'),
  'a padding that is a text': (changed('efficientnet', depthwise_padding='3'), 'depthwise_padding'),
  'a statistic of two dimensions': (
    tensors_changed('efficientnet', shape_of('efficientnet.embeddings.batchnorm.running_var', 2, 2)),
    'running_var',
  ),
  'an EfficientNet b9': (
    changed('timm_efficientnet', architecture='tf_efficientnet_b9'),
    'tf_efficientnet_b9',
  ),
  'timm: an epsilon that is no number': (
    timm_changed('model_args', 'timm_efficientnet', bn_eps=float('nan')),
    'bn_eps nan',
  ),
  'timm: a billion channels': (timm_changed('model_args', 'timm_efficientnet', in_chans=10**9), '1000000000'),
  'timm: another pooling': (
    timm_changed('model_args', 'timm_efficientnet', global_pool='max'),
    "global_pool 'max'",
  ),
  'timm: images of a billion pixels': (
    timm_changed('pretrained_cfg', 'timm_efficientnet', input_size=[3, 10**9, 5]),
    'input_size',
  ),
  'timm: images of one number': (
    timm_changed('pretrained_cfg', 'timm_efficientnet', input_size=5),
    'input_size 5',
  ),
}
