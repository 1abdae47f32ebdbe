"""Labels, targets, objectives and hits: one value per example."""

import jax
import jax.numpy as jnp
import optax

from vit_jax import config as config_lib


def targets(labels: jax.Array, num_classes: int) -> jax.Array:
  """What the model is to say of each class: 1 for an example's own, 0 for the others.

  Args:
    labels: int32 (batch,), or (batch, max_labels) where each example has a list, padded with -1.
    num_classes: K.

  Returns:
    float32 (batch, K): one-hot or, of lists, multi-hot (all zero for an empty one).
  """
  if labels.ndim == 1:
    return jax.nn.one_hot(labels, num_classes, dtype=jnp.float32)
  return (labels[:, :, None] == jnp.arange(num_classes)).any(axis=1).astype(jnp.float32)


def mixed_targets(batch: dict[str, jax.Array], num_classes: int) -> jax.Array:
  """float32 (batch, K): the targets of 'label' or, where images are mixed, of both by their shares.

  Args:
    batch: of `on_device.prepare_training`.
    num_classes: K.
  """
  own = targets(batch['label'], num_classes)
  if 'other' not in batch:
    return own
  share = batch['share'][:, None]
  return share * own + (1 - share) * targets(batch['other'], num_classes)


def per_example(loss: config_lib.Loss, logits: jax.Array, targets: jax.Array) -> jax.Array:
  """Cross-entropy of each example.

  Args:
    loss: 'softmax', or 'sigmoid' (the sum of the classes' binary cross-entropies, as the paper
      pre-trains on ImageNet-21k), and the label smoothing of either.
    logits: float32 (batch, classes).
    targets: float32 (batch, classes), in 0..1; for 'softmax' each row sums to 1.

  Returns:
    float32 (batch,).
  """
  if loss.name == 'sigmoid':
    targets = optax.smooth_labels(targets, loss.label_smoothing)
    return optax.sigmoid_binary_cross_entropy(logits, targets).sum(axis=-1)
  return softmax(loss, logits, targets)


def softmax(loss: config_lib.Loss, logits: jax.Array, targets: jax.Array) -> jax.Array:
  """Cross-entropy, with the loss's label smoothing, of logits (..., K) and targets that sum to 1: (...)."""
  return optax.softmax_cross_entropy(logits, optax.smooth_labels(targets, loss.label_smoothing))


def hits(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """Whether the most probable class is (one of) the example's own: its mean is accuracy, or precision@1.

  Args:
    logits: float32 (batch, classes).
    labels: int32 (batch,) or (batch, max_labels), as for `targets`.

  Returns:
    bool (batch,); False for an empty list.
  """
  top = logits.argmax(axis=-1)
  return top == labels if labels.ndim == 1 else (top[:, None] == labels).any(axis=1)


def ranks(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """How many classes are more probable than an example's own; of equal ones that with the lower number is.

  Args:
    logits: float32 (batch, classes).
    labels: int32 (batch,).

  Returns:
    int32 (batch,); a logit that is no number counts as more probable.
  """
  own = jnp.take_along_axis(logits, labels[:, None], axis=-1)
  earlier = (logits == own) & (jnp.arange(logits.shape[-1]) < labels[:, None])
  return (~(logits <= own) | earlier).sum(axis=-1, dtype=jnp.int32)


def confidence(loss: config_lib.Loss, logits: jax.Array) -> jax.Array:
  """float32 (batch,): the probability of the most probable class, its softmax or, for 'sigmoid', sigmoid.

  Args:
    loss: says which.
    logits: float32 (batch, classes).
  """
  top = logits.max(axis=-1)
  if loss.name == 'sigmoid':
    return jax.nn.sigmoid(top)
  return jnp.exp(top - jax.nn.logsumexp(logits, axis=-1))
