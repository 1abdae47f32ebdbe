"""What only some models have, as protocols that callers ask for: `isinstance(model, Attends)`, never a model's class.

A model has a capability by having its members. What the options of every model are asked, and those of few know, is in
`OptionalOptions`, with what the others answer.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import jax
import numpy as np
from jax.sharding import NamedSharding

from vit_jax.foundation.errors import UserError
from vit_jax.models.position_resize import PositionResize

Grid = tuple[int, int]  # rows and columns of patches, or of a feature map's cells


class PositionTable(NamedTuple):
  """How the cells of a learned table of positions lie in its array, so that it can be resized."""

  axes: tuple[
    int, ...
  ]  # the dimensions that are rows and columns of cells; or the one that is both, row by row
  resize: PositionResize  # how the model itself resizes it
  extra: int = 0  # cells before the first patch in that one dimension: the class token's
  line: bool = False  # whether the one dimension is rows or columns alone


# Of options (`ModelConfig`).


class OptionalOptions:
  """What only some models do by their options, with the answers of all others; every `ModelConfig` is one."""

  title: ClassVar[str]

  @property
  def patch_sizes(self) -> tuple[int, ...] | None:
    """Those of training, of a model that takes patches of several (flexible_patches.py); (): one; None: it does not."""
    return None

  def with_one_patch_size(self) -> Self:
    """The model of its `patch` alone, whose kernel is no larger."""
    return self

  def fixed_positions(self, grid: Grid) -> np.ndarray | None:
    """float32 (1, N, D): positions that are added to the tokens and are no parameter, or None."""
    return None

  def with_learned_positions(self) -> Self:
    """The model in which `fixed_positions` are a parameter, 'position_embedding'; this one where there are none."""
    return self

  def with_position_resize(self, method: PositionResize) -> Self:
    """The model that resizes its learned positions, if it has any, by another method."""
    return self

  def position_table(self, path: str) -> PositionTable | None:
    """How a parameter's cells lie, if it is a table of positions that another image size resizes."""
    return None

  def check_any_shape(self, option: str) -> None:
    """Raises UserError, which begins with `option`, for a model that takes images of one grid only (naflex.py)."""
    raise UserError(f'{option} is for images of any shape, which {self.title} does not take; leave it out.')

  def with_token_merging(self, number: int, path: str) -> Self:
    """The model whose blocks merge so many patches each, for inference; UserError for a model that cannot."""
    raise UserError(f'token_merging is for a Vision Transformer, and this is {self.title}; leave it out.')

  def with_cosine_head(self) -> Self:
    """The model, of two towers that of images, that scales what the head reads to length 1, for a head of texts."""
    return self


@runtime_checkable
class PretrainingOptions(Protocol):
  """Options of what only pre-training has."""

  @property
  def mask_token(self) -> bool:
    """Whether the network has an embedding for hidden patches, and so `patch_logits`."""
    ...

  def without_pre_logits(self) -> Self:
    """The model without a layer between pooling and head, for a new head."""
    ...

  def for_classification(self) -> Self:
    """The model to fine-tune from a checkpoint of this one: without what only its pre-training has."""
    ...


@runtime_checkable
class ReconstructionOptions(Protocol):
  """Options of a network that predicts the pixels of patches which a training step hides."""

  @property
  def patch_dropout(self) -> float:
    """The share of the patches that are hidden."""
    ...

  def pixels(self, channels: int) -> int:
    """Numbers that are predicted of a patch."""
    ...


@runtime_checkable
class PrototypeOptions(Protocol):
  """Options of a network that gives tokens scores of prototypes (`ScoresPrototypes`), and its images no logits."""

  @property
  def prototypes(self) -> int:
    """How many there are."""
    ...


@runtime_checkable
class ViewOptions(Protocol):
  """Options of a network that compares views of images (`ComparesViews`), and gives images no logits."""

  @property
  def predictor(self) -> bool:
    """Whether there is a predictor behind the projection."""
    ...


@runtime_checkable
class TextTowerOptions(Protocol):
  """Options of a network that compares images with texts."""

  @property
  def text_length(self) -> int:
    """Tokens of a text, N."""
    ...

  @property
  def text_vocabulary(self) -> int:
    """How many different tokens there are."""
    ...


# Of networks (`Model`).


