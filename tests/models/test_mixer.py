"""The MLP-Mixer against NumPy; against what the original code computed: tests/pretrained/test_released.py."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpy_mixer
import pytest
import tiny
from flax import nnx

from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.models.dropout import Place


@pytest.mark.slow
@pytest.mark.parametrize(
  'changes',
  [
    *({}, {'activation': 'gelu'}, {'norm_epsilon': 0.01}, {'unroll': True}),
    {'token_mixing': 'linear', 'norm': 'affine', 'layer_scale': 0.1},
    {'token_mixing': 'gate'},
    {'mlp': 'swiglu', 'activation': 'silu'},
  ],
)
def test_forward_and_features_equal_numpy(changes):
  model = tiny.mixer(**changes)
  graphdef, params = tiny.build(model)
  x = tiny.images()
  options = {'norm': numpy_mixer.affine} if model.norm == 'affine' else {}
  options |= {'activation': model.activation, 'epsilon': model.norm_epsilon}
  expected = numpy_mixer.forward(params, x, **options)
  logits = tiny.apply(graphdef, params, x)
  chex.assert_type(logits, jnp.float32)
  np.testing.assert_allclose(logits, expected['logits'], atol=1e-5)
  mixer = nnx.merge(graphdef, params)
  with jax.default_matmul_precision('highest'):
    np.testing.assert_allclose(mixer.embed(x), expected['patches'], atol=1e-5)
    for layer, tokens in [
      *enumerate(expected['blocks']),
      (None, expected['tokens']),
      (-1, expected['tokens']),
    ]:
      np.testing.assert_allclose(mixer.features(x, layer=layer), tokens, atol=1e-5)


@pytest.mark.parametrize(
  ('method', 'size'), [('__call__', (16, 12)), ('features', (8, 12)), ('hidden_states', (9, 9))]
)
def test_images_of_another_size_are_refused_also_where_they_have_as_many_patches(method, size):
  network = nnx.merge(*tiny.build(tiny.mixer(), image_size=(12, 8)))
  with pytest.raises(UserError, match=r'it was built for, \(12, 8\), and these are .*; resize them\.$'):
    getattr(network, method)(tiny.images(image_size=size))


def test_stochastic_depth_equals_numpy():
  graphdef, params = tiny.build(tiny.mixer(depth=3, stochastic_depth=0.5))
  x, keys = tiny.images(), tiny.keys()

  def skip(place, layer, branch):
    rate = 0.5 * layer / 2
    keep = [
      jax.random.bernoulli(jax.random.fold_in(jax.random.fold_in(key, layer), Place[place.upper()]), 1 - rate)
      for key in keys
    ]
    return branch * np.reshape(keep, (-1, 1, 1)) / (1 - rate)

  expected = numpy_mixer.forward(params, x, skip=skip)['logits']
  assert abs(expected - numpy_mixer.forward(params, x)['logits']).max() > 0.01
  np.testing.assert_allclose(tiny.apply(graphdef, params, x, keys), expected, atol=1e-5)


@pytest.mark.slow
def test_initial_parameters_have_the_papers_distributions():
  model = tiny.mixer(width=64, mlp_dim=128, head_bias=-10.0, tokens_mlp_dim=96)
  mixer = Architecture(model, (48, 32), 3, 7).build(nnx.Rngs(0))
  blocks = nnx.to_pure_dict(nnx.state(mixer))['blocks']
  for name, inputs in (('token_mlp', 96), ('channel_mlp', 64)):
    kernel = blocks[name]['dense_in']['kernel']
    assert kernel.shape[1] == inputs and float(kernel.std()) == pytest.approx(inputs**-0.5, rel=0.05)
    assert not blocks[name]['dense_in']['bias'].any() and not blocks[name]['dense_out']['bias'].any()
  logits = mixer(jnp.ones((1, 48, 32, 3)))
  np.testing.assert_array_equal(logits, np.full((1, 7), -10.0))
