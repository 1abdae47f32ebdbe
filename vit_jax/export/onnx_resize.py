"""Resizing within an ONNX graph, to the same bytes as Pillow, and without antialiasing as OpenCV.

ONNX's own antialiased Resize computes weights in float32, by which one in a thousand bytes differs. Here they are
computed in float64 as in Pillow's precompute_coeffs and normalize_coeffs_8bpc (src/libImaging/Resample.c), rounded to
multiples of 2^-22, and multiplied with bytes; first the columns are rounded to bytes, then the rows. All sums are whole
numbers below 2^53, which float64 computes exactly, in whatever order. An output meets few inputs; so outputs are
computed in blocks, each by one product with the inputs that any of it meets.
"""

import math
from collections.abc import Callable

import numpy as np

from vit_jax.data.preprocess import Preprocess
from vit_jax.export.onnx_graph import Graph

_FLOAT, _INT, _DOUBLE = 1, 7, 11  # onnx.TensorProto's numbers of dtypes
_BLOCK = 32  # outputs
_PRECISION = 2**22
# Reach of each filter, in pixels of an image that is not shrunk.
_SUPPORT = {'bilinear': 1.0, 'bicubic': 2.0, 'lanczos': 3.0}


class Integers:
  """Arithmetic on whole numbers in a graph, which has int64 for them."""

  def __init__(self, graph: Graph):
    self.graph = graph

  def __call__(self, op: str, *values: str | int | tuple[int, ...]) -> str:
    """The result of an operation on values of the graph and numbers."""
    return self.graph.add(op, [v if isinstance(v, str) else np.array(v, np.int64) for v in values])[0]

  def number(self, value: str) -> str:
    """A value as int64, rounded down if it is positive."""
    return self.graph.add('Cast', [value], to=_INT)[0]

  def double(self, value: str) -> str:
    """A value as float64."""
    return self.graph.add('Cast', [value], to=_DOUBLE)[0]

  def side(self, sides: str, axis: int) -> str:
    """int64 (): the height (0) or width (1) of both."""
    return self.graph.add('Gather', [sides, np.array(axis)], axis=0)[0]


def resized(integers: Integers, preprocess: Preprocess, own: str, whole: str, first: str, number: str) -> str:
  """float32 (B, C, H', W') in 0 … 255: rows and columns of the image 'images' resized from `own` to `whole`.

  Args:
    integers: of the graph.
    preprocess: says by which method.
    own, whole: int64 (2,), heights and widths.
    first, number: int64 (2,), the first row and column that are needed, and how many of each.
  """
  graph = integers.graph
  if not preprocess.antialias:
    return _by_resize(integers, preprocess, whole, first, number)
  rows, columns = (_Axis(integers, own, whole, first, number, axis, preprocess.size[axis]) for axis in (0, 1))
  (pixels,) = graph.add('Transpose', ['images'], perm=[0, 1, 3, 2])  # (B, H, C, W)
  for axis, order in ((columns, [0, 2, 3, 1]), (rows, [0, 1, 3, 2])):  # columns first, as Pillow
    pixels = (
      axis.nearest(pixels) if preprocess.method == 'nearest' else axis.filtered(pixels, preprocess.method)
    )
    (pixels,) = graph.add('Transpose', [pixels], perm=order)
  return graph.add('Cast', [pixels], to=_FLOAT)[0]