@runtime_checkable
class Attends(Protocol):
  """A network of self-attention, perhaps with tokens before those of the patches."""

  def attention(self, images: jax.Array) -> jax.Array:
    """float32 (L, B, H, N, N): how much each token (row) attends to each."""
    ...

  @property
  def leading_tokens(self) -> int:
    """How many tokens come before the patches: class token, distillation token and registers."""
    ...

  @property
  def reads_class_token(self) -> bool:
    """Whether the head reads a class token, whose attention is then what one looks at."""
    ...


@runtime_checkable
class HasTokens(Protocol):
  """A network that cuts images into patches, which stay tokens through all its blocks."""

  def hidden_states(self, images: jax.Array) -> jax.Array:
    """(L + 1, B, N, D): the tokens before the first block and after each."""
    ...


@runtime_checkable
class Positioned(Protocol):
  """A network that knows where its patches are, or says why it adds nothing to them."""

  def positions(self, image_size: tuple[int, int]) -> jax.Array | None:
    """float32 (1, N, D) that are added to the tokens of images of that size; None: nothing is."""

  def without_positions(self) -> str:
    """A sentence for people: why `positions` is None."""
    ...


@runtime_checkable
class Distils(Protocol):
  """A network that may have a second head, which teachers train."""

  def distillation_logits(
    self, images: jax.Array, *, keys: jax.Array | None = None
  ) -> tuple[jax.Array, jax.Array]:
    """The logits that labels train and those that teachers train, float32 (B, K) each; perhaps the same."""
    ...


@runtime_checkable
class MasksPatches(Protocol):
  """A network that may have a learned embedding for hidden patches; config.model.mask_token says so."""

  def patch_logits(
    self,
    images: jax.Array,
    change: Callable[[jax.Array, jax.Array], jax.Array],
    *,
    keys: jax.Array | None = None,
  ) -> jax.Array:
    """float32 (B, N, K): the logits of each patch; images and keys are those of `Model.__call__`.

    The embeddings are changed first: `change` maps those of the patches (B, N, D) and the mask token (1, 1, D) to them.
    """
    ...


@runtime_checkable
class Reconstructs(Protocol):
  """A network that predicts the pixels of hidden patches; its options are `ReconstructionOptions`."""

  def reconstruct(self, images: jax.Array, keys: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """The pixels of each patch, float32 (B, N, P²C), and whether it was hidden, bool (B, N); without keys none is."""
    ...


@runtime_checkable
class ScoresPrototypes(Protocol):
  """A network that gives tokens scores of learned prototypes; its options are `PrototypeOptions`.

  Attributes:
    centre: state, the running means of a teacher's scores: `images` and `patches`, float32 (K,) each.
  """

  centre: Any

  def tokens(
    self, images: jax.Array, masked: jax.Array | None = None, *, keys: jax.Array | None = None
  ) -> jax.Array:
    """(B, T, D): the tokens after the last norm, the class token first and the N patches last.

    Where `masked`, bool (B, N), is True, the mask token replaces a patch; images and keys are those of
    `Model.__call__`.
    """
    ...

  def prototype_scores(
    self, tokens: jax.Array, *, of_patches: bool = False, held: jax.typing.ArrayLike = False
  ) -> jax.Array:
    """(…, D) -> float32 (…, K): cosines; where `held`, a bool scalar, is True, prototypes get no gradient."""
    ...


@runtime_checkable
class ComparesViews(Protocol):
  """A network that makes of views of images what is compared; its options are `ViewOptions`."""

  def view_features(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    """(B, D): what the projection reads of images; images and keys are those of `Model.__call__`."""
    ...

  def projections(self, features: jax.Array, *, predict: bool, train: bool = True) -> jax.Array:
    """(B, V, D) -> float32 (B, V, P), each of length 1, with `predict` behind the predictor if there is one.

    With `train`, batch norm is by all B V features, and its running statistics are updated in place.
    """
    ...


@runtime_checkable
class ComparesTexts(Protocol):
  """A network that compares images with texts; its options are `TextTowerOptions`.

  Attributes:
    sharding: of the examples; None: on one device.
  """

  sharding: NamedSharding | None

  def __call__(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    """The features of images, float32 (B, P), each of length 1."""
    ...

  def text_features(self, tokens: jax.Array) -> jax.Array:
    """The features of texts, float32 (K, P), each of length 1, of the numbers of their tokens, int (K, N)."""
    ...

  def scale_and_bias(self) -> tuple[jax.Array, jax.Array]:
    """float32 scalars: what a cosine is multiplied by, and what is added then."""
    ...


def leading_tokens(model: object) -> int:
  """Tokens of a network before those of the patches."""
  return model.leading_tokens if isinstance(model, Attends) else 0
