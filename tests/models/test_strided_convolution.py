"""Strided convolutions and their gradients against their definition in NumPy float64."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy_convolution
import pytest
import tiny

from vit_jax.models import strided_convolution


@pytest.mark.parametrize('image_size', [(8, 8), (9, 6), (7, 13), (2, 2), (1, 2), (1, 1)])
@pytest.mark.parametrize(
  ('size', 'stride'), [(1, 1), (1, 2), (2, 2), (3, 2), (7, 2), (1, 3), (3, 3), (5, 3), (3, 1)]
)
@pytest.mark.parametrize('same', [True, False])
def test_output_and_gradients_equal_numpy(same, size, stride, image_size):
  padding = ((size // 2, size // 2), (size // 2, size // 2))
  if same:
    padding = tuple(jax.lax.padtype_to_pads(image_size, (size, size), (stride, stride), 'SAME'))
  rng = np.random.default_rng(0)
  x, kernel = rng.standard_normal((2, *image_size, 3)), rng.standard_normal((size, size, 3, 4))
  expected = numpy_convolution.forward(x, kernel, stride, padding)
  if same:
    assert expected.shape[1:3] == tuple(-(-side // stride) for side in image_size)
  dy = rng.standard_normal(expected.shape)
  with jax.enable_x64(True):
    call = jax.jit(lambda x, kernel: strided_convolution.convolve(x, kernel, stride, padding))
    y, gradient = jax.vjp(call, jnp.asarray(x), jnp.asarray(kernel))
    gradients = gradient(jnp.asarray(dy))
  np.testing.assert_allclose(y, expected, atol=1e-12)
  for ours, theirs in zip(
    gradients, numpy_convolution.gradients(x, kernel, dy, stride, padding), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_gradient_multiplies_no_zeros_and_keeps_the_dtype(dtype):
  x, kernel = jnp.ones((2, 8, 8, 3), dtype), jnp.ones((3, 3, 3, 4), dtype)

  def loss(x):
    return strided_convolution.convolve(x, kernel, 2, ((1, 1), (1, 1))).sum()

  jaxpr = jax.make_jaxpr(jax.grad(loss))(x)
  (by_input,) = jaxpr.out_avals
  assert by_input.dtype == dtype
  convolutions = [e for e, _ in tiny.equations(jaxpr.jaxpr) if e.primitive is jax.lax.conv_general_dilated_p]
  assert len(convolutions) == 1 + 1 + 4  # the output, the gradient by the kernel, four parts of that by x
  assert all(e.params['lhs_dilation'] == (1, 1) for e in convolutions)


@pytest.mark.parametrize('stride', [1, 2])
@pytest.mark.parametrize(('side', 'size', 'zeros'), [(8, 1, 0), (2, 3, 1)])
def test_kernels_of_one_pixel_and_maps_smaller_than_the_kernel_are_products_of_matrices(
  side, size, zeros, stride
):
  x, kernel = jnp.ones((2, side, side, 3)), jnp.ones((size, size, 3, 4))

  def loss(x, kernel):
    return strided_convolution.convolve(x, kernel, stride, ((zeros, zeros), (zeros, zeros))).sum()

  jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(x, kernel)
  primitives = [e.primitive for e, _ in tiny.equations(jaxpr.jaxpr)]
  assert primitives.count(jax.lax.dot_general_p) == 3  # the output and two gradients
  assert jax.lax.conv_general_dilated_p not in primitives
