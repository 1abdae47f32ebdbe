"""BiT's published .npz, and its folders of Hugging Face against transformers itself."""

import json
import logging

import jax
import numpy as np
import pytest
from flax import nnx
from released_files import read, write, write_run

import vit_jax
from vit_jax import config
from vit_jax.foundation.errors import UserError
from vit_jax.loaded_model import LoadedModel
from vit_jax.models.base import Architecture
from vit_jax.pretrained import formats
from vit_jax.pretrained.adapt import adapt
from vit_jax.pretrained.transformers_bit import stage_blocks

REASON = "needs the extra 'peers' (pip install -e '.[peers]')"
BLOCKS = (1, 2)


@pytest.fixture(scope='module')
def tensors() -> dict[str, np.ndarray]:
  """A file in the published naming, as the loader of 'Big Transfer' reads it (bit_pytorch/models.py)."""
  rng = np.random.default_rng(0)
  result = {}

  def add(name: str, *shape: int) -> None:
    result[f'resnet/{name}'] = rng.standard_normal(shape).astype(np.float32)

  add('root_block/standardized_conv2d/kernel', 7, 7, 3, 32)
  inputs = 32
  for block, units in enumerate(BLOCKS, start=1):
    width = 32 * 2 ** (block - 1)
    for unit in range(1, units + 1):
      at = f'block{block}/unit{unit:02d}'
      for part, size, ins, outs in (
        ('a', 1, inputs, width),
        ('b', 3, width, width),
        ('c', 1, width, 4 * width),
      ):
        add(f'{at}/{part}/standardized_conv2d/kernel', size, size, ins, outs)
        add(f'{at}/{part}/group_norm/gamma', ins)
        add(f'{at}/{part}/group_norm/beta', ins)
      if unit == 1:
        add(f'{at}/a/proj/standardized_conv2d/kernel', 1, 1, inputs, 4 * width)
      inputs = 4 * width
  add('group_norm/gamma', inputs)
  add('group_norm/beta', inputs)
  add('head/conv2d/kernel', 1, 1, inputs, 5)
  add('head/conv2d/bias', 5)
  return result


@pytest.fixture(scope='module')
def file(tensors, tmp_path_factory):
  path = tmp_path_factory.mktemp('bit') / 'BiT.npz'
  np.savez(path, **tensors)
  return path


def logits(loaded: LoadedModel, images: np.ndarray) -> np.ndarray:
  graphdef, params = nnx.split(loaded.module)
  call = jax.jit(lambda params, x: nnx.merge(graphdef, params)(x))
  with jax.default_matmul_precision('highest'):
    return np.asarray(call(params, images))


def test_architecture_is_read_off_the_names_and_shapes(file):
  pretrained = read(file)
  assert pretrained.architecture == Architecture(config.ResNetConfig('custom', BLOCKS, 32), (224, 224), 3, 5)
  assert pretrained.notes == ()
  assert pretrained.preprocess.mean == pretrained.preprocess.std == (0.5,)  # [-1, 1], as released
  assert formats.architecture(file) == pretrained.architecture
  assert read(file, image_size=(64, 96)).architecture.image_size == (64, 96)
  assert '1e-06' in read(file, norm_epsilon=1e-6).notes[0]


@pytest.mark.slow
def test_npz_to_run_and_back_keeps_every_bit(file, tensors, tmp_path):
  write_run(read(file), tmp_path / 'run')
  pretrained = read(tmp_path / 'run')
  assert write(pretrained, tmp_path / 'copy.npz') == ()
  with np.load(tmp_path / 'copy.npz') as copy:
    assert set(copy) == set(tensors)
    for name in copy:
      np.testing.assert_array_equal(copy[name], tensors[name], err_msg=name, strict=True)


@pytest.mark.slow
def test_head_resolution_and_channels_are_adapted(file, caplog):
  with caplog.at_level(logging.WARNING):
    model = vit_jax.load(file, num_classes=3, image_size=(33, 47))
  assert 'reinitialised: head/bias (3,), head/kernel (256, 3)' in caplog.text
  assert model.preprocess([np.zeros((9, 9, 3), np.uint8)]).shape == (1, 33, 47, 3)
  np.testing.assert_array_equal(logits(model, np.ones((1, 33, 47, 3), np.float32)), 0)
  pretrained = read(file)
  gray = Architecture(pretrained.architecture.model, (32, 32), 1, 5)
  arrays, report = adapt(pretrained, gray, config.InitConfig(reinitialise=()))
  kernel = pretrained.params['root']['kernel']
  np.testing.assert_allclose(arrays['root/kernel'], kernel.sum(axis=2, keepdims=True), rtol=1e-5)
  assert 'root/kernel (7, 7, 3, 32) → (7, 7, 1, 32)' in report.resized[0]


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (lambda t: [t.pop(n) for n in list(t) if 'block1' in n], 'lacks a stage of its ResNet'),
    (lambda t: t.pop('resnet/block2/unit01/b/group_norm/beta'), 'no tensor resnet/block2/unit01/b/group_'),
  ],
)
def test_file_that_fits_nothing_is_refused(tensors, tmp_path, change, message):
  changed = dict(tensors)
  change(changed)
  np.savez(tmp_path / 'x.npz', **changed)
  with pytest.raises(UserError, match=message):
    read(tmp_path / 'x.npz')


