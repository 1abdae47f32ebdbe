"""Which checkpoints stay, beyond what Orbax's own policies offer."""

import math
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from orbax.checkpoint import checkpoint_managers

from vit_jax.checkpoint import renamed
from vit_jax.checkpoint.config import CheckpointConfig


class Best(checkpoint_managers.PreservationPolicy):
  """Keeps the step with the best value of a metric; of None, none.

  Orbax's own policy reads a file of each step at its start, and a damaged one ends the program.
  """

  def __init__(self, metric: str | None, *, lower_is_better: bool = False):
    self._metric, self._lower_is_better = metric, lower_is_better
    self._scores: dict[int, float] = {}  # higher is better

  def remember(self, step: int, metrics: Mapping[str, float] | None) -> None:
    """Notes the metrics of a step, whatever they are; one whose value is NaN is never the best."""
    if self._metric is None or metrics is None:
      return
    value = metrics.get(renamed.stored_metric(self._metric, metrics), math.nan)
    if not math.isnan(value):
      self._scores[step] = -value if self._lower_is_better else value

  def forget(self, steps: Collection[int]) -> None:
    """Leaves out steps that are no longer there, so that another one is the best."""
    for step in steps:
      self._scores.pop(step, None)

  def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
    """Answers Orbax's question which of these to keep: the best, the first of equally good ones."""
    scores = [self._scores.get(checkpoint.step, -math.inf) for checkpoint in checkpoints]
    best = max(scores, default=-math.inf)
    first = scores.index(best) if best > -math.inf else None
    return [index == first for index in range(len(scores))]


class Spaced(checkpoint_managers.PreservationPolicy):
  """Keeps the first step that was saved at or after each multiple of an interval, to the nearest step.

  Orbax's own EveryNSteps keeps multiples only, and nothing where the interval is none of `checkpoint.every`.
  """

  def __init__(self, interval: Fraction | int):
    self._interval = interval  # in steps; an epoch may be 781.25

  def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
    """Answers Orbax's question which of these, in ascending order, to keep."""
    number = 0  # of the interval that the last step was in; in the first one, from step 0, none is kept
    kept = []
    for checkpoint in checkpoints:
      before, number = number, (checkpoint.step + Fraction(1, 2)) // self._interval
      kept.append(number > before)
    return kept


class Retention:
  """Which steps of a run stay: the newest, the best, and the first from each multiple of an interval on."""

  def __init__(
    self,
    checkpoint: CheckpointConfig,
    *,
    keep_every_steps: Fraction | int | None = None,
    lower_is_better: bool = False,
  ):
    """The first step from each multiple of `keep_every_steps` on is kept for good; `lower_is_better` is of the best."""
    self.best = Best(checkpoint.best, lower_is_better=lower_is_better)
    spaced = [Spaced(keep_every_steps)] if keep_every_steps else []
    self.policy = checkpoint_managers.AnyPreservationPolicy(
      [checkpoint_managers.LatestN(checkpoint.keep), self.best, *spaced]
    )

  def superfluous(self, steps: Sequence[int]) -> list[int]:
    """The steps, of these in ascending order, that are not kept."""
    known: Any = [SimpleNamespace(step=step) for step in steps]
    nothing: Any = None
    kept = self.policy.should_preserve(known, context=nothing)
    return [step for step, keep in zip(steps, kept, strict=True) if not keep]
