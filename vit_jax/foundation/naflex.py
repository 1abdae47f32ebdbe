"""Images of any shape in one batch, as NaFlex has them (SigLIP 2, arXiv 2502.14786): what data makes and models take.

Each image keeps its aspect ratio and is cut into patches, at most N. The patches of an image, row by row, stand below
each other in a column; what is missing to N is padding.
"""

import dataclasses
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Patches:
  """A batch of images of any shape, in the place of images (B, H, W, C); or one image, without the B.

  The arrays are JAX's or NumPy's.
  """

  # (B, N P, P, C): the patches of P x P pixels of each image; the last ones may be padding.
  pixels: Any
  # int32 (B, 2): rows and columns of the patches of each image; their product is at most N.
  grids: Any

  def __len__(self) -> int:
    """B, as of such a batch."""
    return self.pixels.shape[0]

  @property
  def shape(self) -> tuple[int, ...]:
    """(B, N P, P, C), as of a batch of images of N x 1 patches."""
    return self.pixels.shape
