"""The functions between the two layers of an MLP."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from vit_jax.models.base import Sharding, loaded_on_processors, on_processors

Activation = Literal['gelu_tanh', 'gelu', 'quick_gelu', 'silu', 'relu']


def activate(name: str, x: jax.Array, sharding: Sharding | None) -> jax.Array:
  """(B, N, M) -> (B, N, M), of the same dtype; the sharding of the tokens is None in a loaded model.

  On CPUs bfloat16 is computed in float32: XLA's client would round after each operation, and take twice as long.
  """
  if x.dtype == jnp.bfloat16 and (on_processors(sharding) or loaded_on_processors(sharding)):
    return ACTIVATIONS[name](x.astype(jnp.float32)).astype(x.dtype)
  return ACTIVATIONS[name](x)


# As calls of their own in a traced function, so that exports know them by name.
@jax.jit
def gelu(x: jax.Array) -> jax.Array:
  """x times the normal distribution's share below x (arXiv 1606.08415), by erfc."""
  return jax.nn.gelu(x, approximate=False)


@jax.jit
def gelu_tanh(x: jax.Array) -> jax.Array:
  """GELU approximated by tanh, as in the original code."""
  return jax.nn.gelu(x, approximate=True)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  'gelu_tanh': gelu_tanh,
  'gelu': gelu,
  'quick_gelu': lambda x: x * jax.nn.sigmoid(1.702 * x),
  'silu': jax.nn.silu,
  'relu': jax.nn.relu,
}
