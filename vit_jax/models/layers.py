"""Layers that several models share: norms, MLPs, the patch embedding and the head.

Norms and GELUs are computed again in the backward pass from their inputs rather than saved
(`jax.checkpoint`): that needs less memory, and less time where memory is slow.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import initializers
from flax.typing import Initializer
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.models import depthwise_convolution
from vit_jax.models.dropout import Place, dropout
from vit_jax.models.scanned_blocks import constrain_examples

GELU = {
  'tanh': functools.partial(jax.nn.gelu, approximate=True),
  'erf': functools.partial(jax.nn.gelu, approximate=False),
}


class LayerNorm(nnx.Module):
  """Layer normalisation over the last axis, in float32 whatever the dtype of the tokens is."""

  def __init__(self, width: int, epsilon: float):
    self.scale = nnx.Param(jnp.ones(width))
    self.bias = nnx.Param(jnp.zeros(width))
    self.epsilon = epsilon

  def __call__(self, x: jax.Array) -> jax.Array:
    """(..., D) -> (..., D), of the same dtype."""
    normalise = _normalise_in_one_pass if x.dtype == jnp.bfloat16 else _normalise
    return normalise(x, self.scale[...], self.bias[...], self.epsilon)


@functools.partial(jax.checkpoint, static_argnums=3, prevent_cse=False)
def _normalise(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
  y = x.astype(jnp.float32)
  y = y - y.mean(axis=-1, keepdims=True)
  variance = jnp.square(y).mean(axis=-1, keepdims=True)
  return (y * jax.lax.rsqrt(variance + epsilon) * scale + bias).astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _normalise_in_one_pass(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
  """`_normalise` of bfloat16: mean and variance from one reading of x, which the backward pass has of it.

  The variance E[x²] - E[x]² loses what float32 has beyond bfloat16's 8 bits. By the TPU v3 compiler's
  estimate a step of L/16 takes 3 % less time, and one of H/14 2.5 %.
  """
  return _one_pass_forward(x, scale, bias, epsilon)[0]


def _one_pass_forward(
  x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> tuple[jax.Array, Any]:
  y = x.astype(jnp.float32)
  mean = y.mean(axis=-1)
  variance = jnp.maximum(jnp.square(y).mean(axis=-1) - jnp.square(mean), 0)
  saved = x, scale, mean, jax.lax.rsqrt(variance + epsilon)
  return (_standardised(*saved) * scale + bias).astype(x.dtype), saved


def _one_pass_backward(epsilon: float, saved: Any, dy: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """dx, dscale and dbias, from dy; z is x standardised, so that y is z * scale + bias."""
  x, scale, _, inverse_deviation = saved
  z, dy = _standardised(*saved), dy.astype(jnp.float32)
  dz = dy * scale
  centred = dz - dz.mean(axis=-1, keepdims=True) - z * (dz * z).mean(axis=-1, keepdims=True)
  dx = (inverse_deviation[..., None] * centred).astype(x.dtype)
  examples = tuple(range(x.ndim - 1))
  return dx, (dy * z).sum(axis=examples), dy.sum(axis=examples)


def _standardised(x: jax.Array, scale: jax.Array, mean: jax.Array, inverse_deviation: jax.Array) -> jax.Array:
  """float32 (..., D) of mean 0 and variance 1, of what the forward pass saves."""
  return (x.astype(jnp.float32) - mean[..., None]) * inverse_deviation[..., None]


_normalise_in_one_pass.defvjp(_one_pass_forward, _one_pass_backward)


class Depthwise(nnx.Module):
  """A 3 x 3 convolution of each channel by itself on the grid of patches, padded with zeros."""

  def __init__(
    self, channels: int, *, dtype: jnp.dtype, sharding: jax.sharding.NamedSharding | None, rngs: nnx.Rngs
  ):
    """
    Args:
      channels: C.
      dtype: of the computation.
      sharding: of the tokens, whose examples and hidden units stay where they are; None: nothing is split.
      rngs: of the initial parameters.
    """
    shape = (3, 3, channels)
    self.kernel = nnx.Param(initializers.lecun_normal()(rngs.params(), shape, jnp.float32))  # of nine inputs
    self.bias = nnx.Param(jnp.zeros(channels))
    self.dtype = dtype
    self.sharding = None if sharding is None else _of_hidden_units(sharding, channels)

  def __call__(self, x: jax.Array, grid: tuple[int, int]) -> jax.Array:
    """(B, N, C) -> (B, N, C), N being the rows times the columns of `grid`, row by row."""
    kernel = self.kernel[...].astype(self.dtype)
    out = depthwise_convolution.convolve(
      x.reshape(len(x), *grid, -1), kernel, padding=((1, 1), (1, 1)), sharding=self.sharding
    )
    return out.reshape(x.shape) + self.bias[...].astype(self.dtype)


def _of_hidden_units(tokens: jax.sharding.NamedSharding, units: int) -> jax.sharding.NamedSharding:
  """The sharding of (B, rows, columns, units), given that of the tokens (B, N, D)."""
  splits = units % tokens.mesh.shape.get('tensor', 1) == 0
  return NamedSharding(tokens.mesh, PartitionSpec(tokens.spec[0], None, None, 'tensor' if splits else None))


class Mlp(nnx.Module):
  """Two dense layers with a GELU between them (paper, section 3.1).

  With `locality`, GELU, a depthwise convolution and GELU: the feed-forward network of LocalViT (arXiv
  2104.05707, equation 5) with GELU as its nonlinearity and without batch normalisation. Tokens that are no
  patches skip the convolution.
  """

  def __init__(
    self,
    width: int,
    mlp_dim: int,
    *,
    gelu: str,
    kernel_init: Initializer = initializers.xavier_uniform(),  # noqa: B008 (a pure function)
    bias_init: Initializer = initializers.normal(1e-6),  # noqa: B008
    dropout: float = 0.0,
    locality: bool = False,
    dtype: jnp.dtype = jnp.float32,
    sharding: jax.sharding.NamedSharding | None = None,
    rngs: nnx.Rngs,
  ):
    """
    Args:
      width: D, of inputs and outputs.
      mlp_dim: M, hidden units.
      gelu: 'tanh' or 'erf'.
      kernel_init: of both layers.
      bias_init: of both layers.
      dropout: of the hidden units and of the outputs.
      locality: whether there is a depthwise convolution between the layers.
      dtype: of the computation.
      sharding: of the tokens.
      rngs: of the initial parameters.
    """
    linear = functools.partial(
      nnx.Linear, kernel_init=kernel_init, bias_init=bias_init, dtype=dtype, rngs=rngs
    )
    self.dense_in = linear(width, mlp_dim)
    self.dense_out = linear(mlp_dim, width)
    self.depthwise = Depthwise(mlp_dim, dtype=dtype, sharding=sharding, rngs=rngs) if locality else None
    self.gelu = gelu
    self.dropout = dropout
    self.sharding = sharding  # of the tokens

  def __call__(
    self, x: jax.Array, *, keys: jax.Array | None = None, grid: tuple[int, int] | None = None
  ) -> jax.Array:
    """(B, N, D) -> (B, N, D).

    Args:
      x: the tokens.
      keys: (B,) of the dropout after the last GELU and at the end, or None.
      grid: for `locality`: rows and columns of the patches, which come last among the tokens.
    """
    graphdef, params = nnx.split((self.dense_out, self.depthwise))

    # Of the arrays with M hidden units, only the GELU's input is saved for the backward pass.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def activate_and_project(params: nnx.State, x: jax.Array, keys: jax.Array | None) -> jax.Array:
      dense_out, depthwise = nnx.merge(graphdef, params)
      x = GELU[self.gelu](x)
      if depthwise is not None:
        assert grid is not None, 'an MLP with locality is given the grid of its patches'
        others, patches = jnp.split(x, [x.shape[1] - math.prod(grid)], axis=1)
        x = jnp.concatenate([others, GELU[self.gelu](depthwise(patches, grid))], axis=1)
      return dense_out(dropout(x, self.dropout, keys, Place.MLP_HIDDEN))

    hidden = constrain_examples(self.dense_in(x), self.sharding)
    x = activate_and_project(params, hidden, keys)
    return dropout(x, self.dropout, keys, Place.MLP_OUT)


class PatchEmbedding(nnx.Module):
  """Cuts images into patches of P x P pixels, each of which becomes a token (E in equation 1)."""

  def __init__(self, patch: int, channels: int, width: int, *, dtype: jnp.dtype, rngs: nnx.Rngs):
    """
    Args:
      patch: P, pixels along a side.
      channels: C, of the images.
      width: D, of the tokens.
      dtype: of the computation.
      rngs: of the initial parameters.
    """
    shape = (patch, patch, channels, width)
    self.kernel = nnx.Param(initializers.lecun_normal()(rngs.params(), shape, jnp.float32))
    self.bias = nnx.Param(jnp.zeros(width))
    self.dtype = dtype

  def __call__(self, images: jax.Array) -> jax.Array:
    """(B, h*P, w*P, C) -> (B, h*w, D), row by row."""
    kernel = self.kernel[...].astype(self.dtype)
    p, _, c, d = kernel.shape
    b, height, width, _ = images.shape
    # A convolution of stride P, written as a matrix product: on a CPU it takes 0.8 of the time.
    grid = images.astype(self.dtype).reshape(b, height // p, p, width // p, p, c)
    patches = grid.transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, p * p * c)
    return patches @ kernel.reshape(-1, d) + self.bias[...].astype(self.dtype)


def initial_head(inputs: int, num_classes: int, bias: float, rngs: nnx.Rngs) -> nnx.Linear:
  """The last layer, (inputs, K) in float32: its kernel begins at zero, its bias at `bias`."""
  return nnx.Linear(
    inputs,
    num_classes,
    kernel_init=initializers.zeros,
    bias_init=initializers.constant(bias),
    rngs=rngs,
  )


def repeat_for_examples(token: nnx.Param, z: jax.Array) -> jax.Array:
  """(1, R, D) -> (B, R, D): learned tokens, repeated for each example of z (B, N, D), in its dtype."""
  return jnp.broadcast_to(token[...].astype(z.dtype), (len(z), *token.shape[1:]))
