"""How many patches each token of an image stands for: none where it is padding, several where tokens were merged.

Attention adds the logarithm to its logits, so that a token is attended to as if it were there so many times
('proportional attention', ToMe, arXiv 2210.09461, section 3), and pools weigh by it. NaFlex's padding has the weight 0
(naflex.py). Weights stand where otherwise the grid of patches does: tokens that have any are on no common grid.
"""

import dataclasses

import jax
import jax.numpy as jnp

from vit_jax.models.capabilities import Grid

_NEVER = -1e30  # a logit whose exponential is zero, finite so that no difference is NaN


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenWeights:
  """float32 (B, N), not negative, of all tokens; those before the patches have 1."""

  values: jax.Array

  def bias(self) -> jax.Array:
    """float32 (B, 1, 1, N), added to the logits of attention."""
    log = jnp.log(jnp.maximum(self.values, jnp.finfo(jnp.float32).tiny))
    return jnp.where(self.values > 0, log, _NEVER)[:, None, None]

  def __getitem__(self, tokens: slice) -> 'TokenWeights':
    """Those of some of the tokens."""
    return TokenWeights(self.values[:, tokens])


Places = Grid | TokenWeights  # what blocks are given of their tokens


def bias(grid: Places | None) -> jax.Array | None:
  """What attention adds to its logits, float32 (B, 1, 1, N); None: nothing."""
  return grid.bias() if isinstance(grid, TokenWeights) else None


def mean(tokens: jax.Array, weights: TokenWeights | None) -> jax.Array:
  """(B, N, D) -> (B, D): the weighted mean of tokens, summed in float32; None: each counts as much."""
  if weights is None:
    return tokens.mean(axis=1)
  values = weights.values[..., None]
  return ((tokens * values).sum(axis=1) / values.sum(axis=1)).astype(tokens.dtype)


def largest(tokens: jax.Array, weights: TokenWeights | None) -> jax.Array:
  """(B, N, D) -> (B, D): the largest number of each channel, of tokens that are no padding."""
  if weights is not None:
    tokens = jnp.where(weights.values[..., None] > 0, tokens, -jnp.inf)
  return tokens.max(axis=1)
