"""Training objectives, one value per example."""

import jax
import optax

from vit_jax import config as config_lib


def per_example(loss: config_lib.Loss, logits: jax.Array, labels: jax.Array) -> jax.Array:
  """Cross-entropy of each example.

  Args:
    loss: 'softmax', or 'sigmoid' (the sum of the classes' binary cross-entropies, as the paper
      pre-trains on ImageNet-21k), and the label smoothing of either.
    logits: float32 (batch, classes).
    labels: int32 (batch,).

  Returns:
    float32 (batch,).
  """
  targets = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
  targets = optax.smooth_labels(targets, loss.label_smoothing)
  if loss.name == 'sigmoid':
    return optax.sigmoid_binary_cross_entropy(logits, targets).sum(axis=-1)
  return optax.softmax_cross_entropy(logits, targets)
