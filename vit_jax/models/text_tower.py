"""The text tower of CLIP (arXiv 2103.00020, section 2.4) and SigLIP (arXiv 2303.15343): the encoder's blocks on words.

It makes heads of class names (pretrained/zero_shot.py), and is trained beside an image tower (two_towers.py).
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx import initializers

from vit_jax.models import scanned_blocks
from vit_jax.models.base import Grid, Sharding
from vit_jax.models.encoder_block import BLOCKS
from vit_jax.models.layers import unit
from vit_jax.models.parts.norms import NORMS
from vit_jax.models.parts.positions import AttentionPosition, Position, Tokens
from vit_jax.models.vit_config import ViTConfig


class Causal(AttentionPosition):
  """A token attends to itself and to those before it."""

  adds_to_logits = True

  def __init__(self, tokens: Tokens, *, rngs: nnx.Rngs):
    super().__init__(tokens, rngs=rngs)
    self.heads = tokens.heads

  def logits(self, query: jax.Array, grid: Grid) -> jax.Array:
    """float32 (1, H, N, N): minus infinity above the diagonal."""
    tokens = query.shape[1]
    mask = np.where(np.tri(tokens, dtype=bool), np.float32(0), np.float32(-1e30))
    return jnp.broadcast_to(mask, (1, self.heads, tokens, tokens))


@dataclasses.dataclass(frozen=True)
class TextConfig(ViTConfig):
  """The options of a text tower: those of its blocks, and what it makes of them."""

  # Whether a token attends to itself and those before it only (CLIP), or to all (SigLIP).
  causal: bool = True
  # Size of a text's features.
  features: int = 512
  # Whether the last layer has a bias.
  features_bias: bool = False

  @property
  def positions(self) -> type[Position]:
    return Causal if self.causal else Position


class TextTower(nnx.Module):
  """Embedded tokens of texts to their features."""

  def __init__(self, config: TextConfig, rngs: nnx.Rngs, sharding: Sharding | None = None):
    """The sharding is of the tokens, texts first."""
    width = config.sizes.width
    make_block = functools.partial(BLOCKS[config.block], config, grid=(1, 1), sharding=sharding)
    self.blocks = scanned_blocks.stack(config.sizes.depth, lambda rngs: make_block(rngs=rngs), rngs)
    self.norm = NORMS[config.norm](width, config.norm_epsilon)
    self.projection = nnx.Linear(width, config.features, use_bias=config.features_bias, rngs=rngs)
    self.loop = scanned_blocks.Loop.of(config, 0.0, sharding)

  def __call__(self, tokens: jax.Array, read: jax.Array) -> jax.Array:
    """The features of texts, float32 (K, P), each of length 1.

    Args:
      tokens: (K, N, D), embedded, with their positions.
      read: int (K,), the token of each text whose features are those of the text.
    """
    z = scanned_blocks.apply(self.blocks, tokens, None, self.loop, (1, tokens.shape[1]))
    return unit(self.projection(self.norm(z)[jnp.arange(z.shape[0]), read].astype(jnp.float32)))


class EmbeddedTextTower(TextTower):
  """The numbers of the tokens of texts to their features."""

  def __init__(
    self, config: TextConfig, vocabulary: int, length: int, rngs: nnx.Rngs, sharding: Sharding | None = None
  ):
    """For texts of `length` tokens, N, of a `vocabulary` of so many, V."""
    super().__init__(config, rngs, sharding)
    width = config.sizes.width
    # As in CLIP's code.
    self.embedding = nnx.Param(initializers.normal(0.02)(rngs.params(), (vocabulary, width)))
    self.positions = nnx.Param(initializers.normal(0.01)(rngs.params(), (length, width)))
    self.sharding, self.dtype = sharding, jnp.dtype(config.dtype)

  def of(self, numbers: jax.Array, end: int | None) -> jax.Array:
    """The features of texts, float32 (K, P), each of length 1.

    Args:
      numbers: int (K, N), of the tokens.
      end: the token whose features are those of the text; None: the last of all N.
    """
    tokens = self.embedding[...][numbers] + self.positions[...]
    tokens = scanned_blocks.constrain(tokens.astype(self.dtype), self.sharding)
    last = jnp.full(len(numbers), numbers.shape[1] - 1)
    return self(tokens, last if end is None else (numbers == end).argmax(axis=1))


def text_head(
  features: jax.typing.ArrayLike, classes: int, scale: jax.typing.ArrayLike, bias: jax.typing.ArrayLike
) -> dict[str, jax.Array]:
  """The head that compares images with K classes, float32: its kernel (P, K) and bias (K,).

  Args:
    features: (K * prompts, P), of the texts; a class has the mean of its own, scaled to length 1 again.
    classes: K.
    scale, bias: what a cosine is multiplied by, and what is added then.
  """
  features = jnp.asarray(features)
  means = unit(features.reshape(classes, -1, features.shape[-1]).mean(axis=1))
  return {'kernel': means.T * scale, 'bias': jnp.full(classes, bias, jnp.float32)}
