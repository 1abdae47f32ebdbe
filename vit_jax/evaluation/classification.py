"""Top-1 accuracy and mean loss over a data set, every example counted once."""

from collections.abc import Callable, Iterable
from typing import Any

import jax


def evaluate(
  step: Callable[[dict[str, Any], dict[str, jax.Array]], dict[str, jax.Array]],
  params: dict[str, Any],
  batches: Iterable[dict[str, jax.Array]],
) -> dict[str, float]:
  """The metrics 'accuracy', 'loss' and 'count' (examples) of the parameters on the batches.

  Args:
    step: (params, batch) -> the batch's sums 'loss', 'correct', 'count'; padding masked.
    params: the parameters.
    batches: each example of the data set once.
  """
  # One batch is computed while the sums of the one before are fetched; Python adds them exactly
  # (counts) and in float64 (loss).
  total = {'loss': 0.0, 'correct': 0, 'count': 0}
  pending: dict[str, jax.Array] = {}
  for batch in batches:
    sums = step(params, batch)
    _add(total, pending)
    pending = sums
  _add(total, pending)
  return {
    'accuracy': total['correct'] / total['count'],
    'loss': total['loss'] / total['count'],
    'count': total['count'],
  }


def _add(total: dict[str, float], sums: dict[str, jax.Array]) -> None:
  for name, value in sums.items():
    total[name] += value.item()
