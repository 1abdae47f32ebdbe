"""Dense layers on processors: gradients, and the copies that their program does not make."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx

from vit_jax.config import MeshConfig
from vit_jax.models import dense_product
from vit_jax.models.base import Architecture
from vit_jax.parallel import mesh as mesh_lib

LAYERS = {  # the inputs' last sides, the outputs' sides, the einsum of both
  'wide': ((6,), (10,), 'bnd,dm->bnm'),
  'narrow': ((10,), (6,), 'bnd,dm->bnm'),
  'heads out': ((6,), (2, 3), 'bnd,dhe->bnhe'),
  'heads in': ((2, 5), (6,), 'bnhe,hed->bnd'),
}


def _sharding():
  return mesh_lib.batch_sharding(mesh_lib.make_mesh(MeshConfig(fsdp=1), jax.devices()[:1]))


@pytest.mark.parametrize('dtype, tolerance', [(jnp.float32, 2e-5), (jnp.bfloat16, 2**-4)], ids=str)
@pytest.mark.parametrize('inputs, outputs, einsum', LAYERS.values(), ids=LAYERS)
def test_products_on_processors_and_their_gradients_are_those_of_numpy(
  inputs, outputs, einsum, dtype, tolerance
):
  """In bfloat16 up to the rounding of results, which are below 32."""
  rng = np.random.default_rng(0)
  shapes = (8, 7, *inputs), (*inputs, *outputs), outputs, (8, 7, *outputs)
  x, kernel, bias, dy = (jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)
  layer = dense_product.Dense(inputs, outputs, sharding=_sharding(), dtype=dtype, rngs=nnx.Rngs(0))
  graphdef, _ = nnx.split(layer)

  def apply(x, kernel, bias):
    return nnx.merge(graphdef, {'kernel': kernel, 'bias': bias})(x)

  def product_and_gradients(x, kernel, bias, dy):
    y, gradients = jax.vjp(apply, x, kernel, bias)
    return y, *gradients(dy)

  found = jax.jit(product_and_gradients)(x, kernel, bias, dy)
  operands, out = einsum.split('->')
  of_x, of_kernel = operands.split(',')
  x, kernel, bias, dy = (np.asarray(array, np.float64) for array in (x, kernel, bias, dy))
  y = np.einsum(einsum, x, kernel) + bias
  dx = np.einsum(f'{out},{of_kernel}->{of_x}', dy, kernel)
  dkernel = np.einsum(f'{of_x},{out}->{of_kernel}', x, dy)
  for array, expected in zip(found, (y, dx, dkernel, dy.sum((0, 1))), strict=True):
    assert array.dtype == dtype
    assert np.abs(expected).max() < 32
    np.testing.assert_allclose(np.asarray(array, np.float64), expected, atol=tolerance)


def test_gradient_of_a_kernel_copies_no_hidden_units():
  """JAX's own writes the gradient of the hidden units, (rows, hidden), once more as (hidden, rows)."""

  def program(product):
    layer = nnx.Linear(16, 64, dot_general=product, use_bias=False, rngs=nnx.Rngs(0))
    graphdef, params = nnx.split(layer)
    x, dy = jnp.ones((8, 7, 16)), jnp.ones((8, 7, 64))
    gradient = jax.jit(
      lambda params, x, dy: jax.vjp(lambda params: nnx.merge(graphdef, params)(x), params)[1](dy)
    )
    return gradient.lower(params, x, dy).compile().as_text()

  assert 'f32[64,56]' in program(jax.lax.dot_general)
  assert 'f32[64,56]' not in program(dense_product.dot_general(_sharding()))


def test_gradient_of_a_bias_in_bfloat16_is_summed_at_once_in_float32():
  """XLA's CPU client sums bfloat16 in windows, which takes 30 times as long."""
  layer = dense_product.Dense((4,), (64,), sharding=_sharding(), dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
  graphdef, params = nnx.split(layer)

  @jax.jit
  def gradients(params, x, dy):
    return jax.vjp(lambda params: nnx.merge(graphdef, params)(x), params)[1](dy)[0]

  x = jnp.ones((8, 197, 4), jnp.bfloat16)
  dy = jnp.asarray(np.random.default_rng(0).normal(1, 1, (8, 197, 64)), jnp.bfloat16)
  expected = np.asarray(dy, np.float64).sum((0, 1))
  np.testing.assert_allclose(gradients(params, x, dy)['bias'][...], expected, rtol=1e-5)
  assert 'reduce-window' not in gradients.lower(params, x, dy).compile().as_text()


@pytest.mark.parametrize('sharding', [None, _sharding()], ids=['loaded', 'trained'])
def test_products_of_bfloat16_are_multiplied_as_such_and_rounded_once(sharding):
  """Not as float32, which the processor multiplies half as fast."""
  layer = nnx.Linear(
    64, 128, dtype=jnp.bfloat16, dot_general=dense_product.dot_general(sharding), rngs=nnx.Rngs(0)
  )
  graphdef, params = nnx.split(layer)
  x = jnp.ones((8, 16, 64), jnp.bfloat16)

  def gradients(params, x):
    return jax.vjp(lambda params, x: nnx.merge(graphdef, params)(x), params, x)[1](
      jnp.ones((8, 16, 128), x.dtype)
    )

  functions = [lambda params, x: nnx.merge(graphdef, params)(x), *([gradients] if sharding else [])]
  for function in functions:
    text = jax.jit(function).lower(params, x).compile().as_text()
    products = list(re.finditer(r'dot\((%[\w.]+), (%[\w.]+)\)', text))
    assert products
    for product in products:
      for operand in product.groups():
        defined = text.rindex(f'{operand} = ', 0, product.start())
        assert text[defined:].startswith(f'{operand} = bf16[')


def test_a_network_is_built_without_starting_the_devices(monkeypatch):
  """A process of several builds networks, for their shapes, before it joins the others."""

  def start():
    raise AssertionError('the devices have been started')

  monkeypatch.setattr(jax, 'default_backend', start)
  Architecture(tiny.options(dtype='bfloat16'), (12, 8), 3, 5).abstract()
