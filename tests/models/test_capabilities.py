"""What only some models have: a model is asked by its members and its options, never by its class."""

import jax
import pytest
import tiny
from flax import nnx

from vit_jax.evaluation import features
from vit_jax.foundation.errors import UserError
from vit_jax.models import capabilities


@pytest.mark.parametrize('model', [tiny.mixer(), tiny.resnet(), tiny.efficientnet()], ids=lambda m: m.title)
def test_models_without_tokens_of_their_own_pool_by_the_mean_alone(model):
  network = nnx.merge(*tiny.build(model))
  assert not isinstance(network, capabilities.Attends)
  assert not isinstance(model, capabilities.PretrainingOptions)
  assert capabilities.leading_tokens(network) == 0 and model.poolings == ('gap',)
  with pytest.raises(ValueError, match="pools by 'gap' only"):
    network.pool(jax.numpy.zeros((1, 4, 640)), 'token')
  last = model.num_layers - 1
  features.check(model, last, 'gap', 'option')
  with pytest.raises(UserError, match=f'choose a block from 0 to {last}'):
    features.check(model, last + 1, None, 'option')
  with pytest.raises(UserError, match="pool is 'token', which this model does not have; choose gap"):
    features.check(model, None, 'token', 'option')


@pytest.mark.parametrize('model', [tiny.resnet(), tiny.efficientnet()], ids=lambda m: m.title)
def test_convolutional_networks_have_neither_tokens_nor_positions(model):
  network = nnx.merge(*tiny.build(model))
  assert not isinstance(network, capabilities.HasTokens | capabilities.Positioned)
  assert model.grid((33, 40)) == tuple(-(-side // model.patch_pixels) for side in (33, 40))


def test_a_mixer_works_at_one_size_and_says_that_it_has_no_positions():
  mixer = nnx.merge(*tiny.build(tiny.mixer()))
  assert mixer.positions((12, 8)) is None and not mixer.config.any_image_size
  assert 'An MLP-Mixer has no position embedding' in mixer.without_positions()
