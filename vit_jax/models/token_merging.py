"""Token merging (ToMe, arXiv 2210.09461): each block merges pairs of like patches, so that later ones compute fewer.

Between attention and MLP of every block the patches are split into two sets by turns; each of the first has an edge to
the most similar of the second, by the cosine of their keys, and the r most similar ones are merged into it (section 3,
'bipartite soft matching'). A merged patch is the mean of its patches, and is attended to as so many (token_weights.py).
Only logits without dropout are computed so: features are of all patches.
"""

from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.foundation.errors import UserError
from vit_jax.models.capabilities import ReconstructionOptions
from vit_jax.models.patch_dropout import needs_grid
from vit_jax.models.scanned_blocks import Loop, constrain
from vit_jax.models.token_weights import TokenWeights

if TYPE_CHECKING:
  from vit_jax.models.vit_config import ViTConfig

C = TypeVar('C', bound='ViTConfig')


def apply(
  blocks: nnx.Module, z: jax.Array, weights: TokenWeights, number: int, leading: int, loop: Loop
) -> tuple[jax.Array, TokenWeights]:
  """(B, N, D) -> (B, N', D), and the weights of these: the output of the last of stacked blocks, unrolled.

  Every block merges `number` patches, but no more than half of those that there are; no token of the first `leading`.
  """
  graphdef, params = nnx.split(blocks)
  for layer in range(loop.depth):
    block: Any = nnx.merge(graphdef, jax.tree.map(lambda leaf, layer=layer: leaf[layer], params))
    y = block.attention_input(z)
    z = z + block.attention_output(block.attend(y, None, weights))
    metric = block.attention.key(y).mean(axis=2)  # over the heads; the compiler computes keys once
    z, weights = merged(z, weights, metric, number, leading)
    z = constrain(z + block.mlp_branch(z, None, weights), loop.sharding)
  return z, weights


def merged(
  z: jax.Array, weights: TokenWeights, metric: jax.Array, number: int, leading: int
) -> tuple[jax.Array, TokenWeights]:
  """Tokens (B, N, D) with weights (B, N), of which `number` patches are merged by a metric (B, N, F): (B, N', D)."""
  number = min(number, (z.shape[1] - leading) // 2)
  if not number:
    return z, weights
  metric = metric.astype(jnp.float32)  # in bfloat16 alike patches would have equal similarities
  unit = metric / jnp.linalg.norm(metric, axis=-1, keepdims=True)
  parity = leading % 2  # as the authors' code, which counts the tokens before the patches too
  first, second = (unit[:, leading + (parity ^ odd) :: 2] for odd in (0, 1))
  similarity = jnp.einsum('bif,bjf->bij', first, second, precision='highest')
  order = jnp.argsort(-similarity.max(axis=-1), axis=-1)
  sources, stay = order[:, :number], order[:, number:]
  if leading:  # likewise
    stay = jnp.sort(stay, axis=-1)
  into = jnp.take_along_axis(similarity.argmax(axis=-1), sources, axis=-1)

  def summed(x: jax.Array) -> jax.Array:
    """(B, N, D) -> (B, N', D): the tokens before the patches, the patches that stay, and the second set's sums."""
    here, there = (x[:, leading + (parity ^ odd) :: 2] for odd in (0, 1))
    moved, kept = (jnp.take_along_axis(here, which[..., None], axis=1) for which in (sources, stay))
    there = jax.vmap(lambda rows, at, added: rows.at[at].add(added))(there, into, moved)
    return jnp.concatenate([x[:, :leading], kept, there], axis=1)

  sizes = weights.values[..., None]
  total = summed(sizes)
  z = (summed(z.astype(jnp.float32) * sizes) / total).astype(z.dtype)
  return z, TokenWeights(total[..., 0])


def checked(config: C, path: str) -> C:
  """A model's options as they are; UserError, which names `path`, where blocks need all patches, or the grid."""
  wrong = needs_grid(config)
  if config.block not in ('sequential', 'post_norm'):
    wrong = f"block {config.block!r}, whose MLP does not come after attention; choose 'sequential'"
  elif isinstance(config, ReconstructionOptions):
    wrong = 'a decoder of all patches; fine-tune it first'
  if config.token_merging and wrong:
    raise UserError(f'{path}.token_merging is {config.token_merging}, and the model has {wrong}.')
  return config
