"""Top-1 accuracy and mean loss over a data set, every example counted once."""

from collections.abc import Callable, Iterable
from typing import Any

import jax


def evaluate(
  step: Callable[[dict[str, Any], dict[str, jax.Array]], dict[str, jax.Array]],
  models: dict[str, dict[str, Any]],
  batches: Iterable[dict[str, jax.Array]],
) -> dict[str, dict[str, float]]:
  """The metrics 'accuracy', 'loss' and 'count' (examples) of one or more models, in one pass over the data.

  Args:
    step: (params, batch) -> the batch's sums 'loss', 'correct', 'count'; padding masked.
    models: name -> parameters.
    batches: each example of the data set once.

  Returns:
    name -> metric -> value.
  """
  # One batch is computed while the sums of the one before are fetched; Python adds them exactly
  # (counts) and in float64 (loss).
  totals = {name: {'loss': 0.0, 'correct': 0, 'count': 0} for name in models}
  pending: dict[str, dict[str, jax.Array]] = {}
  for batch in batches:
    sums = {name: step(params, batch) for name, params in models.items()}
    _add(totals, pending)
    pending = sums
  _add(totals, pending)
  return {name: _means(total) for name, total in totals.items()}


def _add(totals: dict[str, dict[str, float]], sums: dict[str, dict[str, jax.Array]]) -> None:
  for name, values in sums.items():
    for metric, value in values.items():
      totals[name][metric] += value.item()


def _means(total: dict[str, float]) -> dict[str, float]:
  count = total['count']
  return {'accuracy': total['correct'] / count, 'loss': total['loss'] / count, 'count': count}
