"""Resizing within an ONNX graph, to the same bytes as Pillow, and without antialiasing as OpenCV.

ONNX's own antialiased Resize computes weights in float32, by which one in a thousand bytes differs. Here they are
computed in float64 as in Pillow's precompute_coeffs and normalize_coeffs_8bpc (src/libImaging/Resample.c), rounded to
multiples of 2^-22, and multiplied with bytes; first the columns are rounded to bytes, then the rows. All sums are whole
numbers below 2^53, which float64 computes exactly, in whatever order. An output meets few inputs; so outputs are
computed in blocks, each by one product with the inputs that any of it meets. Without antialiasing, nothing is rounded.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from vit_jax.data.preprocess import Preprocess
from vit_jax.export.onnx_numbers import Number
from vit_jax.foundation.errors import UserError

_BLOCK = 32  # outputs
_PRECISION = 2**22


def resized(
  images: Number, preprocess: Preprocess, own: Number, whole: Number, first: Number, number: Number
) -> Number:
  """float32 (B, C, H', W') in 0 … 255: rows and columns of images resized from `own` to `whole`.

  Args:
    images: uint8 (B, H, W, C).
    preprocess: says by which method.
    own, whole: int64 (2,), heights and widths.
    first, number: int64 (2,), the first row and column that are needed, and how many of each.

  Raises:
    UserError: without antialiasing, the method is not bilinear, which no checkpoint's is.
  """
  if not preprocess.antialias and preprocess.method != 'bilinear':
    raise UserError(
      f'A {preprocess.method} resize without antialiasing is no part of an ONNX model; export it with --input=tensor.'
    )
  pixels = images.of('Transpose', perm=[0, 1, 3, 2])  # (B, H, C, W)
  for axis, order in ((1, [0, 2, 3, 1]), (0, [0, 1, 3, 2])):  # columns first, as Pillow
    sides = _Side(*(each.of('Gather', np.array(axis), axis=0) for each in (own, whole, first, number)))
    if preprocess.method == 'nearest':
      pixels = _nearest(pixels, sides)
    else:
      pixels = _filtered(pixels, sides, preprocess, preprocess.size[axis])
    pixels = pixels.of('Transpose', perm=order)
  return pixels.to(np.float32)


class _Side(NamedTuple):
  """The rows or columns of images: int64 () each, as of `resized`."""

  own: Number
  whole: Number
  first: Number
  number: Number

  @property
  def scale(self) -> Number:
    """float64 (): inputs for an output."""
    return self.own.to(np.float64) / self.whole.to(np.float64)


def _nearest(pixels: Number, side: _Side) -> Number:
  """Pixels (…, inputs) -> (…, outputs), whose places Pillow adds up one after the other (ImagingScaleAffine)."""
  zero = side.own * 0
  numbers = zero.up_to(side.first + side.number, 1)
  steps = numbers.equals(0).of('Where', side.scale * 0.5, side.scale, dtype=np.float64)
  places = steps.of('CumSum', np.array(0)).to(np.int64)
  needed = places.of('Gather', zero.up_to(side.number, 1) + side.first, axis=0)
  return pixels.of('Gather', needed, axis=3)


def _filtered(pixels: Number, side: _Side, preprocess: Preprocess, most: int) -> Number:
  """Pixels (…, inputs), at most 255 -> float64 (…, outputs), of which there are `most` at most."""
  scale = side.scale
  stretch = scale.at_least(1.0) if preprocess.antialias else scale * 0.0 + 1.0
  support, weigh = _FILTERS[preprocess.method]
  blocks = []
  for start in range(0, most, _BLOCK):
    outputs = side.number.at_most(start).up_to(side.number.at_most(start + _BLOCK), 1) + side.first
    centers = (outputs.to(np.float64) + 0.5) * scale
    lows, highs = ((centers + stretch * reach + 0.5).of('Floor') for reach in (-support, support))
    low = lows.of('ReduceMin', keepdims=0).to(np.int64).at_least(0)
    high = highs.of('ReduceMax', keepdims=0).to(np.int64).at_most(side.own)
    inputs = low.up_to(high, 1).to(np.float64).of('Unsqueeze', np.array([1]))
    weights = weigh((inputs - centers + 0.5) / stretch) * ((inputs >= lows) & (inputs < highs)).to(np.float64)
    weights = weights / weights.of('ReduceSum', np.array([0]), keepdims=1)
    if preprocess.antialias:
      weights = weights * float(_PRECISION)
      weights = weights.of('Sign') * (weights.of('Abs') + 0.5).of('Floor')
    met = pixels.of('Slice', *(each.of('Unsqueeze', np.array([0])) for each in (low, high)), np.array([3]))
    blocks.append(met.to(np.float64).of('MatMul', weights))
  sums = blocks[0].of('Concat', *blocks[1:], axis=3)
  if not preprocess.antialias:
    return sums
  return ((sums + _PRECISION / 2) / float(_PRECISION)).of('Floor').at_most(255.0).at_least(0.0)


def _triangle(x: Number) -> Number:
  """1 - |x|, or 0 beyond 1."""
  return (x.of('Abs') * -1.0 + 1.0).at_least(0.0)


def _cubic(x: Number) -> Number:
  """Keys' cubic of a = -1/2."""
  a, x = -0.5, x.of('Abs')
  near = (x * (a + 2) - (a + 3)) * x * x + 1.0
  far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
  return (x < 1.0).of('Where', near, (x < 2.0).of('Where', far, np.array(0.0)), dtype=np.float64)


def _lanczos(x: Number) -> Number:
  """sinc(x) sinc(x / 3), or 0 beyond 3."""

  def sinc(y: Number) -> Number:
    angle = y * math.pi
    return angle.equals(0.0).of('Where', np.array(1.0), angle.of('Sin') / angle, dtype=np.float64)

  return (x.of('Abs') < 3.0).of('Where', sinc(x) * sinc(x / 3.0), np.array(0.0), dtype=np.float64)


# The reach of each filter in pixels of an image that is not shrunk, and its weights.
_FILTERS: dict[str, tuple[float, Callable[[Number], Number]]] = {
  'bilinear': (1.0, _triangle),
  'bicubic': (2.0, _cubic),
  'lanczos': (3.0, _lanczos),
}
