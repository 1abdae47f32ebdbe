"""Strided convolutions and their gradients against their definition in NumPy float64."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from vit_jax.models import strided_convolution


def numpy_convolution(x, kernel, stride, padding):
  """The output, one number of the kernel after the other."""
  x = np.pad(x, ((0, 0), *padding, (0, 0)))
  height, width = kernel.shape[:2]
  rows, columns = (x.shape[1] - height) // stride + 1, (x.shape[2] - width) // stride + 1
  y = np.zeros((len(x), rows, columns, kernel.shape[3]))
  for i, j in itertools.product(range(height), range(width)):
    pixels = x[:, i : i + stride * rows : stride, j : j + stride * columns : stride][:, :rows, :columns]
    y += pixels @ kernel[i, j]
  return y


def numpy_gradients(x, kernel, dy, stride, padding):
  """Those of the sum of y * dy by x and by the kernel."""
  padded = np.pad(x, ((0, 0), *padding, (0, 0)))
  dx, dkernel = np.zeros_like(padded), np.zeros_like(kernel)
  for b, r, c in np.ndindex(dy.shape[:3]):
    window = np.s_[b, stride * r : stride * r + kernel.shape[0], stride * c : stride * c + kernel.shape[1]]
    dx[window] += kernel @ dy[b, r, c]
    dkernel += padded[window][..., None] * dy[b, r, c]
  (top, _), (left, _) = padding
  return dx[:, top : top + x.shape[1], left : left + x.shape[2]], dkernel


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
  expected = numpy_convolution(x, kernel, stride, padding)
  if same:
    assert expected.shape[1:3] == tuple(-(-side // stride) for side in image_size)
  dy = rng.standard_normal(expected.shape)
  with jax.enable_x64(True):
    call = jax.jit(lambda x, kernel: strided_convolution.convolve(x, kernel, stride, padding))
    y, gradient = jax.vjp(call, jnp.asarray(x), jnp.asarray(kernel))
    gradients = gradient(jnp.asarray(dy))
  np.testing.assert_allclose(y, expected, atol=1e-12)
  for ours, theirs in zip(gradients, numpy_gradients(x, kernel, dy, stride, padding), strict=True):
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
def test_kernel_of_one_pixel_and_its_gradients_are_products_of_matrices(stride):
  x, kernel = jnp.ones((2, 8, 8, 3)), jnp.ones((1, 1, 3, 4))

  def loss(x, kernel):
    return strided_convolution.convolve(x, kernel, stride, ((0, 0), (0, 0))).sum()

  jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(x, kernel)
  primitives = [e.primitive for e, _ in tiny.equations(jaxpr.jaxpr)]
  assert primitives.count(jax.lax.dot_general_p) == 3  # the output and two gradients
  assert jax.lax.conv_general_dilated_p not in primitives


@pytest.mark.parametrize('stride', [1, 2])
def test_map_smaller_than_the_kernel_and_its_gradients_are_products_of_matrices(stride):
  x, kernel = jnp.ones((2, 2, 2, 3)), jnp.ones((3, 3, 3, 4))

  def loss(x, kernel):
    return strided_convolution.convolve(x, kernel, stride, ((1, 1), (1, 1))).sum()

  jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(x, kernel)
  primitives = [e.primitive for e, _ in tiny.equations(jaxpr.jaxpr)]
  assert primitives.count(jax.lax.dot_general_p) == 3  # the output and two gradients
  assert jax.lax.conv_general_dilated_p not in primitives
