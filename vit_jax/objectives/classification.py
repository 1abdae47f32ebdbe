"""Classification: one class an image by softmax, or a yes or no for each class by sigmoid."""

import dataclasses
from typing import Any, ClassVar, Literal, Self

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax.data.config import DataConfig
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Model, ModelConfig
from vit_jax.objectives.base import Batch, Metrics, Objective, requested_classes
from vit_jax.options import NotNegative, Rate


@dataclasses.dataclass(frozen=True)
class ClassificationObjective(Objective):
  """Cross-entropy of the classes of images."""

  # Loss: 'softmax' for one class an image, or 'sigmoid', the sum of the classes' binary cross-entropies, by which the
  # paper pre-trains on ImageNet-21k and JFT; needed where images have lists of classes without weights.
  loss: Literal['softmax', 'sigmoid'] = 'softmax'
  # Share of the targets that is spread evenly over all classes.
  label_smoothing: Rate = 0.0
  # Weights of the classes in the loss of training, by which the costs of their images are multiplied; the mean is over
  # the images (PyTorch divides by the sum of the weights): a list by the numbers of the classes, or 'balanced',
  # scikit-learn's images / (classes · images of the class), of images as they are drawn from a mixture, or of labels
  # where each image has a list of them. None to count all alike, as evaluations do.
  class_weights: Literal['balanced'] | tuple[NotNegative, ...] | None = None
  # Exponent γ of the focal loss (arXiv 1708.02002): what has the probability p and is right costs (1 - p)^γ times its
  # cross-entropy. 0 for plain cross-entropy. As class_weights, this and what follows are of training only.
  focus: NotNegative = 0.0
  # Exponent γ- of the classes that an image does not have, for 'sigmoid': the asymmetric loss (arXiv 2009.14119), usual
  # with focus 0, other_focus 4 and margin 0.05. None for that of focus.
  other_focus: NotNegative | None = None
  # Probability up to which a class that an image does not have costs nothing, for 'sigmoid' (arXiv 2009.14119, eq. 5).
  margin: Rate = 0.0
  # Weight ε of Poly-1 (arXiv 2204.12511), which adds ε (1 - p) for what has the probability p and is right.
  poly: float = 0.0
  # Weight of the square of log Σ exp(logits), for 'softmax', which keeps logits small; PaLM's is 1e-4.
  z_loss: NotNegative = 0.0

  title: ClassVar[str] = 'classification'

  def loss_and_metrics(
    self, model: Model, batch: Batch, keys: jax.Array, data: DataConfig
  ) -> tuple[jax.Array, Metrics]:
    """Mean cross-entropy; 'accuracy' is of the image with the larger share where images are mixed."""
    logits = model(batch['image'], keys=keys)
    chex.assert_shape(logits, (len(keys), None))
    chex.assert_type(logits, jnp.float32)
    loss = self.label_losses(logits, batch).mean()
    return loss, {'accuracy': hits(logits, batch['label'], batch.get('weight')).mean()}

  def head_size(self, classes: int, data: DataConfig) -> int:
    return requested_classes(classes, data)

  @property
  def counts_classes(self) -> bool:
    return self.class_weights == 'balanced'

  def with_counts(self, classes: int, counts: np.ndarray | None) -> Self:
    weights = self.class_weights
    if weights == 'balanced':
      weights = None if counts is None else balanced(counts)
    if weights is not None and len(weights) != classes:
      raise UserError(
        f'config.objective.class_weights has {len(weights)} weights, and the data has {classes} classes; give one for '
        f"each, or 'balanced'."
      )
    return dataclasses.replace(self, class_weights=weights)

  def class_scores(self) -> Self:
    return self

  @property
  def link(self) -> Literal['softmax', 'sigmoid']:
    return self.loss

  def check_classes(self, names: tuple[str, ...], title: str) -> None:
    if not names:
      raise UserError(
        f'{title} has captions and no classes; choose other data, or two towers (--config=configs/siglip.py).'
      )
    if len(names) == 1 and self.loss == 'softmax':
      raise UserError(
        f'{title} has one class, {names[0]!r}, of which softmax makes every image a hit; check the path (a '
        f"folder has a sub-folder for each class), or set config.objective.loss='sigmoid'."
      )

  def check_run(self, model: ModelConfig, data: DataConfig) -> None:
    super().check_run(model, data)
    if data.max_labels and self.loss == 'softmax' and not data.label_weights:
      raise UserError(
        f'config.data.max_labels is {data.max_labels}, so images have lists of classes, and '
        f"config.objective.loss is {self.loss!r}; choose 'sigmoid'."
      )

  def check(self, path: str) -> None:
    """Raises UserError for options of the other kind of loss."""
    of = {'sigmoid': ('other_focus', 'margin'), 'softmax': ('z_loss',)}
    for loss, names in of.items():
      for name in names:
        if getattr(self, name) != getattr(ClassificationObjective, name) and self.loss != loss:
          raise UserError(
            f'{path}.{name} is for loss {loss!r}, and loss is {self.loss!r}; leave it out, or change the loss.'
          )

  def targets(self, labels: jax.Array, num_classes: int, weights: jax.Array | None = None) -> jax.Array:
    """As `class_targets`; where classes have weights, 'softmax' divides those of an example by their sum."""
    targets = class_targets(labels, num_classes, weights)
    if weights is None or self.loss == 'sigmoid':
      return targets
    return targets / jnp.maximum(targets.sum(axis=-1, keepdims=True), jnp.finfo(jnp.float32).tiny)

  def mixed_targets(self, batch: Batch, num_classes: int) -> jax.Array:
    """float32 (B, K): the targets of 'label' or, where images are mixed, of both labels by their shares."""
    targets = self.targets(batch['label'], num_classes, batch.get('weight'))
    if 'label_b' not in batch:
      return targets
    lam = batch['lam'][:, None]
    return lam * targets + (1 - lam) * self.targets(batch['label_b'], num_classes, batch.get('weight_b'))

  def label_losses(self, logits: jax.Array, batch: Batch) -> jax.Array:
    """float32 (B,): the loss of each image of logits (B, K) by its labels, with label smoothing.

    With 'softmax' an image whose classes have no weight adds nothing: smoothing spreads the weight that there is, and
    z_loss is multiplied by it.
    """
    classes = logits.shape[-1]
    targets = self.mixed_targets(batch, classes)
    if 'weight' not in batch or self.loss == 'sigmoid':
      return self._training_losses(logits, optax.smooth_labels(targets, self.label_smoothing))
    spread = targets.sum(axis=-1, keepdims=True) / classes
    smoothed = (1 - self.label_smoothing) * targets + self.label_smoothing * spread
    return self._training_losses(logits, smoothed)

  def cross_entropy(self, logits: jax.Array, targets: jax.Array, *, smooth: bool = True) -> jax.Array:
    """float32 (B,): of logits (B, K) and targets (B, K) in 0..1, whose rows sum to 1 for 'softmax'."""
    targets = optax.smooth_labels(targets, self.label_smoothing if smooth else 0.0)
    if self.loss == 'sigmoid':
      return optax.sigmoid_binary_cross_entropy(logits, targets).sum(axis=-1)
    return optax.softmax_cross_entropy(logits, targets)

  def _training_losses(self, logits: jax.Array, targets: jax.Array) -> jax.Array:
    """float32 (B,): cross-entropies of targets (B, K), the term of each class weighted, focal and with Poly-1's."""
    weights = 1.0
    if self.class_weights is not None:  # outputs of the head for which the data has no class count once
      rest = logits.shape[-1] - len(self.class_weights)
      weights = np.pad(np.asarray(self.class_weights, np.float32), (0, rest), constant_values=1)
    if self.loss == 'softmax':
      of_classes = targets * self._cost(jax.nn.log_softmax(logits), self.focus)
      losses = (weights * of_classes).sum(axis=-1)
      if not self.z_loss:
        return losses
      return losses + self.z_loss * targets.sum(axis=-1) * jax.nn.logsumexp(logits, axis=-1) ** 2
    absent = jax.nn.log_sigmoid(-logits)
    if self.margin:
      absent = jnp.log(jnp.minimum(jax.nn.sigmoid(-logits) + self.margin, 1))
    other_focus = self.focus if self.other_focus is None else self.other_focus
    own = targets * self._cost(jax.nn.log_sigmoid(logits), self.focus)
    return (weights * (own + (1 - targets) * self._cost(absent, other_focus))).sum(axis=-1)

  def _cost(self, log_p: jax.Array, focus: float) -> jax.Array:
    """(1 - p)^focus (-log p) + poly (1 - p): what the probability p of what is right costs, given its logarithm."""
    rest = jnp.maximum(
      -jnp.expm1(log_p), jnp.finfo(jnp.float32).tiny
    )  # above 0, where a root has a derivative
    cost = -log_p * rest**focus if focus else -log_p
    return cost + self.poly * rest if self.poly else cost

  def confidence(self, logits: jax.Array) -> jax.Array:
    """float32 (B,): the probability of the most probable class of logits (B, K)."""
    top = logits.max(axis=-1)
    if self.loss == 'sigmoid':
      return jax.nn.sigmoid(top)
    return jnp.exp(top - jax.nn.logsumexp(logits, axis=-1))


