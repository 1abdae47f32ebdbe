"""Two views of an image get vectors that are alike, and unlike those of other images.

With a momentum encoder MoCo v3 (arXiv 2104.02057, algorithm 1; its code: moco/builder.py): what the model predicts of a
view is compared with what its moving average, the run's EMA (config.ema), makes of the other views of all images.
Without one SimCLR (arXiv 2002.05709, section 2.1): each view is compared with all other views, by one encoder. The
images of a batch are those of all devices; each device compares its own with all.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import optax

from vit_jax.data import augment_policy
from vit_jax.data.config import DataConfig, ExtraCrops
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Model, ModelConfig
from vit_jax.models.capabilities import ComparesViews, ViewOptions
from vit_jax.objectives.base import Batch, Headless, Metrics, check_crops, views
from vit_jax.objectives.self_distillation_losses import effective_rank
from vit_jax.options import Positive

_COLLAPSED = 0.02  # nats that a view tells of its image
_einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


@dataclasses.dataclass(frozen=True)
class ContrastiveViewsObjective(Headless):
  """InfoNCE of two views of each image; no labels. One of them is as data.crop, area and augment say."""

  # Momentum encoder, the run's EMA, which makes the vectors that views are compared with (MoCo v3). Otherwise the model
  # makes them itself, without a predictor (SimCLR). Parts of config.accumulation are batches of their own.
  momentum_encoder: bool = True
  # Temperature, by which cosines are divided.
  temperature: Positive = 0.2
  # Augmentation of the second view; see data.augment.
  second_augment: Annotated[str, augment_policy.parse] = 'dino(0.1,0.2)'

  title: ClassVar[str] = 'contrastive learning of views'
  compares_examples: ClassVar[bool] = True

  @property
  def learns_from_ema(self) -> bool:
    return self.momentum_encoder

  def extra_crops(self, data: DataConfig) -> tuple[ExtraCrops, ...]:
    return (ExtraCrops('second', 1, data.image_size, data.area, self.second_augment),)

  def taught(self, batch: Batch, teacher: Model, progress: jax.Array) -> Batch:
    """Adds 'teacher', float32 (B, 2, P): what the momentum encoder makes of both views, by statistics of the batch."""
    assert isinstance(teacher, ComparesViews)  # by `check_run`
    features = teacher.view_features(views(batch)).reshape(len(batch['image']), 2, -1)
    return batch | {'teacher': jax.lax.stop_gradient(self._projections(teacher, features, predict=False))}

  def loss_and_metrics(
    self, model: Model, batch: Batch, keys: jax.Array, data: DataConfig
  ) -> tuple[jax.Array, Metrics]:
    """MoCo v3's or SimCLR's loss.

    'accuracy' is the share of the views to which the other view of their image is nearest. 'information' is
    InfoNCE's lower bound of what a view tells of its image, in nats (arXiv 1807.03748, section 2.3): 0 where all are
    the same. 'rank' is the number of directions in which the features of images spread.
    """
    assert isinstance(model, ComparesViews)  # by `check_run`
    size = len(batch['image'])
    view_keys = jax.vmap(lambda key: jax.random.split(key, 2))(keys).reshape(-1)
    features = model.view_features(views(batch), keys=view_keys)
    of_views = self._projections(model, features.reshape(size, 2, -1), predict=True)
    if self.momentum_encoder:
      logits, right = momentum_logits(of_views, batch['teacher'], self.temperature)
      others, factor = size, 4 * self.temperature  # 2 T, of a sum over both views
    else:
      logits, right = pair_logits(of_views, self.temperature)
      others, factor = 2 * size - 1, 1.0
    entropy = optax.softmax_cross_entropy_with_integer_labels(logits, right).mean()
    return factor * entropy, {
      'accuracy': (logits.argmax(axis=-1) == right).mean(),
      'information': math.log(others) - entropy,
      'rank': effective_rank(features),
    }

  def _projections(self, model: ComparesViews, features: jax.Array, *, predict: bool) -> jax.Array:
    """(B, 2, D) -> float32 (B, 2, P); MoCo v3 normalises each view by itself, SimCLR both together."""
    views = jnp.split(features, 2, axis=1) if self.momentum_encoder else [features]
    return jnp.concatenate([model.projections(view, predict=predict) for view in views], axis=1)

  def warning(self, values: Mapping[str, float], progress: float) -> str | None:
    """A sentence where views tell nothing of their images."""
    found = values.get('train/information')
    if found is None or progress < 0.1 or found >= _COLLAPSED:
      return None
    return (
      f'The contrastive learning has collapsed: a view tells {found:.2g} nats of its image; begin again with a lower '
      "schedule.learning_rate, a longer schedule.warmup, or optimizer.freeze=('^patch_embedding/',)."
    )

  def check_run(self, model: ModelConfig, data: DataConfig) -> None:
    name = "config.objective.name is 'contrastive_views'"
    if not isinstance(model, ViewOptions):
      raise UserError(f'{name}; it needs a Vision Transformer with a projection, --config.model.name=moco.')
    if model.predictor and not self.momentum_encoder:
      raise UserError(
        f'{name} and its momentum_encoder is off, as in SimCLR, which has no predictor; set '
        '--config.model.predictor=False.'
      )
    check_crops(name, data)


def momentum_logits(queries: jax.Array, keys: jax.Array, temperature: float) -> tuple[jax.Array, jax.Array]:
  """MoCo v3's: each view of an image with the other views of all, float32 (2, B, B), and which is right, int (2, B).

  Args:
    queries, keys: float32 (B, 2, P), each of length 1.
    temperature: by which cosines are divided.
  """
  logits = _einsum('ivp,jvp->vij', queries, keys[:, ::-1]) / temperature
  return logits, jnp.broadcast_to(jnp.arange(len(queries)), logits.shape[:2])


def pair_logits(views: jax.Array, temperature: float) -> tuple[jax.Array, jax.Array]:
  """SimCLR's NT-Xent: each view (B, 2, P) with all views but itself, float32 (2 B, 2 B), and which is right, (2 B,)."""
  views = views.reshape(-1, views.shape[-1])
  numbers = jnp.arange(len(views))
  logits = _einsum('ip,jp->ij', views, views) / temperature
  return jnp.where(numbers[:, None] == numbers, -jnp.inf, logits), numbers ^ 1
