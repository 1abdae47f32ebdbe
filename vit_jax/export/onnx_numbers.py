"""Numbers that an ONNX graph computes, with Python's arithmetic: sizes, places and weights of pixels."""

from functools import partialmethod
from typing import Any

import numpy as np

from vit_jax.export.onnx_graph import Graph, onnx_type


class Number:
  """A number or an array of a graph, most often int64 or float64."""

  def __init__(self, graph: Graph, name: str, dtype: Any):
    self.graph, self.name, self.dtype = graph, name, dtype

  def of(self, op: str, *others: Any, dtype: Any = None, **attributes: Any) -> 'Number':
    """The result of an operation of ONNX on this and others; Python's numbers among them get the dtype of this.

    `dtype` is the result's, where it is another.
    """
    values = [
      other.name
      if isinstance(other, Number)
      else other
      if isinstance(other, np.ndarray)
      else np.array(other, self.dtype)
      for other in others
    ]
    (name,) = self.graph.add(op, [self.name, *values], **attributes)
    return Number(self.graph, name, dtype or self.dtype)

  def to(self, dtype: Any) -> 'Number':
    """The same in another dtype; of floats the whole part."""
    return self.of('Cast', dtype=dtype, to=onnx_type(dtype))

  __add__ = partialmethod(of, 'Add')
  __sub__ = partialmethod(of, 'Sub')
  __mul__ = partialmethod(of, 'Mul')
  __truediv__ = partialmethod(of, 'Div')  # of integers towards zero
  __mod__ = partialmethod(of, 'Mod')
  __lt__ = partialmethod(of, 'Less', dtype=bool)
  __ge__ = partialmethod(of, 'GreaterOrEqual', dtype=bool)
  __and__ = partialmethod(of, 'And')
  at_least = partialmethod(of, 'Max')
  at_most = partialmethod(of, 'Min')
  equals = partialmethod(of, 'Equal', dtype=bool)
  up_to = partialmethod(of, 'Range')  # the end and the step follow
