"""Self-distillation: a student learns from its own moving average what other crops of the same image look like.

DINO (arXiv 2104.14294) with iBOT's masked patches (arXiv 2111.07832) and KoLeo (arXiv 1806.03198), put together as
DINOv2 (arXiv 2304.07193, section 4; its code: dinov2/train/ssl_meta_arch.py and dinov2/loss/). The losses themselves
are in self_distillation_losses.py. The teacher is the run's EMA (config.ema), so that checkpoints have it.

What differs from DINOv2's code: an image has one of its two large crops masked, drawn by its key, rather than half of
all crops of a batch, and KoLeo compares the whole batch rather than a device's part of it.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from vit_jax.data import augment_policy
from vit_jax.data.config import DataConfig, ExtraCrops
from vit_jax.foundation.errors import UserError
from vit_jax.models import flops
from vit_jax.models.base import Architecture, Model, ModelConfig
from vit_jax.models.capabilities import PrototypeOptions, ScoresPrototypes
from vit_jax.objectives import self_distillation_losses as losses
from vit_jax.objectives.base import Batch, Headless, Metrics, check_crops, views
from vit_jax.options import Amount, Between, ImageSize, NotNegative, Positive

_CENTRE_MOMENTUM = 0.9
_COLLAPSED = 0.02  # nats that a target tells of its image
Share = Annotated[float, Between(0, 1)]


@dataclasses.dataclass(frozen=True)
class SelfDistillationObjective(Headless):
  """The loss by the teacher of two large crops and several small ones; no labels.

  One of the large crops is as data.crop, area and augment say.
  """

  # Number of small crops, which only the student sees.
  local_crops: Amount = 8
  # Height and width of the small crops in pixels; one number stands for both.
  local_size: ImageSize = (96, 96)
  # Smallest and largest share of the image that a small crop has.
  local_area: tuple[Share, Share] = (0.05, 0.32)
  # Augmentation of the small crops; see data.augment.
  local_augment: Annotated[str, augment_policy.parse] = 'dino(0.5,0)'
  # Augmentation of the second large crop.
  second_augment: Annotated[str, augment_policy.parse] = 'dino(0.1,0.2)'
  # Balance of the teacher's targets, so that they do not all become the same: 'centring' (its scores' running mean is
  # subtracted) or 'sinkhorn' (Sinkhorn-Knopp: in each batch every prototype gets the same weight). Parts of
  # config.accumulation are batches of their own.
  balance: Literal['centring', 'sinkhorn'] = 'centring'
  # Temperature of the teacher's softmax at the first step; from there it rises evenly.
  first_temperature: Positive = 0.04
  # Temperature of the teacher's softmax from the end of temperature_warmup on; the student's is 0.1.
  temperature: Positive = 0.07
  # Share of the run in which the teacher's temperature rises.
  temperature_warmup: Share = 0.3
  # Share of the run, at its beginning, in which prototypes keep their initial directions.
  held_prototypes: Share = 0.01
  # Weight of iBOT's loss, of the masked patches beside the teacher's. 0 to mask none.
  patch_weight: NotNegative = 1.0
  # Smallest and largest share of a large crop's patches that are masked.
  masked: tuple[Share, Share] = (0.1, 0.5)
  # Weight of KoLeo, which keeps the student's features of different images apart. 0 to leave it out.
  koleo_weight: NotNegative = 0.1

  title: ClassVar[str] = 'self-distillation'
  compares_examples: ClassVar[bool] = True

  @property
  def learns_from_ema(self) -> bool:
    return True

  def extra_crops(self, data: DataConfig) -> tuple[ExtraCrops, ...]:
    second = ExtraCrops('second', 1, data.image_size, data.area, self.second_augment)
    local = ExtraCrops('local', self.local_crops, self.local_size, self.local_area, self.local_augment)
    return (second, local) if self.local_crops else (second,)

  def own_flops(self, architecture: Architecture) -> int:
    """Of the scores of masked patches, which the teacher gives as well; a crop's pass has those of one token."""
    if not self.patch_weight:
      return 0
    model = architecture.model
    (projection,) = (layer for layer in model.layers(architecture) if layer.name == 'projection')
    patches = self._most_masked(model.grid(architecture.image_size))
    return 2 * (flops.TRAINING + 1) * patches * projection.multiplications

  def _most_masked(self, grid: tuple[int, int]) -> int:
    """M of `taught`."""
    return max(round(math.prod(grid) * self.masked[1]), 1)

  def taught(self, batch: Batch, teacher: Model, progress: jax.Array) -> Batch:
    """Adds what the teacher makes of both large crops, and what the student is not to see of them.

    'large', float32 (2 B, H, W, C): both crops of an image, one after the other. 'teacher', float32 (B, 2, K): scores.
    With a patch_weight: 'hidden', bool (B, 2, N); 'place' (B, M) and 'chosen', bool (B, M): the patches, of both crops
    counted through, whose scores the teacher gives as 'teacher_patches', float32 (B, M, K), and which of them count.
    'temperature' and 'held', scalars.
    """
    assert isinstance(teacher, ScoresPrototypes)  # by `check_run`
    size = len(batch['image'])
    large = views(batch)
    tokens = jax.lax.stop_gradient(teacher.tokens(large))
    rise = jnp.clip(progress / self.temperature_warmup, 0, 1) if self.temperature_warmup else 1.0
    batch = batch | {
      'large': large,
      'teacher': teacher.prototype_scores(tokens[:, 0]).reshape(size, 2, -1),
      'temperature': self.first_temperature + (self.temperature - self.first_temperature) * rise,
      'held': progress < self.held_prototypes,
      'teacher_rank': losses.effective_rank(tokens[:, 0]),
    }
    if not self.patch_weight:
      return batch
    grid = teacher.config.grid((large.shape[1], large.shape[2]))
    keys = jax.vmap(functools.partial(jax.random.fold_in, data=2**31))(batch['key'])
    hidden = jax.vmap(lambda key: losses.hidden_patches(key, grid, self.masked))(keys)
    most = self._most_masked(grid)
    flat = hidden.reshape(size, -1)
    place = jnp.argsort(~flat, axis=1, stable=True)[:, :most]
    patches = _patches(tokens, grid, size)
    scores = teacher.prototype_scores(_taken(patches, place), of_patches=True)
    chosen = jnp.take_along_axis(flat, place, axis=1)
    return batch | {'hidden': hidden, 'place': place, 'chosen': chosen, 'teacher_patches': scores}

  def loss_and_metrics(
    self, model: Model, batch: Batch, keys: jax.Array, data: DataConfig
  ) -> tuple[jax.Array, Metrics]:
    """The sum of the losses by their weights.

    'teacher_entropy' is that of a target, 'teacher_information' how much more the mean target has, both in nats: what a
    target tells of its image; 0 where all are the same. 'teacher_kl' is the divergence of the student's scores from the
    targets, 'teacher_rank' how many directions the teacher's features spread in.
    """
    assert isinstance(model, ScoresPrototypes)  # by `check_run`
    size = len(batch['image'])
    crop_keys = jax.vmap(lambda key: jax.random.split(key, 2 + self.local_crops))(keys)
    hidden = _merged(batch['hidden']) if self.patch_weight else None
    tokens = model.tokens(batch['large'], hidden, keys=_merged(crop_keys[:, :2]))
    of_images = tokens[:, :1].reshape(size, 2, -1)
    students = of_images
    if self.local_crops:
      local = model.tokens(_merged(batch['local']), keys=_merged(crop_keys[:, 2:]))
      students = jnp.concatenate([students, local[:, 0].reshape(size, self.local_crops, -1)], axis=1)
    targets = self._targets(_merged(batch['teacher']), batch['temperature'], model.centre.images)
    scores = model.prototype_scores(students, held=batch['held'])
    of_crops = losses.crop_loss(scores, targets.reshape(size, 2, -1))
    entropy, information = losses.entropy_and_information(targets)
    loss, metrics = of_crops, {'crop_loss': of_crops}
    if self.patch_weight:
      of_patches = self._patch_loss(model, batch, tokens)
      loss, metrics = loss + self.patch_weight * of_patches, metrics | {'patch_loss': of_patches}
    if self.koleo_weight:
      koleo = losses.koleo_loss(of_images[:, 0]) + losses.koleo_loss(of_images[:, 1])
      loss, metrics = loss + self.koleo_weight * koleo, metrics | {'koleo_loss': koleo / 2}
    return loss, metrics | {
      'teacher_entropy': entropy,
      'teacher_information': information,
      'teacher_kl': of_crops - entropy,
      'teacher_rank': batch['teacher_rank'],
    }

  def _patch_loss(self, model: Any, batch: Batch, tokens: jax.Array) -> jax.Array:
    """iBOT's loss of the student's tokens (2 B, T, D) of the large crops."""
    size, chosen = batch['chosen'].shape[0], batch['chosen']
    patches = _patches(tokens, model.config.grid(batch['large'].shape[1:3]), size)
    students = model.prototype_scores(_taken(patches, batch['place']), of_patches=True, held=batch['held'])
    targets = self._targets(
      _merged(batch['teacher_patches']), batch['temperature'], model.centre.patches, chosen.reshape(-1)
    )
    return losses.patch_loss(students, targets.reshape(students.shape), chosen)

  def _targets(
    self, scores: jax.Array, temperature: jax.Array, centre: Any, counted: jax.Array | None = None
  ) -> jax.Array:
    """float32 (N, K): the teacher's probabilities, by scores (N, K) of which `counted` (N,) are of use; None for all.

    With 'centring' the running mean takes part as it was before this batch, and moves towards it.
    """
    if self.balance == 'sinkhorn':
      return losses.sinkhorn(scores, temperature, counted)
    before = centre[...]
    weights = jnp.ones(len(scores)) if counted is None else counted.astype(jnp.float32)
    mean = jnp.einsum('n,nk->k', weights, scores) / jnp.maximum(weights.sum(), 1)
    centre.set_value(_CENTRE_MOMENTUM * before + (1 - _CENTRE_MOMENTUM) * mean)
    return jax.nn.softmax((scores - before) / temperature)

  def warning(self, values: Mapping[str, float], progress: float) -> str | None:
    """A sentence where the teacher gives all images the same target, once its temperature has risen."""
    found = values.get('train/teacher_information')
    if found is None or progress < max(self.temperature_warmup, 0.1) or found >= _COLLAPSED:
      return None
    return (
      f'The self-distillation has collapsed: the teacher gives all images the same target, which tells {found:.2g} '
      'nats of an image; begin again with a lower schedule.learning_rate or objective.temperature, a higher '
      'config.ema, or a larger batch_size.'
    )

  def check(self, path: str) -> None:
    """Raises UserError for shares in the wrong order, or nothing to mask."""
    for name in ('local_area', 'masked'):
      low, high = getattr(self, name)
      if not 0 < low <= high:
        raise UserError(f'{path}.{name} is {(low, high)}; it must be two shares with 0 < low <= high <= 1.')

  def check_run(self, model: ModelConfig, data: DataConfig) -> None:
    name = "config.objective.name is 'self_distillation'"
    if not isinstance(model, PrototypeOptions):
      raise UserError(f'{name}; it needs a Vision Transformer with prototypes, --config.model.name=dino.')
    if self.local_crops:
      model.grid(self.local_size, 'config.objective.local_size')  # raises where patches do not fit
    check_crops(name, data)


def _merged(values: jax.Array) -> jax.Array:
  """(B, n, …) -> (B n, …): those of an example stay together, and so on its device."""
  return values.reshape(-1, *values.shape[2:])


def _patches(tokens: jax.Array, grid: tuple[int, int], size: int) -> jax.Array:
  """(2 B, T, D) -> (B, 2 N, D): the patches of both crops of each image."""
  return tokens[:, -math.prod(grid) :].reshape(size, 2 * math.prod(grid), -1)


def _taken(tokens: jax.Array, place: jax.Array) -> jax.Array:
  """(B, N, D), int (B, M) -> (B, M, D)."""
  return jnp.take_along_axis(tokens, place[..., None], axis=1)
