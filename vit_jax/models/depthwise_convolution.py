"""Depthwise convolutions, each channel by itself, in the form that is cheap where they are computed.

On CPUs a convolution is a product for each number of the kernel. One core of a Xeon takes 1 ms instead of 28 for 32
maps of 16 x 16 pixels, 144 channels and kernels of 3 x 3, as long for the gradient by the input instead of 29, and 24
instead of 63 for that by the kernel. Elsewhere it is XLA's grouped convolution: on TPUs the products would take two to
five times as long by the compiler's estimate (v3 and v5e, bfloat16), and ten times the memory. GPUs were not measured.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from vit_jax.models import scanned_blocks, strided_convolution
from vit_jax.models.base import Sharding
from vit_jax.models.strided_convolution import Padding


def convolve(
  x: jax.Array, kernel: jax.Array, stride: int = 1, *, padding: Padding, sharding: Sharding | None
) -> jax.Array:
  """(B, H, W, C) and (h, w, C) -> (B, H', W', C), all of one dtype; x may be split by its images and channels."""
  one_device = functools.partial(_convolve, stride=stride, padding=padding)
  if sharding is None:
    return scanned_blocks.product_with_kernel(one_device(x, kernel))
  # Each device convolves its own images and channels. XLA's partitioner (jaxlib 0.10) would add the gradient of a
  # grouped kernel up once for each device along an axis that does not split the images, such as `tensor`.
  images, channels = sharding.spec, sharding.spec[3] if len(sharding.spec) > 3 else None
  each_device = jax.shard_map(
    one_device,
    mesh=sharding.mesh,
    in_specs=(images, PartitionSpec(None, None, channels)),
    out_specs=images,
  )
  return scanned_blocks.product_with_kernel(each_device(x, kernel))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolve(x: jax.Array, kernel: jax.Array, stride: int, padding: Padding) -> Any:
  products = functools.partial(_by_products, stride=stride, padding=padding)
  grouped = functools.partial(_by_xla, stride=stride, padding=padding)
  return jax.lax.platform_dependent(x, kernel, cpu=products, default=grouped)


def _by_products(x: jax.Array, kernel: jax.Array, stride: int, padding: Padding) -> jax.Array:
  """The sum over the kernel's places of the pixels that they meet times their numbers."""
  rows, columns = strided_convolution.output_size(x, kernel, stride, padding)
  # The barrier keeps XLA from computing x anew for each of the products.
  x = jax.lax.optimization_barrier(jnp.pad(x, ((0, 0), *padding, (0, 0))))
  y = jnp.zeros((x.shape[0], rows, columns, x.shape[3]), x.dtype)
  for i in range(kernel.shape[0]):
    for j in range(kernel.shape[1]):
      pixels = x[:, i : i + stride * (rows - 1) + 1 : stride, j : j + stride * (columns - 1) + 1 : stride]
      y += pixels * kernel[i, j]
  return y


def _by_xla(x: jax.Array, kernel: jax.Array, stride: int, padding: Padding) -> jax.Array:
  """The convolution in as many groups as channels."""
  return strided_convolution.by_xla(x, kernel[:, :, None], stride, padding, groups=x.shape[3])


def _forward(
  x: jax.Array, kernel: jax.Array, stride: int, padding: Padding
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  return _convolve(x, kernel, stride, padding), (x, kernel)


def _backward(
  stride: int, padding: Padding, saved: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
  def gradients(how: Any, x: jax.Array, kernel: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    _, gradient = jax.vjp(functools.partial(how, stride=stride, padding=padding), x, kernel)
    return gradient(dy)

  products = functools.partial(gradients, _by_products)
  grouped = functools.partial(gradients, _by_xla)
  return jax.lax.platform_dependent(*saved, dy, cpu=products, default=grouped)


_convolve.defvjp(_forward, _backward)
