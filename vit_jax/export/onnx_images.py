"""Preprocessing within an ONNX graph: uint8 images of any size to a model's input, equal to what `Preprocess` makes.

Sizes and cuts are computed in the integers of data/geometry.py, and resizes as onnx_resize.py says.
"""

import jax
import numpy as np

from vit_jax.data.preprocess import Preprocess
from vit_jax.export import onnx_resize
from vit_jax.export.onnx_graph import Dim, Graph, Tensor
from vit_jax.export.onnx_numbers import Number


def add(graph: Graph, preprocess: Preprocess, batch: Dim, height: Dim, width: Dim) -> Tensor:
  """Adds the input 'images', uint8 (B, height, width, C); returns the model's input, float32 (B, H, W, C).

  Raises UserError where the graph cannot resize as `preprocess` does.
  """
  tensor = Tensor('images', (batch, height, width, preprocess.channels), np.dtype(np.uint8))
  graph.inputs.append(tensor)
  images = Number(graph, tensor.name, np.uint8)
  own = images.of('Shape', dtype=np.int64, start=1, end=3)  # height, width
  whole = _resized_size(own, preprocess)
  first, number, missing = _middle(whole, preprocess)
  pixels = onnx_resize.resized(images, preprocess, own, whole, first, number)  # (B, C, H', W')
  # (x / 255 - mean) / std as one product and sum; a border of the mean's colour is zero where that is subtracted first.
  mean, std = (np.asarray(each, np.float64).reshape(-1, 1, 1) for each in (preprocess.mean, preprocess.std))
  ground = np.zeros((1, 1, 1))
  if missing is not None:
    if preprocess.timm == 'border':
      ground = np.clip(np.rint(255 * mean), 0, 255)
    before = (missing if preprocess.timm is not None else missing + 1) / 2  # the odd row, as in geometry.cut
    none = np.array([0, 0])
    (borders,) = graph.add('Concat', [none, before.name, none, (missing - before).name], axis=0)
    pixels = (pixels - ground.astype(np.float32)).of('Pad', Number(graph, borders, np.int64), 0)
  normal = pixels * (1 / (255 * std)).astype(np.float32) + ((ground / 255 - mean) / std).astype(np.float32)
  like = jax.ShapeDtypeStruct((batch, *preprocess.size, preprocess.channels), np.float32)
  return graph.tensor('Transpose', [normal.name], like, perm=[0, 2, 3, 1])


def _resized_size(own: Number, preprocess: Preprocess) -> Number:
  """int64 (2,): `Preprocess.resized_size` of an image whose height and width are `own`."""
  rule, target = preprocess.resize_rule
  if rule == 'squash':
    return Number(own.graph, own.graph.constant(np.array(target, np.int64)), np.int64)
  if rule == 'shorter':
    product = own * target[0]
    smaller = own.of('ReduceMin', np.array([0]), keepdims=1)
    if preprocess.antialias:
      return product / smaller
    # To the nearest, a half to the even number: of a half, the upper one less one where that is odd.
    twice, total = smaller * 2, product * 2 + smaller
    nearest = total / twice
    is_half, is_odd = (nearest * twice).equals(total), (nearest % 2).equals(1)
    return nearest - (is_half & is_odd).to(np.int64)
  # timm divides floats: the largest or smallest of the ratios; a half goes to the even number.
  sides = own.to(np.float64)
  ratios = sides / np.array(target, np.float64)
  ratio = ratios.of('ReduceMax' if rule == 'border' else 'ReduceMin', np.array([0]), keepdims=1)
  return (sides / ratio).of('Round').to(np.int64).at_least(1)


def _middle(whole: Number, preprocess: Preprocess) -> tuple[Number, Number, Number | None]:
  """Of the middle of the resized image (geometry.cut): its first row and column, how many, and how many are missing.

  The last is None where none can be missing.
  """
  size = np.array(preprocess.size, np.int64)
  rule, target = preprocess.resize_rule
  number, missing = whole.at_most(size), None
  if rule == 'border' or any(side < wanted for side, wanted in zip(target, size, strict=True)):
    missing = number * -1 + size
  rest = whole - number
  first = rest / 2
  if preprocess.timm is not None:  # half a pixel goes to the even one
    first = first + (rest % 4).equals(3).to(np.int64)
  return first, number, missing