class _Axis:
  """The rows or columns of an image, and those that it is resized to, the last axis of what is resized."""

  def __init__(self, integers: Integers, own: str, whole: str, first: str, number: str, axis: int, most: int):
    """As `resized`, of rows (axis 0) or columns (1), of which `most` at most are needed."""
    self.integers, self.graph, self.most = integers, integers.graph, most
    self.own, self.first, self.number = (integers.side(each, axis) for each in (own, first, number))
    self.scale = self.double('Div', integers.double(self.own), integers.double(integers.side(whole, axis)))

  def double(self, op: str, *values: str | float) -> str:
    """The result of an operation on float64."""
    return self.graph.add(op, [v if isinstance(v, str) else np.array(v, np.float64) for v in values])[0]

  def centers(self, start: int) -> str:
    """float64: where the outputs of the block that begins at `start` lie on the input."""
    end = self.integers('Min', self.number, start + _BLOCK)
    (numbers,) = self.graph.add('Range', [self.integers('Min', start, self.number), end, np.array(1)])
    places = self.integers.double(self.integers('Add', numbers, self.first))
    return self.double('Mul', self.double('Add', places, 0.5), self.scale)

  def nearest(self, pixels: str) -> str:
    """Pixels (…, inputs) -> (…, outputs), whose places Pillow adds up one after the other (ImagingScaleAffine)."""
    graph, after = self.graph, self.integers('Add', self.first, self.number)
    (numbers,) = graph.add('Range', [np.array(0), after, np.array(1)])
    is_first = self.integers('Equal', numbers, 0)
    steps = graph.add('Where', [is_first, self.double('Mul', self.scale, 0.5), self.scale])
    places = self.integers.number(graph.add('CumSum', [*steps, np.array(0)])[0])
    (needed,) = graph.add(
      'Gather',
      [
        places,
        self.integers('Add', self.first, *graph.add('Range', [np.array(0), self.number, np.array(1)])),
      ],
      axis=0,
    )
    return graph.add('Gather', [pixels, needed], axis=3)[0]

  def filtered(self, pixels: str, method: str) -> str:
    """Pixels (…, inputs) of whole numbers -> float64 (…, outputs) of whole numbers from 0 to 255."""
    stretch = self.double('Max', self.scale, 1.0)
    reach = self.double('Mul', stretch, _SUPPORT[method])
    blocks = []
    for start in range(0, self.most, _BLOCK):
      centers = self.centers(start)
      lows = self.double('Floor', self.double('Add', self.double('Sub', centers, reach), 0.5))
      highs = self.double('Floor', self.double('Add', self.double('Add', centers, reach), 0.5))
      blocks.append(self._block(pixels, method, stretch, centers, lows, highs))
    (sums,) = self.graph.add('Concat', blocks, axis=3)
    rounded = self.double('Floor', self.double('Div', self.double('Add', sums, _PRECISION / 2), _PRECISION))
    return self.double('Max', self.double('Min', rounded, 255.0), 0.0)

  def _block(self, pixels: str, method: str, stretch: str, centers: str, lows: str, highs: str) -> str:
    """The sums of weighted inputs for some outputs, whose inputs lie from `lows` up to `highs`, without the latter."""
    graph, integers = self.graph, self.integers
    start = integers('Max', integers.number(graph.add('ReduceMin', [lows], keepdims=0)[0]), 0)
    stop = integers('Min', integers.number(graph.add('ReduceMax', [highs], keepdims=0)[0]), self.own)
    (numbers,) = graph.add('Range', [start, stop, np.array(1)])
    (places,) = graph.add('Unsqueeze', [integers.double(numbers), np.array([1])])  # (inputs, 1)
    away = self.double('Add', self.double('Sub', places, centers), 0.5)
    weights = _FILTERS[method](self, self.double('Div', away, stretch))
    (after,) = graph.add('GreaterOrEqual', [places, lows])
    (before,) = graph.add('Less', [places, highs])
    inside = integers.double(graph.add('And', [after, before])[0])
    weights = self.double('Mul', weights, inside)
    (total,) = graph.add('ReduceSum', [weights, np.array([0])], keepdims=1)
    shares = self.double('Mul', self.double('Div', weights, total), float(_PRECISION))
    size = self.double('Floor', self.double('Add', self.double('Abs', shares), 0.5))
    whole = self.double('Mul', self.double('Sign', shares), size)
    bounds = [graph.add('Unsqueeze', [bound, np.array([0])])[0] for bound in (start, stop)]
    (met,) = graph.add('Slice', [pixels, *bounds, np.array([3])])
    return graph.add('MatMul', [integers.double(met), whole])[0]


