"""Ridge regression in closed form: one decomposition serves any number of penalties."""

import numpy as np
import scipy.linalg


class Ridge:
  """The W that minimises |X W - Y|² + l2 |W|², for any l2.

  With the eigenvalues s and eigenvectors V of XᵀX, W = V (s + l2)⁻¹ Vᵀ Xᵀ Y; with the eigenvectors U of XXᵀ,
  W = Xᵀ U (s + l2)⁻¹ Uᵀ Y. The smaller of the two matrices is decomposed.
  """

  def __init__(self, x: np.ndarray, targets: np.ndarray):
    """`x`: float64 (examples, features); `targets`: float64 (examples, outputs)."""
    examples, features = x.shape
    wide = examples < features
    values, vectors = scipy.linalg.eigh(x @ x.T if wide else x.T @ x)
    self._values = np.maximum(values, 0)  # rounding may make them slightly negative
    self._left = x.T @ vectors if wide else vectors
    self._right = vectors.T @ (targets if wide else x.T @ targets)

  def weights(self, l2: float) -> np.ndarray:
    """W, float64 (features, outputs), for a penalty l2 above 0."""
    return self._left @ (self._right / (self._values + l2)[:, None])
