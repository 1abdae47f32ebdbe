"""The picture of DINOv2's figure 1 (arXiv 2304.07193): which patches of several photographs are alike.

The paper's two steps: the patches of all photographs on one side of their mean, along their first principal
component, are the foreground; the first three principal components of these are red, green and blue.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from vit_jax.visualize import figures, measures
from vit_jax.visualize.observations import Observation


def colours(features: np.ndarray) -> np.ndarray:
  """(n, rows, columns, D) -> float64 (n, rows, columns, 3) in 0 … 1; the background is NaN.

  A principal component has no sign: the foreground is the side to which fewer of the patches at the photographs'
  borders belong.
  """
  flat = np.asarray(features, np.float64).reshape(-1, features.shape[-1])
  front = (measures.principal_components(flat, 1) > 0).reshape(features.shape[:3])
  inner = np.zeros(front.shape, bool)
  inner[:, 1:-1, 1:-1] = True
  if inner.any() and front[~inner].mean() > front[inner].mean():
    front = ~front
  result = np.full((*front.shape, 3), np.nan)
  chosen = flat[front.reshape(-1)]
  if len(chosen):
    result[front] = measures.as_colours(measures.principal_components(chosen, 3), np.abs(flat).max())
  return result


def pca(seen: Sequence[Observation]) -> Figure:
  """The photographs, and below each its patches of the foreground; alike colours are alike features."""
  pictures = colours(np.stack([one.features for one in seen]))
  columns = min(len(seen), 8)
  rows = -(-len(seen) // columns)
  shape = seen[0].photograph.shape
  figure, axes = figures.matrix(2 * rows, columns, shape[0] / shape[1], (0.2, 0.6))
  for axis in axes.flat:
    axis.set_axis_off()
  for number, (one, picture) in enumerate(zip(seen, pictures, strict=True)):
    row, column = divmod(number, columns)
    figures.show(axes[2 * row, column], one.photograph)
    figures.show(axes[2 * row + 1, column], np.nan_to_num(picture))
  figure.suptitle(
    'The foreground: first three principal components of its patches, over all photographs', fontsize=10
  )
  return figure