PEERS = {
  'small': ('BitForImageClassification', (1, 2), 32, (33, 40)),
  'four stages': ('BitForImageClassification', (1, 2, 1, 1), 32, (32, 32)),
  'model': ('BitModel', (2, 1, 1), 32, (40, 32)),
}


@pytest.fixture(scope='module')
def transformers():
  pytest.importorskip('torch', reason=REASON).set_num_threads(1)
  return pytest.importorskip('transformers', reason=REASON)


def save_peer(transformers, name: str, folder):
  """A model of transformers of random weights, saved."""
  model = make_peer(transformers, name)
  model.save_pretrained(folder)
  return model


def make_peer(transformers, name: str):
  """The model alone."""
  import torch

  cls, blocks, width, _ = PEERS[name]
  sizes = [4 * width * 2**stage for stage in range(len(blocks))]
  values = transformers.BitConfig(embedding_size=width, hidden_sizes=sizes, depths=list(blocks), num_labels=5)
  generator = torch.Generator().manual_seed(0)
  model = getattr(transformers, cls)(values)
  with torch.no_grad():
    for parameter in model.parameters():
      noise = torch.randn(parameter.shape, generator=generator)
      # Kernels; the head; scales and biases of norms.
      parameter.copy_({4: 0.1 * noise, 2: 0.02 * noise}.get(parameter.ndim, parameter + 0.2 * noise))
  return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize('name', PEERS)
def test_logits_and_hidden_states_are_those_of_transformers(name, transformers, tmp_path):
  import torch

  _, blocks, _, size = PEERS[name]
  peer = save_peer(transformers, name, tmp_path)
  model = vit_jax.load(tmp_path).module
  count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
  assert count == sum(parameter.numel() for parameter in peer.parameters())
  images = np.random.default_rng(0).uniform(-1, 1, (2, *size, 3)).astype(np.float32)
  with torch.no_grad():
    theirs = peer(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), output_hidden_states=True)
  ends = np.cumsum(blocks) - 1
  graphdef, params = nnx.split(model)

  def found(params, x):
    model = nnx.merge(graphdef, params)
    return [model.feature_map(x, int(layer)) for layer in ends], model.pool(model.features(x)), model(x)

  with jax.default_matmul_precision('highest'):
    maps, pooled, ours = jax.jit(found)(params, images)
  for ours_at, other in zip(maps, theirs.hidden_states[1:], strict=True):
    np.testing.assert_allclose(ours_at, other.permute(0, 2, 3, 1), atol=1e-4 * float(other.abs().max()))
  if name == 'model':
    np.testing.assert_allclose(pooled, theirs.pooler_output[..., 0, 0], atol=1e-4)
    assert ours.shape == (2, 0)
  else:
    np.testing.assert_allclose(ours, theirs.logits, atol=1e-4)


@pytest.fixture(scope='module')
def folder(transformers, tmp_path_factory):
  path = tmp_path_factory.mktemp('bit_folder')
  save_peer(transformers, 'small', path)
  return path


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'layer_type': 'bottleneck'}, "layer_type 'bottleneck', and vit_jax has ResNets with 'preactivation'"),
    ({'hidden_sizes': [128, 200]}, r'hidden_sizes \[128, 200\], and vit_jax has \[128, 256\]'),
    ({'depths': [1, 0]}, r'depths \[1, 0\], which must be positive'),
    ({'depths': [2, 2]}, 'has no tensor .*which its sizes call for'),
  ],
)
def test_folder_that_we_cannot_compute_is_refused(folder, tmp_path, changes, message):
  for source in folder.iterdir():
    (tmp_path / source.name).write_bytes(source.read_bytes())
  values = json.loads((tmp_path / 'config.json').read_text()) | changes
  (tmp_path / 'config.json').write_text(json.dumps(values))
  with pytest.raises(UserError, match=message):
    read(tmp_path)


def test_resnet_is_written_as_no_folder(folder):
  with pytest.raises(UserError, match='but not written'):
    formats.written_by('bit', read(folder))


def test_options_that_a_resnet_does_not_have_are_refused(file, folder):
  with pytest.raises(UserError, match='holds a ResNet, which has no activation; leave activation out'):
    read(file, activation='gelu')
  with pytest.raises(UserError, match='knows its activation; leave activation out'):
    read(folder, activation='gelu')
  assert read(folder, norm_epsilon=1e-6).architecture.model.norm_epsilon == 1e-6


def test_stages_are_counted_by_the_names_that_there_are():
  names = (
    'stages.0.blocks.0.conv1.weight',
    'stages.0.blocks.1.conv1.weight',
    'stages.1.blocks.0.conv1.weight',
  )
  assert stage_blocks((*names, 'stem.conv.weight')) == (2, 1)
  assert stage_blocks([f'backbone.{name}' for name in names], 'backbone.') == (2, 1)
  assert stage_blocks(['stages.999999999.blocks.0.conv1.weight']) == (0,)  # and is not counted up to
