"""Maps of features for dense use: as timm's forward_intermediates and transformers' hidden states give them."""

import jax
import numpy as np
import pytest
from transformers_peers import VISION, images_of, randomise, to_torch, torch, transformers

import vit_jax

pytestmark = pytest.mark.slow  # it compares with other frameworks

timm = pytest.importorskip('timm', reason='needs timm, which needs torchvision', exc_type=ImportError)
LAYERS = [2, 0, -1, None]  # -1 and None: after the last norm


@pytest.mark.parametrize(
  'name',
  ['vit_small_patch14_reg4_dinov2', 'vit_base_patch16_clip_quickgelu_224', 'deit_tiny_distilled_patch16_224'],
)
def test_maps_are_those_of_timm_without_leading_tokens(name, tmp_path):
  patch = 14 if 'dinov2' in name else 16
  peer = timm.create_model(
    name, depth=3, embed_dim=48, num_heads=4, img_size=(2 * patch, 3 * patch), num_classes=0
  )
  randomise(peer, 0)
  from timm.models._hub import save_for_hf  # behind the skip

  sizes = {'depth': 3, 'embed_dim': 48, 'num_heads': 4, 'img_size': [2 * patch, 3 * patch]}
  save_for_hf(peer, tmp_path, model_args=sizes, safe_serialization=True)
  model = vit_jax.load(tmp_path, image_size=(2 * patch, 3 * patch))
  images = images_of((2 * patch, 3 * patch))
  for norm in (False, True):
    with torch.no_grad(), jax.default_matmul_precision('highest'):
      theirs = peer.forward_intermediates(
        to_torch(images), norm=norm, output_fmt='NLC', intermediates_only=True
      )
      last = peer.forward_features(to_torch(images))[:, -6:]
      maps = model.feature_maps(images, LAYERS, norm=norm)
      one = model.feature_maps(images, 2, norm=norm)
    assert [z.shape for z in maps] == [(2, 2, 3, 48)] * len(LAYERS)
    for ours, other in zip([*maps, one], [theirs[2], theirs[0], last, last, theirs[2]], strict=True):
      tolerance = 1e-4 * float(other.abs().max())
      np.testing.assert_allclose(ours.reshape(2, 6, 48), other.numpy(), atol=tolerance, rtol=0)


def test_maps_are_the_hidden_states_of_transformers(tmp_path):
  config = transformers.CLIPVisionConfig(**VISION | {'num_hidden_layers': 3})
  peer = randomise(transformers.CLIPVisionModel(config), 0)
  peer.save_pretrained(tmp_path)
  images = images_of((16, 16))
  with torch.no_grad(), jax.default_matmul_precision('highest'):
    theirs = peer(to_torch(images), output_hidden_states=True).hidden_states
    maps = vit_jax.load(tmp_path).feature_maps(images, (0, 1, 2))
  for ours, other in zip(maps, theirs[1:], strict=True):
    np.testing.assert_allclose(ours.reshape(2, 4, 32), other[:, 1:], atol=1e-4, rtol=0)
