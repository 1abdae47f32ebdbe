"""Which checkpoints stay, beyond what Orbax's own policies offer."""

import math
from typing import Any

from orbax.checkpoint import checkpoint_managers

from vit_jax.errors import UserError


class Best(checkpoint_managers.PreservationPolicy):
  """Keeps the step with the best value of a metric: the lowest of a loss, else the highest.

  Orbax's own policy reads a file per step at its start, and one that is damaged ends the program.
  """

  def __init__(self, metric: str | None):
    self._metric = metric
    self._values: dict[int, float] = {}

  def add(self, step: int, metrics: dict[str, float] | None) -> None:
    """Notes the metrics of a step; raises UserError where the metric is not among them."""
    if self._metric and metrics and self._metric not in metrics:
      raise UserError(
        f'config.checkpoint.best is {self._metric!r}, which no evaluation gives; choose one of '
        f'{", ".join(sorted(metrics))}.'
      )
    self.remember(step, metrics)

  def remember(self, step: int, metrics: dict[str, float] | None) -> None:
    """Notes the metrics of a step, whatever they are; one that is not a number is never the best."""
    value = (metrics or {}).get(self._metric, math.nan)
    if not math.isnan(value):
      self._values[step] = -value if self._metric.endswith('loss') else value

  def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
    """Orbax's question: which of these to keep. The first of equally good ones."""
    values = [self._values.get(checkpoint.step, -math.inf) for checkpoint in checkpoints]
    best = max(values, default=-math.inf)
    first = values.index(best) if best > -math.inf else None
    return [index == first for index in range(len(values))]
