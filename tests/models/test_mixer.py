"""The MLP-Mixer against NumPy, and against what the original code computed."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy_mixer
import original
import pytest
import tiny
from flax import nnx

from vit_jax import config, models
from vit_jax.errors import UserError
from vit_jax.models.dropout import Place

MIXER = {'heads': None, 'pool': 'gap', 'tokens_mlp_dim': 24}


@pytest.mark.parametrize('changes', [{}, {'gelu': 'erf'}, {'norm_epsilon': 0.01}, {'unroll': True}])
def test_forward_and_features_equal_numpy(changes):
  model = tiny.options(**MIXER, **changes)
  graphdef, params = tiny.build(model)
  x = tiny.images()
  expected = numpy_mixer.forward(params, x, gelu=model.gelu, epsilon=model.norm_epsilon)
  logits = tiny.apply(graphdef, params, x)
  assert logits.dtype == jnp.float32
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


def test_no_attention():
  graphdef, params = tiny.build(tiny.options(**MIXER))
  with pytest.raises(UserError, match='An MLP-Mixer has no attention to show; choose a Vision Transformer'):
    nnx.merge(graphdef, params).attention(tiny.images())


def test_stochastic_depth_equals_numpy():
  graphdef, params = tiny.build(tiny.options(**MIXER, depth=3, stochastic_depth=0.5))
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


def test_original_code(golden):
  model = tiny.options(patch=8, width=64, mlp_dim=128, depth=2, **MIXER | {'tokens_mlp_dim': 32})
  graphdef, own = tiny.build(model, image_size=(32, 32), num_classes=10)
  params, expected = original.mixer(golden / 'e_mixer.linen.npz'), original.outputs(golden, 'e_mixer')
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, own)

  def stages(params, x):
    mixer = nnx.merge(graphdef, params)
    grid = mixer.embed(x).reshape(-1, 4, 4, 64)
    return {'act/stem': grid, 'act/pre_head_layer_norm': mixer.features(x), 'logits': mixer(x)}

  with jax.default_matmul_precision('highest'):
    found = jax.jit(stages)(params, expected['images'])
  assert set(found) | {'images'} == set(expected)
  for stage, value in found.items():
    np.testing.assert_allclose(value, expected[stage], atol=1e-5, err_msg=stage)


COUNTS = {'Mixer-B/16': 59_880_472, 'Mixer-B/32': 60_293_428, 'Mixer-L/16': 208_196_168}


@pytest.mark.parametrize('variant', COUNTS)
def test_parameter_count(variant):
  assert tiny.count(config.ViTConfig(variant=variant, pool='gap'), 1000) == COUNTS[variant]


def test_initial_parameters():
  model = tiny.options(width=64, mlp_dim=128, head_bias=-10.0, **MIXER | {'tokens_mlp_dim': 96})
  mixer = models.build(model, image_size=(48, 32), channels=3, num_classes=7, rngs=nnx.Rngs(0))
  blocks = nnx.to_pure_dict(nnx.state(mixer))['blocks']
  for name, inputs in (('token_mlp', 96), ('channel_mlp', 64)):
    kernel = blocks[name]['dense_in']['kernel']
    assert kernel.shape[1] == inputs and float(kernel.std()) == pytest.approx(inputs**-0.5, rel=0.05)
    assert not blocks[name]['dense_in']['bias'].any() and not blocks[name]['dense_out']['bias'].any()
  logits = mixer(jnp.ones((1, 48, 32, 3)))
  np.testing.assert_array_equal(logits, np.full((1, 7), -10.0))


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'pool': 'token'}, "pool is 'token'; an MLP-Mixer has 'gap'"),
    ({'heads': 4}, 'heads is 4, which an MLP-Mixer does not have'),
    ({'dropout': 0.1}, 'dropout is 0.1'),
    ({'class_token': True}, 'class_token is True'),
    ({'stem_blocks': ()}, r'stem_blocks is \(\)'),
  ],
)
def test_options_that_would_do_nothing(changes, message):
  tiny.build(tiny.options(**MIXER | {'class_token': False}))
  with pytest.raises(UserError, match=message):
    tiny.build(tiny.options(**MIXER | changes))
