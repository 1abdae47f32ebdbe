"""Depthwise convolutions and their gradients against their definition in NumPy float64."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy_convolution
import pytest

from vit_jax.models import depthwise_convolution, scanned_blocks


@pytest.mark.parametrize('image_size', [(8, 8), (7, 13), (2, 2), (1, 1)])
@pytest.mark.parametrize(('size', 'stride'), [(3, 1), (3, 2), (5, 1), (5, 2)])
def test_output_and_gradients_equal_numpy(size, stride, image_size):
  padding = tuple(jax.lax.padtype_to_pads(image_size, (size, size), (stride, stride), 'SAME'))
  rng = np.random.default_rng(0)
  x, kernel = rng.standard_normal((2, *image_size, 3)), rng.standard_normal((size, size, 3))
  whole = kernel[..., None] * np.eye(3)  # each channel meets itself alone
  expected = numpy_convolution.forward(x, whole, stride, padding)
  dy = rng.standard_normal(expected.shape)
  by_input, by_whole = numpy_convolution.gradients(x, whole, dy, stride, padding)
  with jax.enable_x64(True):
    call = jax.jit(
      lambda x, kernel: depthwise_convolution.convolve(x, kernel, stride, padding=padding, sharding=None)
    )
    y, gradient = jax.vjp(call, jnp.asarray(x), jnp.asarray(kernel))
    gradients = gradient(jnp.asarray(dy))
  np.testing.assert_allclose(y, expected, atol=1e-12)
  for ours, theirs in zip(gradients, (by_input, np.diagonal(by_whole, axis1=2, axis2=3)), strict=True):
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


@pytest.mark.parametrize(('remat', 'computed'), [('none', 3), ('dots', 3), ('block', 4)])
def test_rematerialisation_computes_it_again_for_blocks_only(remat, computed):
  def loss(x, kernel):
    y = depthwise_convolution.convolve(x, kernel, padding=((1, 1), (1, 1)), sharding=None)
    return jax.nn.silu(y).sum()

  x, kernel = jnp.ones((2, 8, 8, 4)), jnp.ones((3, 3, 4))
  gradient = jax.value_and_grad(scanned_blocks.rematerialised(loss, remat), argnums=(0, 1))
  text = jax.jit(gradient).trace(x, kernel).lower(lowering_platforms=('tpu',)).as_text()
  assert text.count('stablehlo.convolution') == computed
