"""Layers and functions that several models share."""

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import initializers

from vit_jax.models import dense_product, flexible_patches
from vit_jax.models.base import Sharding

XAVIER = initializers.xavier_uniform()  # the kernels of a ViT's blocks, as in the original code


class PatchEmbedding(nnx.Module):
  """Cuts images into patches of P x P pixels, each of which becomes a token (E in equation 1)."""

  def __init__(
    self,
    patch: int,
    channels: int,
    width: int,
    *,
    largest: int | None = None,
    bias: bool = True,
    dtype: jnp.dtype,
    sharding: Sharding | None = None,
    rngs: nnx.Rngs,
  ):
    """Patches of P pixels along a side and C channels, tokens of width D, computed in `dtype`.

    The kernel is of the `largest` patches, None for P, and resized to P (flexible_patches.py).
    """
    self.patch = patch
    largest = largest or patch
    shape = (largest, largest, channels, width)
    self.kernel = nnx.Param(initializers.lecun_normal()(rngs.params(), shape, jnp.float32))
    self.bias = nnx.Param(jnp.zeros(width)) if bias else None
    self.dtype = dtype
    self.sharding = sharding

  def __call__(self, images: jax.Array) -> jax.Array:
    """(B, h*P, w*P, C) -> (B, h*w, D), row by row."""
    kernel = flexible_patches.resized(self.kernel[...], self.patch).astype(self.dtype)
    p, _, c, d = kernel.shape
    b, height, width, _ = images.shape
    # A convolution of stride P, written as a matrix product: on a CPU it takes 0.8 of the time.
    grid = images.astype(self.dtype).reshape(b, height // p, p, width // p, p, c)
    patches = grid.transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, p * p * c)
    # Nobody asks for the gradient by patches, which a loaded model's product would compute.
    product = jax.lax.dot_general if self.sharding is None else dense_product.dot_general(self.sharding)
    tokens = product(patches, kernel.reshape(-1, d), (((2,), (0,)), ((), ())))
    return tokens if self.bias is None else tokens + self.bias[...].astype(self.dtype)


def initial_head(inputs: int, num_classes: int, bias: float, rngs: nnx.Rngs) -> nnx.Linear:
  """The last layer, (inputs, K) in float32: its kernel begins at zero, its bias at `bias`."""
  init = {'kernel_init': initializers.zeros, 'bias_init': initializers.constant(bias)}
  return nnx.Linear(inputs, num_classes, **init, rngs=rngs)


def repeat_for_examples(token: nnx.Param, z: jax.Array) -> jax.Array:
  """(1, R, D) -> (B, R, D): learned tokens, repeated for each example of z (B, N, D), in its dtype."""
  return jnp.broadcast_to(token[...].astype(z.dtype), (z.shape[0], *token.shape[1:]))


def unit(x: jax.Array, axis: int = -1) -> jax.Array:
  """float32: the vectors along an axis, scaled to length 1."""
  x = x.astype(jnp.float32)
  return x * jax.lax.rsqrt(jnp.square(x).sum(axis, keepdims=True) + 1e-24)


def layer_scale(width: int, value: float | None) -> nnx.Param | None:
  """A factor for each channel of a branch, (D,), that begins at `value` (LayerScale); None: there is none."""
  return None if value is None else nnx.Param(jnp.full(width, value, jnp.float32))


def scaled(y: jax.Array, scale: nnx.Param | None) -> jax.Array:
  """What a branch adds, (B, N, D), times its learned factors (D,), if it has any."""
  return y if scale is None else y * scale[...].astype(y.dtype)
