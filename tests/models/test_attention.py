"""`Model.attention` against NumPy, that the logits do not pay for it, and which form of attention computes them."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpy_vit
import pytest
import tiny
from attention_reference import attention_in_float64
from flax import linen, nnx

from vit_jax.config import MeshConfig
from vit_jax.models.dropout import Place, dropout
from vit_jax.models.parts.attention import Attention, How, attend
from vit_jax.parallel import mesh as mesh_lib

CASES = {  # beside those of test_position.py: options, tokens
  'unrolled registers': ({'register_tokens': 2, 'layer_scale': 0.1, 'unroll': True}, 9),
  'map': ({'pool': 'map', 'activation': 'gelu'}, 6),
  'no dropout': ({'dropout': 0.5, 'attention_dropout': 0.5, 'stochastic_depth': 0.5, 'remat': 'dots'}, 7),
  'axial': ({'pool': 'gap', 'axial': True, 'mlp': 'local', 'qk_norm': True}, 6),
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


@pytest.mark.slow
@pytest.mark.parametrize('case', CASES)
def test_weights_equal_numpy(case):
  options, tokens = CASES[case]
  model = tiny.options(depth=3, **options)
  graphdef, params = tiny.build(model)
  # Weights far from equal ones, in which a wrong head, layer or axis is seen.
  blocks = params['blocks']
  for block in (blocks['row'], blocks['column']) if model.axial else (blocks,):
    block['attention']['query']['kernel'] *= 4
  x = tiny.images()
  weights = attention(graphdef, params, x)
  chex.assert_type(weights, jnp.float32)
  chex.assert_shape(weights, (3 * (1 + model.axial), 3, 4, tokens, tokens))
  np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
  expected = in_numpy(params, x, pool=model.pool, activation=model.activation)
  np.testing.assert_allclose(weights, expected, atol=1e-5)
  assert expected.std() > 0.1


def test_weights_of_bfloat16_are_float32():
  graphdef, params = tiny.build(tiny.options(dtype='bfloat16'))
  weights = attention(graphdef, params, tiny.images())
  chex.assert_type(weights, jnp.float32)
  np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
  np.testing.assert_allclose(weights, in_numpy(params, tiny.images()), atol=0.02)


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_layer_and_its_gradients_equal_those_of_the_formula():
  layer = Attention(16, 2, rngs=nnx.Rngs(0))
  x, weights = np.random.default_rng(0).normal(size=(2, 2, 129, 16)).astype(np.float32)
  graphdef, params = nnx.split(layer)

  def plain(params, x):
    layer = nnx.merge(graphdef, params)
    return layer.out(jnp.einsum('bhqn,bnhd->bqhd', layer.weights(x, x), layer.value(x)))

  def loss(function):
    return jax.jit(jax.value_and_grad(lambda params, x: (function(params, x) * weights).sum(), (0, 1)))

  with jax.default_matmul_precision('highest'):
    ours = loss(lambda params, x: nnx.merge(graphdef, params)(x, x))(params, x)
    expected = loss(plain)(params, x)
  chex.assert_trees_all_close(ours, expected, rtol=1e-4, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize('spread', [1, 3], ids=['logits of 1', 'logits of 9'])
def test_bfloat16_is_nearer_to_float64_than_attention_of_flax(spread):
  """Of the result and of three gradients in bfloat16, by norms; Flax (big_vision) rounds logits and softmax."""
  query, key, value, grad = np.random.default_rng(0).standard_normal((4, 2, 50, 2, 64))
  inputs = [jnp.asarray(x, jnp.bfloat16) for x in (spread * query, spread * key, value, grad)]
  expected = attention_in_float64(*inputs)

  def errors(attend):
    out, backward = jax.vjp(attend, *inputs[:3])
    found = [np.asarray(x, np.float64) for x in (out, *backward(inputs[3]))]
    return [np.linalg.norm(x - e) / np.linalg.norm(e) for x, e in zip(found, expected, strict=True)]

  ours = errors(lambda *qkv: attend(*qkv, how=How()))
  flax = errors(linen.dot_product_attention)
  # The mean of the weights' gradient is taken from the rounded result, as flash attention does.
  assert all(0 < error < 0.007 for error in ours), ours
  assert all(error < other < 0.03 for error, other in zip(ours, flax, strict=True)), (ours, flax)


@pytest.mark.parametrize('bias_of', [1, 3])
def test_gradients_of_bias_and_dropout_equal_those_of_the_formula(bias_of):
  """The masks are those that a weight matrix of ones shows; JAX derives the formula."""
  rng = np.random.default_rng(0)
  query, key, value, grad = rng.standard_normal((4, 3, 5, 2, 8)).astype(np.float32)
  bias = rng.standard_normal((bias_of, 2, 5, 5)).astype(np.float32)
  keys, how = tiny.keys(), How(dropout=0.4)
  masks = dropout(jnp.ones((3, 2, 5, 5)), 0.4, keys, Place.ATTENTION_WEIGHTS)

  def formula(query, key, value, bias):
    logits = jnp.einsum('bqhd,bnhd->bhqn', query, key) / math.sqrt(8) + bias
    return jnp.einsum('bhqn,bnhd->bqhd', jax.nn.softmax(logits) * masks, value)

  with jax.default_matmul_precision('highest'):
    ours, expected = (
      jax.jit(jax.value_and_grad(lambda *inputs, f=f: (f(*inputs) * grad).sum(), (0, 1, 2, 3)))(
        query, key, value, bias
      )
      for f in (lambda *inputs: attend(*inputs, keys, how=how), formula)
    )
  chex.assert_trees_all_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_outputs_of_the_heads_stay_split_by_examples():
  """Else the TPU compiler may split them as `fsdp` splits the kernel that they meet next, by heads."""
  sharding = mesh_lib.batch_sharding(mesh_lib.make_mesh(MeshConfig(fsdp=1), jax.devices()[:1]))
  layer = Attention(16, 4, how=How(sharding=sharding), rngs=nnx.Rngs(0))
  x = jnp.zeros((2, 5, 16))
  equations = jax.make_jaxpr(lambda x: layer(x, x))(x).eqns
  constraints = [e for e in equations if e.primitive.name == 'sharding_constraint']
  assert [(e.outvars[0].aval.shape, e.params['sharding'].spec[0]) for e in constraints] == [
    ((2, 5, 4, 4), sharding.spec[0])
  ]
