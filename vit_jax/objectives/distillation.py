"""Distillation: a model learns from teachers, which see the same crops and mixtures of images."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import chex
import jax
import jax.numpy as jnp
import optax
from jax.scipy.special import xlog1py, xlogy

from vit_jax.data.config import DataConfig
from vit_jax.foundation.class_matching import By
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import DType, Model, ModelConfig
from vit_jax.models.capabilities import Distils
from vit_jax.objectives.base import Batch, FrozenModel, Metrics, Predictor
from vit_jax.objectives.classification import ClassificationObjective, hits
from vit_jax.options import Between, ImageSize, Positive


@dataclasses.dataclass(frozen=True)
class DistillationObjective(ClassificationObjective):
  """The loss of the labels, mixed with that of what teachers predict.

  `loss` is the teachers' too: their logits are taken as those of softmax or of sigmoids.
  """

  # Checkpoint of a teacher, or several with commas between them: each is anything that init.checkpoint may be, with a
  # head for the classes of the data. The probabilities of several teachers are averaged. Their parameters are in no
  # checkpoint of the run.
  teachers: str = ''
  # Share of the loss that comes from the teachers; the labels have the rest. With 1 labels do not count, as in function
  # matching (arXiv 2106.05237).
  teacher_weight: Annotated[float, Between(0, 1)] = 0.5
  # Loss by the teachers: 'soft', the Kullback-Leibler divergence from their probabilities to the student's (arXiv
  # 1503.02531), or 'hard', the cross-entropy of the class that they find most probable (arXiv 2012.12877; with
  # sigmoids, of all classes above one half).
  teacher_targets: Literal['soft', 'hard'] = 'soft'
  # Temperature that divides the logits of student and teachers in 'soft', whose divergence is multiplied by its square.
  temperature: Positive = 1.0
  # Height and width of the teachers' images, resized from the student's. None for the size each was trained with.
  teacher_size: ImageSize | None = None
  # Number format that teachers compute in. None for what each checkpoint says.
  teacher_dtype: DType | None = None
  # Matching of the teachers' outputs with the classes of the data: by 'name', or by 'number' for the same classes under
  # other names.
  teacher_classes: By = 'name'

  title: ClassVar[str] = 'distillation'

  def check(self, path: str) -> None:
    """Raises UserError for a temperature that nothing is divided by, or an option of the other kind of loss."""
    super().check(path)
    if self.teacher_targets == 'hard' and self.temperature != 1:
      raise UserError(
        f"{path}.temperature is {self.temperature:g}, and {path}.teacher_targets 'hard' has none; leave it out, or "
        f"choose 'soft'."
      )

  def check_run(self, model: ModelConfig, data: DataConfig) -> None:
    super().check_run(model, data)
    if not all(self._checkpoints):
      raise UserError(
        f'config.objective.teachers is {self.teachers!r}; name the checkpoint of a teacher, or several with commas '
        f'between them, as in --config.objective.teachers=runs/one,runs/other.'
      )

  def frozen_models(self) -> tuple[FrozenModel, ...]:
    return tuple(
      FrozenModel(each, self.teacher_size, self.teacher_dtype, self.teacher_classes)
      for each in self._checkpoints
    )

  def annotated(self, batch: Batch, predictors: Sequence[Predictor]) -> Batch:
    """Adds 'teacher', float32 (B, K): the mean of the teachers' probabilities, at the temperature."""
    logits = jnp.stack([predict(batch['image']) for predict in predictors])
    link = jax.nn.sigmoid if self.loss == 'sigmoid' else jax.nn.softmax
    # Teachers that decide do so as they were trained.
    temperature = self.temperature if self.teacher_targets == 'soft' else 1.0
    return batch | {'teacher': link(logits / temperature).mean(axis=0)}

  def loss_and_metrics(
    self, model: Model, batch: Batch, keys: jax.Array, data: DataConfig
  ) -> tuple[jax.Array, Metrics]:
    """The two losses by their weights, each of its own head where the model has two.

    'teacher_agreement' is the share of images for which that head has the teachers' top class.
    """
    if isinstance(model, Distils):
      logits, distilled = model.distillation_logits(batch['image'], keys=keys)
    else:
      logits = distilled = model(batch['image'], keys=keys)
    chex.assert_equal_shape([logits, distilled, batch['teacher']])
    chex.assert_type([logits, distilled], jnp.float32)
    of_labels = self.label_losses(logits, batch).mean()
    of_teachers = self.teacher_loss(distilled, batch['teacher']).mean()
    return (1 - self.teacher_weight) * of_labels + self.teacher_weight * of_teachers, {
      'label_loss': of_labels,
      'teacher_loss': of_teachers,
      'accuracy': hits(logits, batch['label'], batch.get('weight')).mean(),
      'teacher_agreement': hits(distilled, batch['teacher'].argmax(axis=-1)).mean(),
    }

  def teacher_loss(self, logits: jax.Array, probabilities: jax.Array) -> jax.Array:
    """float32 (B,): the loss of logits (B, K) by what the teachers say, the probabilities (B, K) of `annotated`."""
    if self.teacher_targets == 'hard':
      return self.cross_entropy(logits, self._hard_targets(probabilities), smooth=False)
    scaled = logits / self.temperature
    if self.loss == 'sigmoid':
      negative_entropy = xlogy(probabilities, probabilities) + xlog1py(1 - probabilities, -probabilities)
      cross_entropy = optax.sigmoid_binary_cross_entropy(scaled, probabilities)
      divergence = (negative_entropy + cross_entropy).sum(axis=-1)
    else:
      divergence = optax.kl_divergence(jax.nn.log_softmax(scaled), probabilities)
    return self.temperature**2 * divergence

  @property
  def _checkpoints(self) -> list[str]:
    return self.teachers.split(',')

  def _hard_targets(self, probabilities: jax.Array) -> jax.Array:
    """float32 (B, K): 1 for the classes that the teachers choose, 0 for the others."""
    if self.loss == 'sigmoid':
      return (probabilities > 0.5).astype(jnp.float32)
    return jax.nn.one_hot(probabilities.argmax(axis=-1), probabilities.shape[-1], dtype=jnp.float32)
