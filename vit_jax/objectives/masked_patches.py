"""Masked patch prediction: half of the patches are corrupted, and the model predicts their mean colours.

The paper's self-supervision (section 4.6 and appendix B.1.2), after BERT (arXiv 1810.04805). A fine-tuning
begins from its checkpoint (config.init).
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from vit_jax.data.config import DataConfig
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Model, ModelConfig
from vit_jax.models.capabilities import MasksPatches, PretrainingOptions
from vit_jax.objectives.base import Batch, Headless, Metrics
from vit_jax.options import Rate

COLOUR_LEVELS = 8  # of each channel of a patch's colour: three bits
# Of the corrupted patches: the share that the mask token replaces, and the share that another patch replaces;
# the rest is kept.
_MASKED, _EXCHANGED = 0.8, 0.1


@dataclasses.dataclass(frozen=True)
class MaskedPatchesObjective(Headless):
  """Cross-entropy of the corrupted patches' mean colours, of 512 (8 levels of each channel); no labels."""

  # Share of the targets that is spread evenly over all classes.
  label_smoothing: Rate = 0.0

  title: ClassVar[str] = 'masked patch prediction'

  def loss_and_metrics(
    self, model: Model, batch: Batch, keys: jax.Array, data: DataConfig
  ) -> tuple[jax.Array, Metrics]:
    """The mean over images of the mean over their corrupted patches; 'accuracy' is of the colours."""
    images, keys = batch['image'], jax.vmap(jax.random.split)(keys)
    rows, columns = model.config.grid((images.shape[1], images.shape[2]))
    corruption = draw_corruption(keys[:, 0], rows * columns)
    assert isinstance(model, MasksPatches)  # by `check_run`
    logits = model.patch_logits(images, corruption.apply, keys=keys[:, 1])
    chex.assert_shape(logits, (len(images), rows * columns, COLOUR_LEVELS**data.channels))
    chex.assert_type(logits, jnp.float32)
    labels = colours(images, (rows, columns), data.value_range)
    targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), self.label_smoothing)
    losses = _mean_where(optax.softmax_cross_entropy(logits, targets), corruption.corrupted)
    accuracy = _mean_where(logits.argmax(axis=-1) == labels, corruption.corrupted)
    return losses.mean(), {'accuracy': accuracy.mean()}

  def head_size(self, classes: int, data: DataConfig) -> int:
    return COLOUR_LEVELS**data.channels

  def check_run(self, model: ModelConfig, data: DataConfig) -> None:
    name = "config.objective.name is 'masked_patches'"
    masks = isinstance(model, PretrainingOptions) and model.mask_token
    if model.classifies_images or not masks:
      raise UserError(
        f'{name}; it needs a Vision Transformer with --config.model.pool=none and '
        f'--config.model.mask_token=True.'
      )
    if data.num_classes is not None:
      raise UserError(f'{name}, whose classes are colours; leave config.data.num_classes out.')


def _mean_where(values: jax.Array, chosen: jax.Array) -> jax.Array:
  """(B, N), bool (B, N) -> (B,): the mean of each row's chosen values."""
  return (values * chosen).sum(axis=1) / chosen.sum(axis=1)


class Corruption(NamedTuple):
  """What happens to each patch of B images of N patches."""

  # Bool (B, N), half of each image's patches (rounded up): those whose colour is predicted.
  corrupted: jax.Array
  masked: jax.Array  # bool (B, N), 80 % of the corrupted ones: the mask token replaces them
  # Bool (B, N), 10 % of the corrupted ones: another patch of the same image replaces them.
  exchanged: jax.Array
  others: jax.Array  # int32 (B, N), the number of that other patch

  def apply(self, patches: jax.Array, mask_token: jax.Array) -> jax.Array:
    """Patch embeddings (B, N, D) and the mask token (1, 1, D) -> (B, N, D)."""
    exchange = jnp.take_along_axis(patches, self.others[..., None], axis=1)
    patches = jnp.where(self.exchanged[..., None], exchange, patches)
    return jnp.where(self.masked[..., None], mask_token.astype(patches.dtype), patches)


def draw_corruption(keys: jax.Array, count: int) -> Corruption:
  """Draws which of `count` patches, at least two, are corrupted, and how, by (B,) typed PRNG keys."""

  def draw(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    order, kind, other = jax.random.split(key, 3)
    corrupted = jax.random.permutation(order, count) < (count + 1) // 2
    shift = jax.random.randint(other, (count,), 1, count)
    return corrupted, jax.random.uniform(kind, (count,)), (jnp.arange(count) + shift) % count

  corrupted, kinds, others = jax.vmap(draw)(keys)
  masked = corrupted & (kinds < _MASKED)
  exchanged = corrupted & ~masked & (kinds < _MASKED + _EXCHANGED)
  return Corruption(corrupted, masked, exchanged, others)


def colours(images: jax.Array, grid: tuple[int, int], value_range: tuple[Any, Any]) -> jax.Array:
  """The mean colour of each patch in three bits a channel: int32 (B, N), in 0 … 8^C - 1; red counts most.

  The images are (B, H, W, C); their darkest and their brightest value are of all channels or of each. Raises UserError
  where the grid does not divide the image into equal patches (that of a hybrid may not).
  """
  b, height, width, channels = images.shape
  (rows, columns), (low, high) = grid, value_range
  if height % rows or width % columns:
    raise UserError(
      f'config.data.image_size {(height, width)} does not divide into {rows} × {columns} patches of equal '
      f'size, whose colours the model could predict; choose another size.'
    )
  cells = images.reshape(b, rows, height // rows, columns, width // columns, channels)
  means = cells.mean(axis=(2, 4)).reshape(b, -1, channels)
  levels = jnp.clip((means - low) / (high - low) * COLOUR_LEVELS, 0, COLOUR_LEVELS - 1).astype(jnp.int32)
  return (levels * COLOUR_LEVELS ** jnp.arange(channels)[::-1]).sum(axis=-1)
