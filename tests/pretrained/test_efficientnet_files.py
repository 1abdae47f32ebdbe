"""EfficientNets of transformers against transformers itself, and timm's by the names that timm publishes."""

import json

import jax
import numpy as np
import pytest
from flax import nnx
from released_files import read, write, write_run

import vit_jax
from vit_jax import config, pytrees
from vit_jax.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.models.efficientnet import VARIANTS, rounded_channels
from vit_jax.pretrained.timm_efficientnet import TimmEfficientNetFormat
from vit_jax.pretrained.transformers_efficientnet import EfficientNetFormat

REASON = "needs the extra 'peers' (pip install -e '.[peers]')"
torch = pytest.importorskip('torch', reason=REASON)
transformers = pytest.importorskip('transformers', reason=REASON)
pytest.importorskip('safetensors', reason=REASON)
torch.set_num_threads(1)

TINY = 0.5, 0.3  # the multipliers: eight blocks
# transformers pads evenly in these blocks, for images of 40 and of 64 pixels.
PADDING = {40: [3, 5], 64: []}


def peer_config(width: float, depth: float, **options):
  """The config of an EfficientNet of transformers."""
  options = {'image_size': 64, 'num_labels': 5} | options
  return transformers.EfficientNetConfig(
    width_coefficient=width,
    depth_coefficient=depth,
    hidden_dim=rounded_channels(1280, width),
    depthwise_padding=PADDING.get(options['image_size'], []),
    **options,
  )


def make_peer(width: float, depth: float, cls: str = 'EfficientNetForImageClassification', **options):
  """One of random parameters and random running statistics, whose activations neither vanish nor explode."""
  torch.manual_seed(0)
  peer = getattr(transformers, cls)(peer_config(width, depth, **options)).eval()
  with torch.no_grad():
    for name, tensor in peer.state_dict().items():
      if name.endswith('num_batches_tracked'):
        tensor.fill_(7)
        continue
      noise = torch.randn(tensor.shape)
      if tensor.ndim > 1:
        tensor.copy_(noise * (2 / tensor[0].numel()) ** 0.5)
      elif name.endswith('running_var'):
        tensor.copy_(noise.abs() + 0.5)
      else:
        norm_scale = '_conv' not in name and name.endswith('weight')
        tensor.copy_(0.2 * noise + norm_scale)
  return peer


def make_images(size: tuple[int, int], batch: int = 2) -> np.ndarray:
  return np.random.default_rng(0).uniform(-1, 1, (batch, *size, 3)).astype(np.float32)


def to_torch(images: np.ndarray):
  return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())


def assert_equals(folder, peer, size: tuple[int, int]) -> None:
  """The number of parameters, the last feature map and the logits of a folder are those of transformers."""
  model = vit_jax.load(folder).module
  count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
  assert count == sum(parameter.numel() for parameter in peer.parameters())
  images = make_images(size)
  with torch.no_grad():
    theirs = peer(to_torch(images), output_hidden_states=True)
  graphdef, state = nnx.split(model)

  def found(state, x):
    model = nnx.merge(graphdef, state)
    return model.features(x, 3), model(x)

  with jax.default_matmul_precision('highest'):
    cells, logits = jax.jit(found)(state, images)
  other = theirs.hidden_states[4].permute(0, 2, 3, 1).flatten(1, 2)
  np.testing.assert_allclose(cells, other, atol=1e-4 * float(other.abs().max()))
  assert float(theirs.logits.std()) > 0.1
  np.testing.assert_allclose(logits, theirs.logits, atol=1e-4)


@pytest.mark.parametrize(
  ('multipliers', 'image_size'),
  [
    pytest.param(TINY, 40, id='tiny, padded evenly'),
    pytest.param((1.0, 1.0), 64, id='B0'),
    pytest.param((1.0, 1.1), 64, id='B1', marks=pytest.mark.nightly),
    pytest.param((1.1, 1.2), 64, id='B2', marks=pytest.mark.nightly),
    pytest.param((1.2, 1.4), 64, id='B3', marks=pytest.mark.nightly),
    pytest.param((4.3, 0.3), 64, id="L2's widths", marks=pytest.mark.nightly),
    pytest.param((0.5, 5.3), 64, id="L2's depths", marks=pytest.mark.nightly),
  ],
)
def test_logits_of_random_parameters_and_statistics_are_transformers(multipliers, image_size, tmp_path):
  peer = make_peer(*multipliers, image_size=image_size)
  peer.save_pretrained(tmp_path)
  assert_equals(tmp_path, peer, (image_size, image_size))
