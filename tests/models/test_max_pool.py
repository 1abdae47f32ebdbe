"""The maximum of windows and its gradient against XLA's own, and as what it is computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.models.max_pool import max_pool


@pytest.mark.slow
@pytest.mark.parametrize('padding', ['VALID', 'SAME'])
@pytest.mark.parametrize('values', ['distinct', 'equal'])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('size', [(4, 5), (9, 6)])
def test_maximum_and_gradient_equal_those_of_xla(size, dtype, values, padding):
  rng = np.random.default_rng(0)
  shape = (2, *size, 3)
  # Whole numbers: sums of gradients are exact in any order. With three values, most windows have several maxima.
  x = rng.permutation(np.prod(shape)) if values == 'distinct' else rng.integers(0, 3, shape)
  x = jnp.asarray(x.reshape(shape), dtype)
  y, gradient = jax.vjp(lambda x: max_pool(x, padding), x)
  expected, expected_gradient = jax.vjp(lambda x: nnx.max_pool(x, (3, 3), (2, 2), padding), x)
  np.testing.assert_array_equal(y, expected)
  dy = jnp.asarray(rng.integers(-5, 6, y.shape), dtype)
  (ours,), (theirs,) = gradient(dy), expected_gradient(dy)
  assert ours.dtype == dtype
  np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(('platform', 'scatters'), [('cpu', False), ('tpu', True)])
def test_gradient_scatters_where_that_is_cheap(platform, scatters):
  gradient = jax.jit(jax.grad(lambda x: max_pool(x, 'SAME').sum()))
  lowered = gradient.trace(jnp.ones((2, 9, 9, 3))).lower(lowering_platforms=(platform,))
  assert ('select_and_scatter' in lowered.as_text()) == scatters
