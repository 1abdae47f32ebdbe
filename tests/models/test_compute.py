"""Loops, rematerialisation, bfloat16 and sharding change how the blocks are computed, and not the result."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpy_vit
import pytest
import tiny
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.models.parts.norms import LayerNorm

DROP = {'dropout': 0.2, 'attention_dropout': 0.1, 'stochastic_depth': 0.3}


def _loss_and_gradient(graphdef, params, x, keys):
  def loss(params):
    logits = nnx.merge(graphdef, params)(x, keys=keys)
    return jnp.square(logits).sum()

  return jax.value_and_grad(loss)(params)


def _step(graphdef):
  return jax.jit(functools.partial(_loss_and_gradient, graphdef))


@functools.cache
def _result(**changes):
  graphdef, params = tiny.build(tiny.options(**DROP | changes))
  with jax.default_matmul_precision('highest'):
    return _step(graphdef)(params, tiny.images(), tiny.keys())


PART = {'attention_dropout': 0.0}  # then the last of unrolled blocks computes only what the head reads


@pytest.mark.nightly(but='block|dots and unroll|part')
@pytest.mark.slow
@pytest.mark.parametrize(
  'changes',
  [
    {'remat': 'block'},
    {'remat': 'dots', 'unroll': True},
    {'unroll': True, **PART},
    {'unroll': True},
    {'remat': 'dots'},
  ],
  ids=['block', 'dots and unroll', 'part', 'unroll', 'dots'],
)
def test_loops_and_rematerialisation_change_no_value_and_no_gradient(changes):
  dropped = {name: rate for name, rate in changes.items() if name in DROP}
  expected_loss, expected = _result(**dropped)
  loss, gradient = _result(**changes)
  np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
  chex.assert_trees_all_close(gradient, expected, rtol=1e-4, atol=1e-4)
  assert all(float(abs(leaf).max()) > 0 for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_gradient_equals_finite_differences():
  """Along a random direction: norm, GELU and softmax have derivatives of their own."""
  graphdef, params = tiny.build()
  x = tiny.images()
  rng = np.random.default_rng(2)
  direction = jax.tree.map(lambda v: rng.standard_normal(v.shape), params)

  def loss(step):
    moved = jax.tree.map(lambda v, d: np.asarray(v, np.float64) + step * d, params, direction)
    return (numpy_vit.forward(moved, x)['logits'] ** 2).sum()

  slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
  with jax.default_matmul_precision('highest'):
    _, gradient = _step(graphdef)(params, x, None)
  ours = sum((g * d).sum() for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction)))
  assert float(ours) == pytest.approx(slope, rel=1e-4)


def _lowered(**changes):
  model = tiny.options(depth=6, width=64, mlp_dim=256, **changes)
  graphdef, params = tiny.build(model, image_size=(32, 32))
  return _step(graphdef).lower(params, tiny.images(8, (32, 32)), None)


@pytest.mark.slow
def test_rematerialisation_saves_memory():
  memory = {
    remat: _lowered(remat=remat).compile().memory_analysis().temp_size_in_bytes
    for remat in ('none', 'dots', 'block')
  }
  assert memory['block'] < 0.8 * memory['dots'] and memory['dots'] < 0.8 * memory['none'], memory


def test_unrolled_blocks_have_no_loop():
  assert 'stablehlo.while' in _lowered().as_text()
  assert 'stablehlo.while' not in _lowered(unroll=True).as_text()


@pytest.mark.slow
def test_bfloat16_keeps_parameters_norms_softmax_and_head_in_float32():
  graphdef, params = tiny.build(tiny.options(pool='map', pre_logits_size=24))
  half, half_params = tiny.build(tiny.options(pool='map', pre_logits_size=24, dtype='bfloat16'))
  chex.assert_tree_has_only_ndarrays(half_params)
  chex.assert_type(jax.tree.leaves(half_params), jnp.float32)
  x = tiny.images()
  expected, logits = tiny.apply(graphdef, params, x), tiny.apply(half, half_params, x)
  chex.assert_type(logits, jnp.float32)
  assert 0 < abs(logits - expected).max() < 0.05 * abs(expected).max()

  jaxpr = jax.make_jaxpr(lambda params, x: nnx.merge(half, params)(x))(half_params, x)
  dtypes = {}
  for equation, _ in tiny.equations(jaxpr.jaxpr):
    name = equation.primitive.name
    dtypes.setdefault(name, []).extend(v.aval.dtype.name for v in equation.invars)
  assert set(dtypes['exp']) == set(dtypes['rsqrt']) == {'float32'}
  assert dtypes['dot_general'].count('float32') == 2  # the head
  assert dtypes['dot_general'].count('bfloat16') >= 2 * 10


def test_norm_of_bfloat16_and_its_gradients_equal_float64():
  """Within bfloat16's rounding of the result, where the mean is three deviations and where a channel is large."""
  rng = np.random.default_rng(0)
  x = 3 + rng.standard_normal((4, 7, 64))
  x[..., 5] *= 30
  norm = LayerNorm(64, 1e-6)
  norm.scale[...], norm.bias[...] = jnp.asarray(rng.normal(1, 0.3, (2, 64)), jnp.float32)
  x, grad = (jnp.asarray(value, jnp.bfloat16) for value in (x, rng.standard_normal(x.shape)))
  out, backward = jax.vjp(lambda norm, x: norm(x), norm, x)
  of_norm, of_x = backward(grad)
  chex.assert_type([out, of_x], jnp.bfloat16)

  y, g = np.asarray(x, np.float64), np.asarray(grad, np.float64)
  deviation = np.sqrt(y.var(axis=-1, keepdims=True) + 1e-6)
  y = (y - y.mean(axis=-1, keepdims=True)) / deviation
  scale, bias = np.asarray(norm.scale[...]), np.asarray(norm.bias[...])
  h = g * scale
  expected = (h - h.mean(axis=-1, keepdims=True) - y * (h * y).mean(axis=-1, keepdims=True)) / deviation
  for found, exact, bound in (
    (out, y * scale + bias, 2**-8),
    (of_x, expected, 2**-8),
    (of_norm.scale[...], (g * y).sum(axis=(0, 1)), 1e-5),
    (of_norm.bias[...], g.sum(axis=(0, 1)), 1e-5),
  ):
    error = np.abs(np.asarray(found, np.float64) - exact)
    assert (error <= bound * (np.abs(exact) + 1e-3 * np.abs(exact).max())).all(), error.max()


@pytest.mark.parametrize('part', ['embed', 'encode'])
def test_the_residual_stream_keeps_the_sharding_asked_for(part):
  mesh = jax.make_mesh((8,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))
  split, copied = NamedSharding(mesh, P('data')), NamedSharding(mesh, P())
  x = tiny.images(8) if part == 'embed' else jnp.ones((8, 7, 32))
  found = {}
  for sharding in (None, split):
    graphdef, params = tiny.build(activation_sharding=sharding)
    call = jax.jit(_part, static_argnums=(0, 1), in_shardings=copied)
    found[sharding] = call.lower(part, graphdef, params, x).compile().output_shardings
  assert found[split].is_equivalent_to(split, 3)
  assert found[None].is_equivalent_to(copied, 3)


def _part(name, graphdef, params, x):
  return getattr(nnx.merge(graphdef, params), name)(x)
