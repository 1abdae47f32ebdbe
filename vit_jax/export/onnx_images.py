"""Preprocessing within an ONNX graph: uint8 images of any size to a model's input, as `Preprocess` makes it.

Sizes and cuts are computed in the integers of data/geometry.py. ONNX's antialiased Resize of bytes is Pillow's
algorithm, whose float32 positions may be a rounding away from Pillow's (docs/export.md has the figures).
"""

import jax
import numpy as np

from vit_jax.data.preprocess import Preprocess
from vit_jax.export.onnx_graph import Dim, Graph, Tensor
from vit_jax.foundation.errors import UserError

# Of Pillow's methods; those without antialiasing are OpenCV's.
_CUBIC = {True: -0.5, False: -0.75}
_MODES = {'nearest': 'nearest', 'bilinear': 'linear', 'bicubic': 'cubic'}


def add(graph: Graph, preprocess: Preprocess, batch: Dim, height: Dim, width: Dim) -> Tensor:
  """Adds the input 'images', uint8 (B, height, width, C); returns the model's input, float32 (B, H, W, C).

  Raises:
    UserError: ONNX has no such preprocessing.
  """
  if preprocess.method not in _MODES:
    raise UserError(
      f'The checkpoint resizes images by {preprocess.method!r}, which ONNX has not; export it with --input=tensor.'
    )
  images = Tensor('images', (batch, height, width, preprocess.channels), np.dtype(np.uint8))
  graph.inputs.append(images)
  add_ = _Integers(graph)
  (shape,) = graph.add('Shape', [images])
  (own,) = graph.add('Slice', [shape, np.array([1]), np.array([3])])  # height, width
  whole = _resized_size(graph, add_, preprocess, own)
  (first,) = graph.add('Transpose', [images], perm=[0, 3, 1, 2])
  if not preprocess.antialias:
    (first,) = graph.add('Cast', [first], to=1)
  resized = _resized(graph, first, preprocess, whole)
  if preprocess.antialias:
    (resized,) = graph.add('Cast', [resized], to=1)
  # (x / 255 - mean) / std as one product and sum; a border of the mean's colour is zero where that is subtracted first.
  mean, std = (np.asarray(each, np.float64).reshape(-1, 1, 1) for each in (preprocess.mean, preprocess.std))
  ground = np.clip(np.rint(255 * mean), 0, 255) if preprocess.timm == 'border' else np.zeros((1, 1, 1))
  if ground.any():
    (resized,) = graph.add('Sub', [resized, ground.astype(np.float32)])
  cut = _cut(graph, add_, resized, whole, preprocess)
  (scaled,) = graph.add('Mul', [cut, (1 / (255 * std)).astype(np.float32)])
  (normal,) = graph.add('Add', [scaled, ((ground / 255 - mean) / std).astype(np.float32)])
  like = jax.ShapeDtypeStruct((batch, *preprocess.size, preprocess.channels), np.float32)
  return graph.tensor('Transpose', [normal], like, perm=[0, 2, 3, 1])


class _Integers:
  """Arithmetic of int64 (2,), heights and widths."""

  def __init__(self, graph: Graph):
    self.graph = graph

  def __call__(self, op: str, *values: str | int | tuple[int, ...]) -> str:
    names = [value if isinstance(value, str) else np.array(value, np.int64) for value in values]
    return self.graph.add(op, names)[0]

  def smaller(self, sides: str) -> str:
    """int64 (1,): the smaller of both."""
    return self.graph.add('ReduceMin', [sides, np.array([0])], keepdims=1)[0]


