"""The functions between the two layers of an MLP."""

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

Activation = Literal['gelu_tanh', 'gelu', 'quick_gelu', 'silu', 'relu']
_Function = Callable[[jax.Array], jax.Array]


def _rounded_once(function: _Function) -> _Function:
  """On CPUs bfloat16 is computed in float32: XLA's client would round after each operation, and take twice as long."""

  def once(x: jax.Array) -> jax.Array:
    return function(x.astype(jnp.float32)).astype(x.dtype)

  @functools.wraps(function)
  def of_platform(x: jax.Array) -> jax.Array:
    if x.dtype != jnp.bfloat16:
      return function(x)
    return jax.lax.platform_dependent(x, cpu=once, default=function)

  return of_platform


# As calls of their own in a traced function, so that exports know them by name.
@jax.jit
@_rounded_once
def gelu(x: jax.Array) -> jax.Array:
  """x times the normal distribution's share below x (arXiv 1606.08415), by erfc."""
  return jax.nn.gelu(x, approximate=False)


@jax.jit
@_rounded_once
def gelu_tanh(x: jax.Array) -> jax.Array:
  """GELU approximated by tanh, as in the original code."""
  return jax.nn.gelu(x, approximate=True)


ACTIVATIONS: dict[str, _Function] = {
  'gelu_tanh': gelu_tanh,
  'gelu': gelu,
  'quick_gelu': _rounded_once(lambda x: x * jax.nn.sigmoid(1.702 * x)),
  'silu': _rounded_once(jax.nn.silu),
  'relu': jax.nn.relu,
}
