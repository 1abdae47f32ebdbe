"""What a Vision Transformer does with images of any shape (foundation/naflex.py; SigLIP 2, arXiv 2502.14786).

The position embedding of the model's own grid is resized to the grid of each image, and attention and pools leave out
the padding, whose weight is 0 (token_weights.py). So an image's logits do not depend on how much padding it has.
"""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from vit_jax.foundation.errors import UserError
from vit_jax.foundation.naflex import Patches
from vit_jax.models import position_resize
from vit_jax.models.capabilities import Grid
from vit_jax.models.position_resize import PositionResize
from vit_jax.models.token_weights import TokenWeights

if TYPE_CHECKING:
  from vit_jax.models.vit_config import ViTConfig


def token_weights(images: Patches, patches: int, leading: int) -> TokenWeights:
  """1 of each token before the patches and of each patch, 0 of padding; of so many patches, padding included."""
  real = jnp.arange(patches) < images.grids.prod(axis=1)[:, None]
  return TokenWeights(jnp.pad(real.astype(jnp.float32), ((0, 0), (leading, 0)), constant_values=1))


def positions(
  table: jax.Array, own: Grid, grids: jax.Array, patches: int, method: PositionResize
) -> jax.Array:
  """(1, rows * columns, D), int (B, 2) -> float32 (B, patches, D): a table of cells for the grid of each image.

  Each is what `position_resize.resize` gives; padding gets those of other places.
  """
  sizes = jnp.maximum(grids, 1)[..., None].astype(jnp.float32)  # (B, 2, 1)
  numbers = jnp.arange(patches, dtype=jnp.float32)
  rows = jnp.floor((numbers + 0.5) / sizes[:, 1])  # half a patch, so that no rounding changes the row
  places = jnp.minimum(rows, sizes[:, 0] - 1), numbers - rows * sizes[:, 1]
  of_rows, of_columns = (
    position_resize.weights_at(method, own[axis], sizes[:, axis, :, None], places[axis][..., None])
    for axis in (0, 1)
  )
  cells = table.reshape(*own, -1).astype(jnp.float32)
  return jnp.einsum('bnh,bnw,hwd->bnd', of_rows, of_columns, cells, precision='highest')


def check(config: 'ViTConfig', option: str) -> None:
  """Raises UserError, which begins with `option`, for a model that needs all images on one grid."""
  wrong = None
  if config.position not in ('none', 'learned', 'sincos2d', 'sincos2d_mae'):
    wrong = f"position {config.position!r}; choose 'learned'"
  elif config.whole_grid:
    wrong = f'{config.whole_grid}, which needs one grid; leave it out'
  elif config.has_feature_maps:
    wrong = f'{config.stem.title} in front of its patches; choose a model without'
  elif config.patch_dropout:
    wrong = 'patch_dropout, which would leave padding in; leave it out'
  elif config.token_merging:
    wrong = 'token_merging, which would merge padding; leave it out'
  elif config.pool == 'none':
    wrong = "pool 'none', by which every patch gets logits; choose another pool"
  if wrong:
    raise UserError(f'{option} is for images of any shape, and the model has {wrong}.')