def _resized_size(graph: Graph, add: _Integers, preprocess: Preprocess, own: str) -> str:
  """int64 (2,): `Preprocess.resized_size`."""
  rule, target = preprocess.resize_rule
  if rule == 'squash':
    return graph.constant(np.array(target, np.int64))
  if rule == 'shorter':
    product, smaller = add('Mul', own, target[0]), add.smaller(own)
    if preprocess.antialias:
      return add('Div', product, smaller)
    # To the nearest, a half to the even number: ceil((2 a - b) / (2 b)) and floor((2 a + b) / (2 b)), which differ of halves.
    twice = add('Mul', smaller, 2)
    upper = add('Add', add('Mul', product, 2), smaller)
    nearest = add('Div', upper, twice)
    (tie,) = graph.add('Equal', [add('Mul', nearest, twice), upper])
    (odd,) = graph.add('Cast', [add('Mod', nearest, 2)], to=9)
    return add('Sub', nearest, graph.add('Cast', graph.add('And', [tie, odd]), to=7)[0])
  # timm divides floats: max or min of the ratios, and a half goes to the even number.
  (sides,) = graph.add('Cast', [own], to=11)
  (ratios,) = graph.add('Div', [sides, np.array(target, np.float64)])
  reduce = 'ReduceMax' if rule == 'border' else 'ReduceMin'
  (ratio,) = graph.add(reduce, [ratios, np.array([0])], keepdims=1)
  (rounded,) = graph.add('Round', graph.add('Div', [sides, ratio]))
  return add('Max', graph.add('Cast', [rounded], to=7)[0], 1)


def _resized(graph: Graph, images: str, preprocess: Preprocess, whole: str) -> str:
  """Images (B, C, h, w) resized to `whole`."""
  # The reshapes keep onnxruntime's optimizer (1.32) from moving the transposition behind the Resize, which has fewer
  # kernels for channels that come last.
  (shape,) = graph.add('Shape', [images])
  (sides,) = graph.add('Slice', [shape, np.array([2]), np.array([4])])
  (alone,) = graph.add('Concat', [np.array([-1, 1]), sides], axis=0)
  images = graph.add('Reshape', [images, alone])[0]
  (number,) = graph.add('Shape', [images], start=0, end=2)
  (sizes,) = graph.add('Concat', [number, whole], axis=0)
  attributes = {'mode': _MODES[preprocess.method], 'coordinate_transformation_mode': 'half_pixel'}
  if preprocess.method == 'nearest':
    attributes['nearest_mode'] = 'round_prefer_ceil' if preprocess.antialias else 'floor'
  if preprocess.method == 'bicubic':
    attributes['cubic_coeff_a'] = _CUBIC[preprocess.antialias]
  if preprocess.antialias and preprocess.method != 'nearest':
    attributes |= {'antialias': 1, 'exclude_outside': 1}
  resized = graph.add('Resize', [images, None, None, sizes], **attributes)
  (first,) = graph.add('Slice', [shape, np.array([0]), np.array([2])])
  return graph.add('Reshape', [*resized, graph.add('Concat', [first, whole], axis=0)[0]])[0]


def _cut(graph: Graph, add: _Integers, images: str, whole: str, preprocess: Preprocess) -> str:
  """The middle of images (B, C, h, w), and zeros around where there are fewer pixels (geometry.cut)."""
  rule, target = preprocess.resize_rule
  size = preprocess.size
  if rule == 'squash' and tuple(target) == tuple(size):
    return images
  if rule == 'border' or any(wanted > side for wanted, side in zip(size, target, strict=True)):
    missing = add('Max', add('Sub', size, whole), 0)
    before = add('Div', missing, 2)
    (borders,) = graph.add('Concat', [before, add('Sub', missing, before)], axis=0)
    (images,) = graph.add('Pad', [images, borders, np.zeros((), np.float32), np.array([2, 3])])
    whole = add('Max', whole, size)
  rest = add('Sub', whole, size)
  start = add('Div', rest, 2)
  if preprocess.timm is not None:  # half a pixel goes to the even one
    (up,) = graph.add('Equal', [add('Mod', rest, 4), np.array([3], np.int64)])
    start = add('Add', start, graph.add('Cast', [up], to=7)[0])
  return graph.add('Slice', [images, start, add('Add', start, size), np.array([2, 3])])[0]
