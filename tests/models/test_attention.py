"""`Model.attention` against NumPy, and that the logits do not pay for it."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpy_vit
import pytest
import tiny
from flax import nnx

from vit_jax.models.attention import Attention, grouped

CASES = {
  'token': {},
  'registers': {'register_tokens': 2, 'layer_scale': 0.1},
  'gap': {'pool': 'gap'},
  'map': {'pool': 'map'},
  'erf': {'gelu': 'erf'},
  'unrolled': {'unroll': True},
  'rematerialised': {'remat': 'dots'},
  'with_dropout': {'dropout': 0.5, 'attention_dropout': 0.5, 'stochastic_depth': 0.5},
}


def attention(graphdef, params, x):
  call = jax.jit(lambda params, x: nnx.merge(graphdef, params).attention(x))
  with jax.default_matmul_precision('highest'):
    return call(params, x)


def in_numpy(params, x, **options):
  """(L, B, H, N, N) float64."""
  seen = []

  def look(place, layer, weights):
    if place == 'attention_weights':
      seen.append(weights)
    return weights

  numpy_vit.forward(params, x, drop=look, **options)
  return np.stack(seen)


@pytest.mark.parametrize('case', CASES)
def test_weights_equal_numpy(case):
  model = tiny.options(depth=3, **CASES[case])
  graphdef, params = tiny.build(model)
  # Weights far from equal ones, in which a wrong head, layer or axis is seen.
  params['blocks']['attention']['query']['kernel'] *= 4
  x = tiny.images()
  weights = attention(graphdef, params, x)
  tokens = {'registers': 9, 'gap': 6, 'map': 6}.get(case, 7)
  chex.assert_type(weights, jnp.float32)
  chex.assert_shape(weights, (3, 3, 4, tokens, tokens))
  np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
  expected = in_numpy(params, x, pool=model.pool, gelu=model.gelu)
  np.testing.assert_allclose(weights, expected, atol=1e-5)
  assert expected.std() > 0.1


def test_weights_of_bfloat16_are_float32():
  graphdef, params = tiny.build(tiny.options(dtype='bfloat16'))
  weights = attention(graphdef, params, tiny.images())
  chex.assert_type(weights, jnp.float32)
  np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
  np.testing.assert_allclose(weights, in_numpy(params, tiny.images()), atol=0.02)


def test_the_logits_compute_no_weights_to_look_at():
  """The scan of the logits yields tokens only; that of `attention` yields the weights too."""
  graphdef, params = tiny.build()
  x = tiny.images()
  model = nnx.merge(graphdef, params)
  scans = {}
  for name, function in (('logits', model), ('attention', model.attention)):
    equations = [equation for equation, _ in tiny.equations(jax.make_jaxpr(function)(x).jaxpr)]
    scans[name] = [
      [out.aval.shape for out in equation.outvars]
      for equation in equations
      if equation.primitive.name == 'scan'
    ]
  assert scans == {'logits': [[(3, 7, 32)]], 'attention': [[(3, 7, 32), (2, 3, 4, 7, 7)]]}
  before = tiny.apply(graphdef, params, x)
  model.attention(x)
  np.testing.assert_array_equal(tiny.apply(*nnx.split(model), x), before)


@pytest.mark.parametrize('tokens', [1, 128, 129, 136, 137, 257])
def test_groups_of_tokens_change_nothing(tokens):
  layer = Attention(16, 2, rngs=nnx.Rngs(0))
  sizes = [part.shape[1] for part in grouped(jnp.zeros((1, tokens, 16)))]
  assert sizes == {129: [128, 1], 136: [128, 8], 257: [256, 1]}.get(tokens, [tokens])
  x, weights = np.random.default_rng(0).normal(size=(2, 2, tokens, 16)).astype(np.float32)
  graphdef, params = nnx.split(layer)

  def plain(params, x):
    layer = nnx.merge(graphdef, params)
    return layer.out(jnp.einsum('bhqn,bnhd->bqhd', layer.weights(x, x), layer.value(x)))

  def loss(function):
    return lambda params, x: (function(params, x) * weights).sum()

  with jax.default_matmul_precision('highest'):
    ours = jax.value_and_grad(loss(lambda params, x: nnx.merge(graphdef, params)(x, x)), (0, 1))(params, x)
    expected = jax.value_and_grad(loss(plain), (0, 1))(params, x)
  chex.assert_trees_all_close(ours, expected, rtol=1e-4, atol=2e-4)
