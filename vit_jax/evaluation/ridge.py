"""Ridge regression in closed form, for any number of penalties at the price of one decomposition."""

import numpy as np
import scipy.linalg


class Ridge:
  """argmin over W of |X W - Y|² + l2 |W|², of which only l2 is still open.

  With the eigenvalues s and eigenvectors V of XᵀX, W = V (s + l2)⁻¹ Vᵀ Xᵀ Y; with those of XXᵀ (U),
  W = Xᵀ U (s + l2)⁻¹ Uᵀ Y. The smaller of the two matrices is decomposed.
  """

  def __init__(self, x: np.ndarray, targets: np.ndarray):
    """
    Args:
      x: float64 (examples, features).
      targets: float64 (examples, outputs).
    """
    examples, features = x.shape
    wide = examples < features
    values, vectors = scipy.linalg.eigh(x @ x.T if wide else x.T @ x)
    self._values = np.maximum(values, 0)  # what rounding made negative
    self._left = x.T @ vectors if wide else vectors
    self._right = vectors.T @ (targets if wide else x.T @ targets)

  def weights(self, l2: float) -> np.ndarray:
    """float64 (features, outputs), for a penalty above 0."""
    return self._left @ (self._right / (self._values + l2)[:, None])
