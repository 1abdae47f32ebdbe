"""Encoder blocks whose branches are computed beside each other."""

from typing import Any, ClassVar

import jax
from flax import nnx

from vit_jax.models.dropout import Place, drop_path, fold_in
from vit_jax.models.encoder_block import Block
from vit_jax.models.token_weights import Places


class ParallelBlock(Block):
  """Attention and MLP read the same normed tokens, and their sum is added (ViT-22B, arXiv 2302.05442, section 2.1)."""

  def __init__(self, *arguments: Any, **options: Any):
    super().__init__(*arguments, **options)
    self.mlp_norm = self.mlp_scale = None  # those of attention are for both
    self.both_scale, self.attention_scale = self.attention_scale, None

  def __call__(
    self,
    z: jax.Array,
    drop_path_rate: jax.Array | float,
    keys: jax.Array | None,
    grid: Places,
    moves: jax.Array | None = None,
    read: int | None = None,
  ) -> jax.Array:
    y = self.attention_norm(z)
    with jax.named_scope('attention'):
      attended = self.attend(y, keys, grid, moves, read)
    with jax.named_scope('mlp'):
      sum_of_both = attended + self.mlp(y[:, :read], keys=keys, grid=grid)
    if self.both_scale is not None:
      sum_of_both = sum_of_both * self.both_scale[...].astype(y.dtype)
    path_keys = keys if self.drops_path else None
    return z[:, :read] + drop_path(sum_of_both, drop_path_rate, path_keys, Place.ATTENTION_PATH)


class ParallelPairs(nnx.Module):
  """The sum of two attentions, then that of two MLPs (arXiv 2203.09795, section 3); both pairs are dropped as one."""

  reads_first: ClassVar[bool] = False
  members: ClassVar[tuple[str, ...]] = ('first/', 'second/')

  def __init__(self, *arguments: Any, **options: Any):
    self.first = Block(*arguments, **options)
    self.second = Block(*arguments, **options)

  def __call__(
    self,
    z: jax.Array,
    drop_path_rate: jax.Array | float,
    keys: jax.Array | None,
    grid: Places,
    moves: jax.Array | None = None,
  ) -> jax.Array:
    path_keys = keys if self.first.drops_path else None
    own_keys = (None, None) if keys is None else (fold_in(keys, 0), fold_in(keys, 1))
    pair = list(zip((self.first, self.second), own_keys, strict=True))
    with jax.named_scope('attention'):
      first, second = (block.attention_branch(z, own, grid, moves) for block, own in pair)
      z = z + drop_path(first + second, drop_path_rate, path_keys, Place.ATTENTION_PATH)
    with jax.named_scope('mlp'):
      first, second = (block.mlp_branch(z, own, grid) for block, own in pair)
      return z + drop_path(first + second, drop_path_rate, path_keys, Place.MLP_PATH)

  def weights(self, z: jax.Array, grid: Places) -> jax.Array:
    """(B, N, D) -> float32 (B, H, N, N): the mean of how much each token attends to each."""
    return (self.first.weights(z, grid) + self.second.weights(z, grid)) / 2
