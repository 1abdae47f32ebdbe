"""Activations of MLPs against float64, and how often bfloat16 is rounded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from vit_jax.models.parts import activations

FLOAT64 = {
  'gelu_tanh': lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
  'gelu': lambda x: x / 2 * special.erfc(-x / np.sqrt(2)),
  'quick_gelu': lambda x: x / (1 + np.exp(-1.702 * x)),
  'silu': lambda x: x / (1 + np.exp(-x)),
  'relu': lambda x: np.maximum(x, 0),
}


@pytest.mark.parametrize(
  'dtype, rounding', [(jnp.float32, 0), (jnp.bfloat16, 2**-8)], ids=['float32', 'bfloat16']
)
@pytest.mark.parametrize('name', activations.ACTIVATIONS)
def test_activations_are_those_of_float64_rounded_once(name, dtype, rounding):
  """Up to what float32 errs by, with which XLA computes."""
  x = jnp.linspace(-6, 6, 2001, dtype=dtype)
  found = jax.jit(lambda x: activations.activate(name, x, None))(x)
  assert found.dtype == dtype
  expected = FLOAT64[name](np.asarray(x, np.float64))
  error = np.abs(np.asarray(found, np.float64) - expected)
  assert (error <= rounding * np.abs(expected) + 1e-6).all()
