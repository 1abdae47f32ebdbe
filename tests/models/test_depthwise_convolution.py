"""Depthwise convolutions and their gradients against their definition in NumPy float64."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models import depthwise_convolution


def numpy_convolution(x, kernel, stride, padding):
  """The output, and the gradients of its sum with weights `dy` by x and by the kernel, as a function of `dy`."""
  padded = np.pad(x, ((0, 0), *padding, (0, 0)))
  height, width = kernel.shape[:2]
  rows, columns = (padded.shape[1] - height) // stride + 1, (padded.shape[2] - width) // stride + 1
  pixels = {
    (i, j): np.s_[:, i : i + stride * (rows - 1) + 1 : stride, j : j + stride * (columns - 1) + 1 : stride]
    for i, j in itertools.product(range(height), range(width))
  }

  def gradients(dy):
    dx = np.zeros_like(padded)
    for place, window in pixels.items():
      dx[window] += dy * kernel[place]
    dkernel = [(padded[window] * dy).sum(axis=(0, 1, 2)) for window in pixels.values()]
    (top, _), (left, _) = padding
    return dx[:, top : top + x.shape[1], left : left + x.shape[2]], np.reshape(dkernel, kernel.shape)

  return sum(padded[window] * kernel[place] for place, window in pixels.items()), gradients


@pytest.mark.parametrize('image_size', [(8, 8), (7, 13), (2, 2), (1, 1)])
@pytest.mark.parametrize(('size', 'stride'), [(3, 1), (3, 2), (5, 1), (5, 2)])
def test_output_and_gradients_equal_numpy(size, stride, image_size):
  padding = tuple(jax.lax.padtype_to_pads(image_size, (size, size), (stride, stride), 'SAME'))
  rng = np.random.default_rng(0)
  x, kernel = rng.standard_normal((2, *image_size, 3)), rng.standard_normal((size, size, 3))
  expected, expected_gradients = numpy_convolution(x, kernel, stride, padding)
  dy = rng.standard_normal(expected.shape)
  with jax.enable_x64(True):
    call = jax.jit(
      lambda x, kernel: depthwise_convolution.convolve(x, kernel, stride, padding=padding, sharding=None)
    )
    y, gradient = jax.vjp(call, jnp.asarray(x), jnp.asarray(kernel))
    gradients = gradient(jnp.asarray(dy))
  np.testing.assert_allclose(y, expected, atol=1e-12)
  for ours, theirs in zip(gradients, expected_gradients(dy), strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize(('platform', 'grouped'), [('cpu', 0), ('tpu', 3)])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_products_on_cpus_and_grouped_convolutions_elsewhere(dtype, platform, grouped):
  x, kernel = jnp.ones((2, 8, 8, 4), dtype), jnp.ones((3, 3, 4), dtype)

  def loss(x, kernel):
    y = depthwise_convolution.convolve(x, kernel, padding=((1, 1), (1, 1)), sharding=None)
    return jnp.square(y).sum()

  traced = jax.jit(jax.grad(loss, argnums=(0, 1))).trace(x, kernel)
  assert [gradient.dtype for gradient in jax.tree.leaves(traced.out_info)] == [dtype, dtype]
  text = traced.lower(lowering_platforms=(platform,)).as_text()
  assert text.count('stablehlo.convolution') == grouped  # the output and two gradients
