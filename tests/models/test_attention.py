"""`Model.attention` against NumPy, that the logits do not pay for it, and which form of attention computes them."""

import math
import types

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
from vit_jax.models.parts.xla_attention import grouped, keeps_logits, sums, sums_by_one_product
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


@pytest.mark.parametrize(
  ('tokens', 'sizes'),
  [(1, [1]), (128, [128]), (129, [128, 1]), (136, [128, 8]), (137, [137]), (257, [256, 1])],
)
def test_tokens_beyond_whole_rows_are_a_group_of_their_own(tokens, sizes):
  assert [part.shape[1] for part in grouped(jnp.zeros((1, tokens, 16)))] == sizes


@pytest.mark.slow
@pytest.mark.parametrize('tokens', [1, 129])
def test_groups_of_tokens_change_nothing(tokens):
  layer = Attention(16, 2, rngs=nnx.Rngs(0))
  x, weights = np.random.default_rng(0).normal(size=(2, 2, tokens, 16)).astype(np.float32)
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


def test_a_tpu_sums_weights_as_other_devices_do():
  """By one product; no TPU is at hand, but a CPU can compute it too."""
  rng = np.random.default_rng(0)
  weights = [rng.uniform(size=(2, 3, 5, keys)).astype(np.float32) for keys in (16, 1)]
  values = tuple(rng.normal(size=(2, 3, keys, 4)).astype(np.float32) for keys in (16, 1))
  expected = (
    sum(np.float64(w) @ v for w, v in zip(weights, values, strict=True)),
    sum(np.float64(w).sum(axis=-1, keepdims=True) for w in weights),
  )
  with jax.default_matmul_precision('highest'):
    for form in (sums, sums_by_one_product):
      chex.assert_trees_all_close(form(weights, values), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('spread', [1, 3], ids=['logits of 1', 'logits of 9'])
def test_kept_logits_are_nearer_to_float64_than_those_of_flax(spread):
  """Of the result and of three gradients in bfloat16, by norms; Flax (big_vision) rounds logits and softmax."""
  query, key, value, grad = np.random.default_rng(0).standard_normal((4, 2, 50, 2, 64))
  inputs = [jnp.asarray(x, jnp.bfloat16) for x in (spread * query, spread * key, value, grad)]
  expected = attention_in_float64(*inputs)

  def errors(attend):
    out, backward = jax.vjp(attend, *inputs[:3])
    found = [np.asarray(x, np.float64) for x in (out, *backward(inputs[3]))]
    return [np.linalg.norm(x - e) / np.linalg.norm(e) for x, e in zip(found, expected, strict=True)]

  exact = errors(lambda *qkv: attend(*qkv, how=How()))
  keeping = How(sharding=_on('tpu', 'TPU v3'), unrolled=True)
  kept = errors(lambda *qkv: attend(*qkv, how=keeping))
  biased = errors(lambda *qkv: attend(*qkv, jnp.zeros((1, 2, 50, 50)), how=keeping))
  flax = errors(linen.dot_product_attention)
  # All take a mean of the weights' gradient from the rounded result, as flash attention does.
  assert all(0 < error < 0.007 for error in exact), exact
  assert all(0 < error < 0.008 for error in kept), kept
  assert biased == kept
  assert all(ours < theirs < 0.03 for ours, theirs in zip(kept, flax, strict=True)), (kept, flax)


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


PLATFORMS = {'cpu': 'cpu', 'NVIDIA H200': 'gpu'}  # of the kinds of devices that are no TPUs


def _on(platform, kind):
  """A sharding on one device."""
  return types.SimpleNamespace(device_set=[types.SimpleNamespace(platform=platform, device_kind=kind)])


@pytest.mark.parametrize(
  'kind, tokens, dtype, keeps',
  [
    ('TPU v3', 197, 'bfloat16', True),
    ('TPU v5 lite', 197, 'bfloat16', True),
    ('TPU v3', 50, 'bfloat16', True),
    ('TPU v3', 256, 'bfloat16', False),  # fills rows of 128
    ('TPU v5 lite', 257, 'bfloat16', False),  # 256 and 1 apart
    ('TPU v3', 577, 'bfloat16', False),
    ('TPU v3', 197, 'float32', False),
    ('cpu', 197, 'bfloat16', False),
    ('NVIDIA H200', 197, 'bfloat16', False),
    (None, 197, 'bfloat16', False),
  ],
)
def test_logits_are_kept_where_a_tpu_is_faster_so(kind, tokens, dtype, keeps):
  sharding = kind and _on(PLATFORMS.get(kind, 'tpu'), kind)
  assert keeps_logits(tokens, jnp.dtype(dtype), sharding, unrolled=True) == keeps
  assert not keeps_logits(tokens, jnp.dtype(dtype), sharding, unrolled=False)


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
