"""Layer-wise decay of the learning rate against timm's: here, where conftest.py lets timm be imported."""

import numpy as np
import pytest

from vit_jax import config as c
from vit_jax.foundation import pytrees
from vit_jax.models.base import Architecture
from vit_jax.training import optimizer as optimizer_lib


@pytest.mark.slow
@pytest.mark.parametrize('pooled', [False, True], ids=['class token', 'MAE'])
def test_layer_decay_gives_each_layer_the_rate_that_timm_gives_it(pooled):
  """Its last norm has the rate of the last block; ours, as BEiT's and MAE's, that of the head."""
  timm = pytest.importorskip('timm', exc_type=ImportError)
  factory = pytest.importorskip('timm.optim._param_groups')
  of_timm = {'global_pool': 'avg', 'fc_norm': True} if pooled else {}
  peer = timm.create_model('vit_tiny_patch16_224', depth=3, num_classes=2, img_size=32, **of_timm)
  groups = factory.param_groups_layer_decay(peer, layer_decay=0.7)
  names = {id(leaf): name for name, leaf in peer.named_parameters()}
  theirs = {names[id(leaf)]: group['lr_scale'] for group in groups for leaf in group['params']}
  of_ours = {'pool': 'gap_patches', 'class_token': True, 'final_norm': 'pooled'} if pooled else {}
  model = c.ViTConfig(variant='custom', patch=16, width=192, mlp_dim=768, depth=3, heads=3, **of_ours)
  params = Architecture(model, (32, 32), 3, 2).shapes()
  ours = optimizer_lib.learning_rate_factors(c.OptimizerConfig(layer_decay=0.7), pytrees.unflatten(params))
  for path, name in {
    'patch_embedding/kernel': 'patch_embed.proj.weight',
    'class_token': 'cls_token',
    'position_embedding': 'pos_embed',
    'head/kernel': 'head.weight',
    'head/bias': 'head.bias',
  }.items():
    np.testing.assert_allclose(ours[path], theirs[name], rtol=1e-6)
  assert ours['pooled_norm/scale' if pooled else 'norm/scale'] == 1
  for path, name in {'attention/out/kernel': 'attn.proj.weight', 'mlp_norm/scale': 'norm2.weight'}.items():
    expected = [theirs[f'blocks.{block}.{name}'] for block in range(3)]
    np.testing.assert_allclose(ours[f'blocks/{path}'].ravel(), expected, rtol=1e-6)