def balanced(counts: np.ndarray) -> tuple[float, ...]:
  """The weights of classes with so many images (K,), as scikit-learn's: n / (k · n_c); 1 for a class without images.

  k are the classes that have images, so that the mean weight of an image is 1.
  """
  there = counts > 0
  return tuple(np.where(there, counts.sum() / (there.sum() * np.where(there, counts, 1)), 1.0).tolist())


def class_targets(labels: jax.Array, num_classes: int, weights: jax.Array | None = None) -> jax.Array:
  """float32 (B, K): 1, or its weight, for each class of an example's own, 0 for the others.

  Labels are int32 (B,), or (B, max_labels) padded with -1 where each example has a list of classes, which may be empty
  and may have weights, float32 (B, max_labels).
  """
  if labels.ndim == 1:
    return jax.nn.one_hot(labels, num_classes, dtype=jnp.float32)
  own = labels[:, :, None] == jnp.arange(num_classes)
  if weights is None:
    return own.any(axis=1).astype(jnp.float32)
  return jnp.where(own, weights[:, :, None], 0.0).max(axis=1)


def hits(logits: jax.Array, labels: jax.Array, weights: jax.Array | None = None) -> jax.Array:
  """bool (B,): `is_own` of the most probable class; its mean is accuracy, or precision@1."""
  return is_own(logits.argmax(axis=-1), labels, weights)


def is_own(classes: Any, labels: Any, weights: Any = None) -> Any:
  """bool (B,): whether a class (B,) is (one of) the example's own, for arrays of JAX or NumPy.

  Labels and weights are as for `class_targets`. Of a list with weights only the class with the largest one counts, or
  all that have it; an empty list is False.
  """
  if labels.ndim == 1:
    return classes == labels
  own = classes[:, None] == labels
  if weights is not None:
    own &= (weights == weights.max(axis=1, keepdims=True)) & (weights > 0)
  return own.any(axis=1)


def ranks(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """int32 (B,): the number of classes that are more probable than an example's own; a logit that is NaN counts as such.

  Of classes that are exactly as probable, those with a lower number count.
  """
  own = jnp.take_along_axis(logits, labels[:, None], axis=-1)
  earlier = (logits == own) & (jnp.arange(logits.shape[-1]) < labels[:, None])
  return (~(logits <= own) | earlier).sum(axis=-1, dtype=jnp.int32)
