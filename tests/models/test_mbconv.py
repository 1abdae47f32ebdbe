"""Depthwise convolutions on a mesh whose `tensor` axis splits neither images nor kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.models.mbconv import Conv
from vit_jax.parallel.mesh import MeshConfig, batch_sharding, make_mesh


@pytest.mark.parametrize('axes', [{'data': 4, 'tensor': 2}, {'data': 2, 'fsdp': 2, 'tensor': 2}])
def test_gradients_of_a_depthwise_convolution_are_those_of_one_device(axes):
  rng = np.random.default_rng(0)
  x, weights = (rng.normal(size=(8, 6, 6, 8)).astype(np.float32) for _ in range(2))
  kernel = rng.normal(size=(3, 3, 1, 8)).astype(np.float32)

  def gradients(sharding):
    def loss(kernel, x):
      conv = nnx.merge(graphdef, {'kernel': kernel})
      return jnp.sum(conv(x) * weights)

    graphdef, _ = nnx.split(
      Conv(8, 8, 3, depthwise=True, dtype=jnp.float32, rngs=nnx.Rngs(0), sharding=sharding)
    )
    return jax.jit(jax.grad(loss, argnums=(0, 1)))

  expected = gradients(None)(kernel, x)
  sharding = batch_sharding(make_mesh(MeshConfig(**axes)))
  last = NamedSharding(sharding.mesh, PartitionSpec(None, None, None, 'fsdp'))
  found = gradients(sharding)(jax.device_put(kernel, last), jax.device_put(x, sharding))
  for ours, theirs in zip(found, expected, strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
