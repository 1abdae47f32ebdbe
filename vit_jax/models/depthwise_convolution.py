"""Depthwise convolutions, each channel by itself, in the form that is cheap where they are computed.

On CPUs a convolution is a product for each number of the kernel. One core of a Xeon takes 1 ms instead of 28 for 32
maps of 16 x 16 pixels, 144 channels and kernels of 3 x 3, and as long for the gradient by the input instead of 29. Both
gradients take one core of an EPYC 3 ms (9 where the kernel's is summed over all images at once). Elsewhere it is XLA's
grouped convolution: on TPUs the products would take two to five times as long by the compiler's estimate (v3 and v5e,
bfloat16), and ten times the memory. GPUs were not measured.
"""

import functools
import itertools
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
  numbers = kernel.reshape(-1, x.shape[3])
  pixels = _pixels(x, kernel, stride, rows, columns)
  return sum((here * number for here, number in zip(pixels, numbers, strict=True)), jnp.zeros_like(pixels[0]))


def _pixels(x: jax.Array, kernel: jax.Array, stride: int, rows: int, columns: int) -> list[jax.Array]:
  """What each place of the kernel meets, (…, rows, columns, C), of the padded pixels x, (…, H, W, C)."""
  last_row, last_column = stride * (rows - 1) + 1, stride * (columns - 1) + 1
  places = itertools.product(range(kernel.shape[0]), range(kernel.shape[1]))
  return [x[..., i : i + last_row : stride, j : j + last_column : stride, :] for i, j in places]


def _input_gradient(
  x: jax.Array, kernel: jax.Array, dy: jax.Array, stride: int, padding: Padding
) -> jax.Array:
  """The convolution of dy with the kernel turned round, where no pixel is skipped; it takes 0.6 of JAX's own's time."""
  if stride > 1:
    return jax.vjp(lambda x: _by_products(x, kernel, stride, padding), x)[1](dy)[0]
  (top, bottom), (left, right) = padding
  height, width = kernel.shape[0] - 1, kernel.shape[1] - 1
  around = ((height - top, height - bottom), (width - left, width - right))
  return _by_products(dy, kernel[::-1, ::-1], stride, around)


def _kernel_gradient(
  x: jax.Array, kernel: jax.Array, dy: jax.Array, stride: int, padding: Padding
) -> jax.Array:
  """The sum over images and pixels of what each place of the kernel meets times dy, image by image.

  XLA's CPU client sums over images and pixels together ten times as slowly.
  """
  x = jnp.pad(x, ((0, 0), *padding, (0, 0)))

  def add(sums: list[jax.Array], image: tuple[jax.Array, jax.Array]) -> tuple[list[jax.Array], None]:
    pixels, gradient = image
    met = _pixels(pixels, kernel, stride, *gradient.shape[:2])
    return [total + here * gradient for total, here in zip(sums, met, strict=True)], None

  # Made of dy, so that in a shard_map it differs between devices as the sums do.
  zero = 0 * dy[0].astype(jnp.promote_types(dy.dtype, jnp.float32))
  sums, _ = jax.lax.scan(add, [zero] * (kernel.shape[0] * kernel.shape[1]), (x, dy))
  gradient = jnp.stack([total.sum((0, 1)) for total in sums]).reshape(kernel.shape).astype(kernel.dtype)
  # In a shard_map all devices have the kernel, so that its gradient is the sum of theirs: JAX's own, of this sum's.
  return jax.vjp(lambda kernel: kernel + gradient, kernel)[1](gradient)[0]


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
  def products(x: jax.Array, kernel: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _input_gradient(x, kernel, dy, stride, padding), _kernel_gradient(x, kernel, dy, stride, padding)

  def grouped(x: jax.Array, kernel: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    _, gradient = jax.vjp(functools.partial(_by_xla, stride=stride, padding=padding), x, kernel)
    return gradient(dy)

  return jax.lax.platform_dependent(*saved, dy, cpu=products, default=grouped)


_convolve.defvjp(_forward, _backward)
