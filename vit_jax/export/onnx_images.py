"""Preprocessing within an ONNX graph: uint8 images of any size to a model's input, equal to what `Preprocess` makes.

Sizes and cuts are computed in the integers of data/geometry.py, and resizes as onnx_resize.py says.
"""

import jax
import numpy as np

from vit_jax.data.preprocess import Preprocess
from vit_jax.export import onnx_resize
from vit_jax.export.onnx_graph import Dim, Graph, Tensor
from vit_jax.export.onnx_resize import Integers


def add(graph: Graph, preprocess: Preprocess, batch: Dim, height: Dim, width: Dim) -> Tensor:
  """Adds the input 'images', uint8 (B, height, width, C); returns the model's input, float32 (B, H, W, C)."""
  images = Tensor('images', (batch, height, width, preprocess.channels), np.dtype(np.uint8))
  graph.inputs.append(images)
  integers = Integers(graph)
  (own,) = graph.add('Shape', [images], start=1, end=3)  # height, width
  whole = _resized_size(integers, preprocess, own)
  first, number, missing = _middle(integers, preprocess, whole)
  pixels = onnx_resize.resized(integers, preprocess, own, whole, first, number)  # (B, C, H', W')
  # (x / 255 - mean) / std as one product and sum; a border of the mean's colour is zero where that is subtracted first.
  mean, std = (np.asarray(each, np.float64).reshape(-1, 1, 1) for each in (preprocess.mean, preprocess.std))
  ground = np.clip(np.rint(255 * mean), 0, 255) if preprocess.timm == 'border' else np.zeros((1, 1, 1))
  if missing is not None:
    before = integers('Div', missing, 2)
    none = np.array([0, 0])
    (borders,) = graph.add('Concat', [none, before, none, integers('Sub', missing, before)], axis=0)
    (inside,) = graph.add('Sub', [pixels, ground.astype(np.float32)])
    (pixels,) = graph.add('Pad', [inside, borders, np.zeros((), np.float32)])
  else:
    ground = np.zeros((1, 1, 1))
  (scaled,) = graph.add('Mul', [pixels, (1 / (255 * std)).astype(np.float32)])
  (normal,) = graph.add('Add', [scaled, ((ground / 255 - mean) / std).astype(np.float32)])
  like = jax.ShapeDtypeStruct((batch, *preprocess.size, preprocess.channels), np.float32)
  return graph.tensor('Transpose', [normal], like, perm=[0, 2, 3, 1])


def _resized_size(integers: Integers, preprocess: Preprocess, own: str) -> str:
  """int64 (2,): `Preprocess.resized_size` of an image whose height and width are `own`."""
  graph = integers.graph
  rule, target = preprocess.resize_rule
  if rule == 'squash':
    return graph.constant(np.array(target, np.int64))
  if rule == 'shorter':
    product = integers('Mul', own, target[0])
    (smaller,) = graph.add('ReduceMin', [own, np.array([0])], keepdims=1)
    if preprocess.antialias:
      return integers('Div', product, smaller)
    # To the nearest, a half to the even number: of a half, the upper one less one where that is odd.
    twice = integers('Mul', smaller, 2)
    sum_ = integers('Add', integers('Mul', product, 2), smaller)
    nearest = integers('Div', sum_, twice)
    is_half = integers('Equal', integers('Mul', nearest, twice), sum_)
    is_odd = integers('Equal', integers('Mod', nearest, 2), 1)
    return integers('Sub', nearest, integers.number(graph.add('And', [is_half, is_odd])[0]))
  # timm divides floats: the largest or smallest of the ratios; a half goes to the even number.
  sides = integers.double(own)
  (ratios,) = graph.add('Div', [sides, np.array(target, np.float64)])
  (ratio,) = graph.add('ReduceMax' if rule == 'border' else 'ReduceMin', [ratios, np.array([0])], keepdims=1)
  (rounded,) = graph.add('Round', graph.add('Div', [sides, ratio]))
  return integers('Max', integers.number(rounded), 1)


def _middle(integers: Integers, preprocess: Preprocess, whole: str) -> tuple[str, str, str | None]:
  """Of the middle of the resized image (geometry.cut): its first row and column, how many, and how many are missing.

  The last is None where none can be missing.
  """
  graph, size = integers.graph, preprocess.size
  rule, target = preprocess.resize_rule
  if rule != 'border' and all(side >= wanted for side, wanted in zip(target, size, strict=True)):
    number, missing = graph.constant(np.array(size, np.int64)), None
  else:
    number = integers('Min', whole, size)
    missing = integers('Sub', size, number)
  rest = integers('Sub', whole, number)
  first = integers('Div', rest, 2)
  if preprocess.timm is not None:  # half a pixel goes to the even one
    first = integers('Add', first, integers.number(integers('Equal', integers('Mod', rest, 4), 3)))
  return first, number, missing
