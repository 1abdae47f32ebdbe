"""Mean average precision: how well the scores of each class rank its examples above all others.

All scores are needed at once: examples x classes in float32 (3.4 GiB for 50,000 examples of 18,291 classes).
Each process keeps those of the classes that its devices have, in its host's memory.
"""

import jax
import numpy as np
from jax.experimental import multihost_utils


class MeanAveragePrecision:
  """Collects scores and lists of classes batch by batch; the same for any batch size and process count."""

  def __init__(self):
    # Of each batch: the first class of a device's share -> its scores (classes, rows).
    self._scores: list[dict[int, np.ndarray]] = []
    self._labels: list[np.ndarray] = []

  def add(self, scores: jax.Array, labels: jax.Array, mask: jax.Array) -> None:
    """Copies a batch to the host.

    Args:
      scores: float32 (B, K), split over all devices by class.
      labels: int32 (B, max_labels), padded with -1; a copy on every device.
      mask: bool (B,), False for rows that do not count; a copy on every device.
    """
    rows = np.asarray(mask)
    self._labels.append(np.asarray(labels)[rows])
    shares = {shard.index[1].start or 0: np.asarray(shard.data) for shard in scores.addressable_shards}
    self._scores.append({first: np.ascontiguousarray(part[rows].T) for first, part in shares.items()})

  def result(self) -> float:
    """The mean of the classes' average precisions; classes without examples, which have none, are left out.

    All processes must ask; each gets the same bits. NaN where a score is NaN or no example has a class.
    """
    positives = _Positives(np.concatenate(self._labels))
    rows = []
    for first, share in self._scores[0].items():
      for number in range(len(share)):
        scores = np.concatenate([batch[first][number] for batch in self._scores])
        own = positives.of(first + number)
        rows.append((first + number, average_precision(scores, own) if len(own) else -1.0))
    # As integers, since JAX would make them float32.
    mine = np.array(rows, np.float64).view(np.uint32)
    table = np.ascontiguousarray(multihost_utils.process_allgather(mine, tiled=True)).view(np.float64)
    precisions = table[np.argsort(table[:, 0]), 1]
    return float(np.mean(precisions[precisions != -1])) if (precisions != -1).any() else float('nan')


class _Positives:
  """Which examples have a class."""

  def __init__(self, labels: np.ndarray):
    """
    Args:
      labels: int32 (N, max_labels), padded with -1.
    """
    order = np.argsort(labels, axis=None, kind='stable')
    self._labels, self._examples = labels.ravel()[order], order // labels.shape[1]

  def of(self, number: int) -> np.ndarray:
    """The numbers of the examples that have class `number`, each once."""
    first, last = np.searchsorted(self._labels, (number, number + 1))
    return np.unique(self._examples[first:last])


def average_precision(scores: np.ndarray, positives: np.ndarray) -> float:
  """The mean, over a class's examples, of the precision among all that score at least as high.

  That is scikit-learn's `average_precision_score` in a fiftieth of its time (50,000 scores).

  Args:
    scores: float32 (N,).
    positives: int (P,), the class's examples, P at least 1.
  """
  ranked, own = np.sort(scores), np.sort(scores[positives])
  if np.isnan(ranked[-1]):
    return float('nan')
  hits = len(own) - np.searchsorted(own, own)
  all_above = len(ranked) - np.searchsorted(ranked, own)
  return float(np.mean(hits / all_above))
