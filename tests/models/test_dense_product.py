"""Dense layers on processors: gradients, and the copies that their program does not make."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.config import MeshConfig
from vit_jax.models import dense_product
from vit_jax.parallel import mesh as mesh_lib

LAYERS = {  # the inputs' last sides, the outputs' sides, the einsum of both
  'wide': ((6,), (10,), 'bnd,dm->bnm'),
  'narrow': ((10,), (6,), 'bnd,dm->bnm'),
  'heads out': ((6,), (2, 3), 'bnd,dhe->bnhe'),
  'heads in': ((2, 5), (6,), 'bnhe,hed->bnd'),
}


def _sharding():
  return mesh_lib.batch_sharding(mesh_lib.make_mesh(MeshConfig(fsdp=1), jax.devices()[:1]))


@pytest.mark.parametrize('inputs, outputs, einsum', LAYERS.values(), ids=LAYERS)
def test_gradients_on_processors_are_those_of_numpy(inputs, outputs, einsum):
  rng = np.random.default_rng(0)
  shapes = (8, 7, *inputs), (*inputs, *outputs), (8, 7, *outputs)
  x, kernel, dy = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
  axes = tuple(range(-len(inputs), 0))
  product = dense_product.dot_general(_sharding())
  layer = nnx.LinearGeneral(inputs, outputs, axis=axes, dot_general=product, use_bias=False, rngs=nnx.Rngs(0))
  graphdef, _ = nnx.split(layer)

  def apply(x, kernel):
    return nnx.merge(graphdef, {'kernel': kernel})(x)

  program = jax.jit(lambda x, kernel, dy: jax.vjp(apply, x, kernel)[1](dy)).lower(x, kernel, dy)
  operands, out = einsum.split('->')
  of_x, of_kernel = operands.split(',')
  x, kernel, dy = (array.astype(np.float64) for array in (x, kernel, dy))
  dx, dkernel = program.compile()(*map(jnp.float32, (x, kernel, dy)))
  np.testing.assert_allclose(dx, np.einsum(f'{out},{of_kernel}->{of_x}', dy, kernel), atol=2e-5)
  np.testing.assert_allclose(dkernel, np.einsum(f'{of_x},{out}->{of_kernel}', x, dy), atol=2e-5)


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


def test_where_nobody_trains_on_processors_the_product_is_jaxs():
  assert dense_product.dot_general(None) is jax.lax.dot_general