def _triangle(axis: _Axis, x: str) -> str:
  """1 - |x|, or 0 beyond 1."""
  return axis.double('Max', axis.double('Sub', 1.0, axis.double('Abs', x)), 0.0)


def _cubic(axis: _Axis, x: str) -> str:
  """Keys' cubic of a = -1/2."""
  a, x = -0.5, axis.double('Abs', x)
  near = axis.double('Mul', x, a + 2)
  near = axis.double('Mul', axis.double('Sub', near, a + 3), x)
  near = axis.double('Add', axis.double('Mul', near, x), 1.0)
  far = axis.double('Mul', axis.double('Sub', x, 5.0), x)
  far = axis.double('Mul', axis.double('Add', far, 8.0), x)
  far = axis.double('Mul', axis.double('Sub', far, 4.0), a)
  (is_near,) = axis.graph.add('Less', [x, np.array(1.0)])
  (is_far,) = axis.graph.add('Less', [x, np.array(2.0)])
  return axis.graph.add('Where', [is_near, near, *axis.graph.add('Where', [is_far, far, np.array(0.0)])])[0]


def _lanczos(axis: _Axis, x: str) -> str:
  """sinc(x) sinc(x / 3), or 0 beyond 3."""
  (is_zero,) = axis.graph.add('Equal', [x, np.array(0.0)])

  def sinc(y: str) -> str:
    angle = axis.double('Mul', y, math.pi)
    safe = axis.graph.add('Where', [is_zero, np.array(1.0), angle])[0]
    return axis.graph.add(
      'Where', [is_zero, np.array(1.0), axis.double('Div', axis.double('Sin', safe), safe)]
    )[0]

  product = axis.double('Mul', sinc(x), sinc(axis.double('Div', x, 3.0)))
  (inside,) = axis.graph.add('Less', [axis.double('Abs', x), np.array(3.0)])
  return axis.graph.add('Where', [inside, product, np.array(0.0)])[0]


_FILTERS: dict[str, Callable[[_Axis, str], str]] = {
  'bilinear': _triangle,
  'bicubic': _cubic,
  'lanczos': _lanczos,
}


def _by_resize(integers: Integers, preprocess: Preprocess, whole: str, first: str, number: str) -> str:
  """As `resized`, in float32 and without antialiasing, as OpenCV does it: by ONNX's Resize."""
  graph = integers.graph
  (images,) = graph.add('Transpose', graph.add('Cast', ['images'], to=_FLOAT), perm=[0, 3, 1, 2])
  (shape,) = graph.add('Shape', [images])
  # Channel by channel: onnxruntime's optimizer (1.32) would else move the transposition behind the Resize, which has no
  # cubic kernel for channels that come last, nor understands sizes of some axes.
  (sides,) = graph.add('Slice', [shape, np.array([2]), np.array([4])])
  (alone,) = graph.add('Concat', [np.array([-1, 1]), sides], axis=0)
  (images,) = graph.add('Reshape', [images, alone])
  (images_and_channels,) = graph.add('Shape', [images], start=0, end=2)
  (sizes,) = graph.add('Concat', [images_and_channels, whole], axis=0)
  modes = {'nearest': 'nearest', 'bilinear': 'linear', 'bicubic': 'cubic'}
  options = {'nearest': {'nearest_mode': 'floor'}, 'bicubic': {'cubic_coeff_a': -0.75}}.get(
    preprocess.method, {}
  )
  place = 'asymmetric' if preprocess.method == 'nearest' else 'half_pixel'
  enlarged = graph.add(
    'Resize',
    [images, None, None, sizes],
    mode=modes[preprocess.method],
    coordinate_transformation_mode=place,
    **options,
  )
  (pair,) = graph.add('Slice', [shape, np.array([0]), np.array([2])])
  (pixels,) = graph.add('Reshape', [*enlarged, *graph.add('Concat', [pair, whole], axis=0)])
  return graph.add('Slice', [pixels, first, integers('Add', first, number), np.array([2, 3])])[0]
