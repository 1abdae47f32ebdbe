"""Folders of Hugging Face that are made to harm: case -> (what makes it, words of the sentence that it must end in)."""

import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import safetensors.numpy

# What makes a case: (an empty folder of its own, the folder of sound checkpoints) -> the path to read.
Make = Callable[[pathlib.Path, pathlib.Path], pathlib.Path]


def folder_with(kind: str, change: Callable[[pathlib.Path], Any]) -> Make:
  """A copy of a sound checkpoint, without the checksum of its tensors, in which something is changed."""

  def make(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
    copy = folder / kind
    shutil.copytree(sound / kind, copy)
    (copy / 'model.safetensors.sha256').unlink(missing_ok=True)
    change(copy)
    return copy

  return make


def changed(kind: str, file: str = 'config.json', section: str | None = None, **changes: Any) -> Make:
  """Values of a JSON file, or of one of its sections, replaced."""

  def change(copy: pathlib.Path) -> None:
    values = json.loads((copy / file).read_text())
    (values if section is None else values[section]).update(changes)
    (copy / file).write_text(json.dumps(values))

  return folder_with(kind, change)


def replaced_by(file: str, place: Callable[[pathlib.Path], Any]) -> Make:
  """Something else in a file's place."""

  def change(copy: pathlib.Path) -> None:
    (copy / file).unlink(missing_ok=True)
    place(copy / file)

  return folder_with('vit', change)


def deep(path: pathlib.Path) -> None:
  path.write_text('[' * 100_000)


def endless(path: pathlib.Path) -> None:
  path.symlink_to('/dev/zero')


def large(path: pathlib.Path) -> None:
  path.touch()
  os.truncate(path, 2**40)  # a sparse file


def tensor(kind: str, name: str, *shape: int) -> Make:
  """A tensor added, or one in another shape."""

  def change(copy: pathlib.Path) -> None:
    tensors = safetensors.numpy.load_file(copy / 'model.safetensors')
    safetensors.numpy.save_file(tensors | {name: np.zeros(shape, np.float32)}, copy / 'model.safetensors')

  return folder_with(kind, change)


def sharded(weight_map: Any) -> Make:
  """An index in the place of the tensors, which lie outside of the folder and below it."""

  def change(copy: pathlib.Path) -> None:
    (copy / 'below').mkdir()
    shutil.copy(copy / 'model.safetensors', copy / 'below/inside.safetensors')
    (copy / 'model.safetensors').rename(copy.parent / 'outside.safetensors')
    (copy / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': weight_map}))

  return folder_with('vit', change)


def same_tensors_twice(copy: pathlib.Path) -> None:
  (copy / 'model.safetensors').rename(copy / 'first.safetensors')
  shutil.copy(copy / 'first.safetensors', copy / 'second.safetensors')
  names = {'a': 'first.safetensors', 'b': 'second.safetensors'}
  (copy / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': names}))


IMAGES = 'preprocessor_config.json'
NESTED = json.loads('[' * 400 + ']' * 400)
CASES: dict[str, tuple[Make, str]] = {
  'a billion blocks': (changed('vit', num_hidden_layers=10**9), 'num_hidden_layers 1000000000, which must'),
  'a million blocks': (changed('vit', num_hidden_layers=10**6), 'a model of 1000000 blocks'),
  'true blocks': (changed('vit', num_hidden_layers=True), 'num_hidden_layers True'),
  'a number of 4,000 digits': (changed('vit', hidden_size=10**4000), 'hidden_size'),
  'a million heads': (changed('vit', num_attention_heads=10**6), 'does not divide into'),
  'images of a million pixels': (changed('vit', image_size=10**6), 'of shape'),
  'patches of a million pixels': (changed('vit', patch_size=10**6), 'does not divide into patches'),
  'a million channels': (changed('vit', num_channels=10**6), 'must be 1000000 numbers'),
  'an epsilon that is no number': (changed('vit', layer_norm_eps=float('nan')), 'layer_norm_eps nan'),
  'an activation that is a list': (changed('vit', hidden_act=[]), r'hidden_act \[\]'),
  'a bias that is a text': (changed('vit', qkv_bias='no'), "qkv_bias 'no', which must be true or false"),
  'a kind that is deep': (changed('vit', model_type=NESTED), 'model_type'),
  'names that are deep': (changed('vit', id2label={'0': NESTED, '1': 'b', '2': 'c'}), 'id2label'),
  'names of half a character': (
    changed('vit', id2label={'0': '\ud800', '1': 'b', '2': 'c'}),
    'id2label .* must be an object of texts',
  ),
  'a kind of half a character': (changed('vit', model_type='\udfff'), 'model_type .* must be a short text'),
  'a deep config': (replaced_by('config.json', deep), 'too deeply nested'),
  'a config that is a pipe': (replaced_by('config.json', os.mkfifo), 'it is not a regular file'),
  'a config without end': (replaced_by('config.json', endless), 'it is not a regular file'),
  'a config of a terabyte': (replaced_by('config.json', large), 'it has more than 64 MiB'),
  'tensors without end': (replaced_by('model.safetensors', endless), 'has no model.safetensors'),
  'tensors of a terabyte': (replaced_by('model.safetensors', large), 'is not a checkpoint'),
  'resampling that is true': (changed('vit', IMAGES, resample=True), 'asks for resample True'),
  'a factor of zero': (changed('vit', IMAGES, rescale_factor=0), 'rescale_factor 0, which must be a number'),
  'a size below zero': (changed('vit', IMAGES, size=[-1, 5]), r'has the size \[-1, 5\]'),
  'a height of zero': (changed('vit', IMAGES, size={'height': 0, 'width': 5}), 'has the size'),
  'deviations of zero': (changed('vit', IMAGES, image_std=[1, 0, 1]), r'image_std \[1, 0, 1\]'),
  'a mean of texts': (changed('vit', IMAGES, image_mean=['a', 'b', 'c']), 'image_mean'),
  'a file above the folder': (sharded({'a': '../outside.safetensors'}), 'has no weight_map'),
  'a file below the folder': (sharded({'a': 'below/inside.safetensors'}), 'has no weight_map'),
  'a file of the system': (sharded({'a': '/etc/passwd'}), 'has no weight_map'),
  'a file with a zero in its name': (sharded({'a': 'a\0.safetensors'}), 'has no weight_map'),
  'files that are numbers': (sharded({'a': 5}), 'has no weight_map'),
  'the same tensors twice': (
    folder_with('vit', same_tensors_twice),
    'which another file beside it holds too',
  ),
  'a tensor with a line in its name': (tensor('vit', 'a\nb', 1), r"holds a tensor called 'a\\nb'"),
  'a tensor without elements': (tensor('vit', 'a', 3, 0), 'which has no elements'),
  'timm: an image of three sides': (changed('timm', section='model_args', img_size=[1, 2, 3]), 'img_size'),
  'timm: none of the image': (changed('timm', section='pretrained_cfg', crop_pct=1e-300), 'crop_pct 1e-300'),
  'timm: an unknown cropping': (changed('timm', section='pretrained_cfg', crop_mode='x'), "crop_mode 'x'"),
  'timm: names of numbers': (changed('timm', section='pretrained_cfg', label_names=[1, 2, 3]), 'label_names'),
  'timm: arguments that are a list': (changed('timm', model_args=[]), 'model_args'),
  'timm: a megabyte of a name': (changed('timm', architecture='vit_' * 2**18), 'architecture'),
  'timm: patches of one dimension': (
    tensor('timm', 'patch_embed.proj.weight', 32),
    "that of a model of timm's has 4 dimensions",
  ),
  'a billion times as wide': (changed('efficientnet', width_coefficient=10**9), 'width_coefficient 1000'),
  'stages that are an object': (changed('efficientnet', num_block_repeats={}), 'num_block_repeats'),
  'a billion channels at the top': (changed('efficientnet', hidden_dim=10**9), 'hidden_dim 1000000000'),
  'a statistic of two dimensions': (
    tensor('efficientnet', 'efficientnet.embeddings.batchnorm.running_var', 2, 2),
    'running_var',
  ),
  'timm: an unknown size': (
    changed('timm_efficientnet', architecture='tf_efficientnet_b9'),
    'efficientnet_b9',
  ),
  'timm: images of a billion pixels': (
    changed('timm_efficientnet', section='pretrained_cfg', input_size=[3, 10**9, 5]),
    'input_size',
  ),
}
