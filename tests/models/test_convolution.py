"""Strided and depthwise convolutions and their gradients against their definition in NumPy float64."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy_convolution
import pytest
import tiny
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.models import depthwise_convolution, scanned_blocks, strided_convolution
from vit_jax.models.mbconv import Conv
from vit_jax.parallel.mesh import MeshConfig, batch_sharding, make_mesh

pytestmark = pytest.mark.slow

ONE_AROUND = ((1, 1), (1, 1))


@pytest.mark.parametrize('image_size', [(8, 8), (7, 13), (2, 1), (1, 1)])
@pytest.mark.parametrize(
  ('size', 'stride', 'same', 'depthwise'),
  [
    *((1, 2, True, False), (2, 2, False, False), (3, 2, True, False), (7, 2, False, False)),
    *((3, 3, True, False), (5, 3, False, False), (3, 1, True, False)),
    *((3, 1, True, True), (3, 2, True, True), (5, 2, True, True)),
  ],
)
def test_output_and_gradients_equal_numpy(size, stride, same, depthwise, image_size):
  padding = ((size // 2, size // 2), (size // 2, size // 2))
  if same:
    padding = tuple(jax.lax.padtype_to_pads(image_size, (size, size), (stride, stride), 'SAME'))
  rng = np.random.default_rng(0)
  x, kernel = rng.standard_normal((2, *image_size, 3)), rng.standard_normal((size, size, 3, 4))
  whole = kernel
  if depthwise:
    kernel = kernel[..., 0]
    whole = kernel[..., None] * np.eye(3)  # each channel meets itself alone
  expected = numpy_convolution.forward(x, whole, stride, padding)
  if same:
    assert expected.shape[1:3] == tuple(-(-side // stride) for side in image_size)
  dy = rng.standard_normal(expected.shape)
  by_input, by_kernel = numpy_convolution.gradients(x, whole, dy, stride, padding)
  if depthwise:
    by_kernel = np.diagonal(by_kernel, axis1=2, axis2=3)

  def convolve(x, kernel):
    if depthwise:
      return depthwise_convolution.convolve(x, kernel, stride, padding=padding, sharding=None)
    return strided_convolution.convolve(x, kernel, stride, padding)

  with jax.enable_x64(True):
    y, gradient = jax.vjp(jax.jit(convolve), jnp.asarray(x), jnp.asarray(kernel))
    gradients = gradient(jnp.asarray(dy))
  for ours, theirs in zip((y, *gradients), (expected, by_input, by_kernel), strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_strided_gradient_multiplies_no_zeros_and_keeps_the_dtype(dtype):
  x, kernel = jnp.ones((2, 8, 8, 3), dtype), jnp.ones((3, 3, 3, 4), dtype)
  jaxpr = jax.make_jaxpr(jax.grad(lambda x: strided_convolution.convolve(x, kernel, 2, ONE_AROUND).sum()))(x)
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


@pytest.mark.parametrize(
  ('platform', 'dtype', 'remat', 'convolutions'),
  [
    ('cpu', 'float32', 'none', 0),  # products
    ('tpu', 'float32', 'none', 3),  # grouped convolutions: the output and two gradients
    ('tpu', 'bfloat16', 'dots', 3),
    ('tpu', 'float32', 'block', 4),  # which computes the output again
  ],
)
def test_depthwise_products_on_cpus_and_grouped_convolutions_elsewhere(platform, dtype, remat, convolutions):
  x, kernel = jnp.ones((2, 8, 8, 4), dtype), jnp.ones((3, 3, 4), dtype)

  def loss(x, kernel):
    return jax.nn.silu(depthwise_convolution.convolve(x, kernel, padding=ONE_AROUND, sharding=None)).sum()

  gradient = jax.value_and_grad(scanned_blocks.rematerialised(loss, remat), argnums=(0, 1))
  traced = jax.jit(gradient).trace(x, kernel)
  assert {leaf.dtype.name for leaf in jax.tree.leaves(traced.out_info)} == {dtype}
  text = traced.lower(lowering_platforms=(platform,)).as_text()
  assert text.count('stablehlo.convolution') == convolutions


@pytest.mark.parametrize('axes', [{'data': 4, 'tensor': 2}, {'data': 2, 'fsdp': 2, 'tensor': 2}])
def test_depthwise_gradients_on_a_mesh_are_those_of_one_device(axes):
  """Its `tensor` axis splits neither images nor kernels."""
  rng = np.random.default_rng(0)
  x, weights = (rng.normal(size=(8, 6, 6, 8)).astype(np.float32) for _ in range(2))
  kernel = rng.normal(size=(3, 3, 1, 8)).astype(np.float32)

  def gradients(sharding):
    conv = Conv(8, 8, 3, depthwise=True, dtype=jnp.float32, rngs=nnx.Rngs(0), sharding=sharding)
    graphdef, _ = nnx.split(conv)

    def loss(kernel, x):
      return jnp.sum(nnx.merge(graphdef, {'kernel': kernel})(x) * weights)

    return jax.jit(jax.grad(loss, argnums=(0, 1)))

  expected = gradients(None)(kernel, x)
  sharding = batch_sharding(make_mesh(MeshConfig(**axes)))
  last = NamedSharding(sharding.mesh, PartitionSpec(None, None, None, 'fsdp'))
  found = gradients(sharding)(jax.device_put(kernel, last), jax.device_put(x, sharding))
  for ours, theirs in zip(found, expected, strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
