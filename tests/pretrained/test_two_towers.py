"""Two towers against transformers and OpenCLIP: losses of folders that are read whole, and folders written again."""

import importlib.util
import types

import jax
import numpy as np
import pytest
from flax import nnx
from released_files import read
from transformers_peers import TEXT, VISION, load_whole, make_images, randomise, to_torch, torch, transformers

from vit_jax import config as c
from vit_jax.objectives import contrastive
from vit_jax.pretrained import formats
from vit_jax.pretrained.base import FORMATS

pytestmark = pytest.mark.slow  # it compares with another framework

DEEP = {**TEXT, 'num_hidden_layers': 3}
CLIP = {'vision_config': VISION, 'projection_dim': 24}
PEERS = {
  'siglip': ('SiglipModel', {'vision_config': VISION, 'text_config': DEEP}),
  'clip': ('CLIPModel', {**CLIP, 'text_config': {**DEEP, 'eos_token_id': 5}}),
  'clip by argmax': ('CLIPModel', {**CLIP, 'text_config': {**DEEP, 'eos_token_id': 2}}),
}


def losses_of_open_clip() -> types.ModuleType:
  """OpenCLIP's file of losses by itself: the package imports torchvision."""
  package = importlib.util.find_spec('open_clip')
  if package is None:
    pytest.skip('needs open_clip_torch')
  spec = importlib.util.spec_from_file_location('losses', f'{package.submodule_search_locations[0]}/loss.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.mark.parametrize('loss', ['sigmoid', 'softmax'])
def test_the_losses_are_those_of_open_clip(loss):
  rng = np.random.default_rng(0)
  sides = rng.standard_normal((2, 24, 20))
  images, texts = np.float32(sides / np.linalg.norm(sides, axis=-1, keepdims=True))
  theirs = losses_of_open_clip()
  inputs = torch.from_numpy(images), torch.from_numpy(texts), torch.tensor(12.0)
  if loss == 'sigmoid':
    ours = contrastive.sigmoid_loss(images, texts, 12.0, -9.0, None)
    expected = theirs.SigLipLoss()(*inputs, torch.tensor(-9.0))
  else:
    ours, expected = contrastive.softmax_loss(images, texts, 12.0), theirs.ClipLoss()(*inputs)
  np.testing.assert_allclose(ours, expected.item(), rtol=1e-6)


@pytest.mark.parametrize('name', PEERS)
def test_both_towers_of_a_folder_have_the_loss_of_transformers_and_are_written_again(name, tmp_path):
  cls, options = PEERS[name]
  cls = getattr(transformers, cls)
  torch.manual_seed(0)
  peer = randomise(cls(cls.config_class(**options)), 0).eval()
  peer.save_pretrained(tmp_path / 'peer')

  whole = formats.read(tmp_path / 'peer', pretraining=True)
  assert isinstance(whole.architecture.model, c.TwoTowersConfig)
  assert not any('left out' in note for note in whole.notes)
  images = make_images(whole)
  numbers = np.random.default_rng(0).integers(6, 18, (len(images), 8), np.int32)
  end = {'siglip': 3, 'clip': 5, 'clip by argmax': 19}[name]
  for row, place in enumerate(range(7, 7 - len(images), -1)):
    numbers[row, place:] = end

  def loss_of(model):
    inputs = {'pixel_values': to_torch(images), 'input_ids': torch.from_numpy(numbers).long()}
    with torch.no_grad():
      return model(**inputs, return_loss=True).loss.item()

  objective = c.ContrastiveObjective(loss='sigmoid' if name == 'siglip' else 'softmax')
  network = nnx.merge(whole.architecture.graph_and_shapes()[0], whole.params)
  batch = {'image': images, 'text': numbers}
  with jax.default_matmul_precision('highest'):
    loss, _ = objective.loss_and_metrics(network, batch, None, c.DataConfig())
  np.testing.assert_allclose(loss, loss_of(peer), rtol=2e-6)

  FORMATS[name.partition(' ')[0]]().write(whole, tmp_path / 'written')
  again = load_whole(cls, tmp_path / 'written')
  for (key, theirs), (_, ours) in zip(peer.named_parameters(), again.named_parameters(), strict=True):
    np.testing.assert_array_equal(ours.detach(), theirs.detach(), err_msg=key)
  np.testing.assert_allclose(loss_of(again), loss_of(peer), rtol=1e-6)
  alone = read(tmp_path / 'written')  # as the image tower, by those who do not ask for both
  jax.tree.map(np.testing.assert_array_equal, alone.params, read(tmp_path / 'peer').params)
