"""Ends a run once a metric no longer gets better (`config.stop`)."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from vit_jax.evaluation.base import format_metric, metric_kind
from vit_jax.training.config import StopConfig


@dataclasses.dataclass
class EarlyStopping:
  """Counts the evaluations since the best one.

  Every process sees the same metrics and comes to the same answer. A checkpoint has `meta()`, so that a resumed
  run stops at the step at which an undisturbed one does.
  """

  config: StopConfig  # what to watch
  best: float = math.nan  # the best value so far; NaN before the first
  best_step: int = 0  # its step
  misses: int = 0  # evaluations since then

  @classmethod
  def restored(cls, config: StopConfig, meta: Mapping[str, Any]) -> 'EarlyStopping':
    """As it was when a checkpoint was saved; it begins anew where that watched another metric or direction."""
    stored, begun = meta.get('stop'), cls(config)
    if stored is None or stored['metric'] != config.metric:
      return begun
    if stored.get('direction', begun._direction) != begun._direction:  # earlier versions did not keep it
      return begun
    return cls(config, float(stored['best']), stored['best_step'], stored['misses'])

  def meta(self) -> dict[str, Any]:
    """What a checkpoint keeps; empty where no metric is watched."""
    if self.config.metric is None:
      return {}
    values = {'metric': self.config.metric, 'direction': self._direction}
    values |= {'best_step': self.best_step, 'misses': self.misses}
    return {'stop': values | {'best': repr(self.best)}}  # as text, since JSON has no NaN

  def update(self, step: int, scores: Mapping[str, float]) -> None:
    """Takes the metrics of an evaluation; NaN is never better, and is counted behind a first number."""
    value = scores.get(self.config.metric or '')
    if value is None:
      return
    is_better = value > self.best if self._direction == 'higher' else value < self.best
    if math.isnan(self.best) or is_better:
      self.best, self.best_step, self.misses = value, step, 0
    else:
      self.misses += 1

  def steps(self, done: int, total: int) -> Iterator[int]:
    """The steps after `done`: up to `total`, or until the run is to end."""
    for step in range(done + 1, total + 1):
      if self.due:
        return
      yield step

  @property
  def may_end(self) -> bool:
    """Whether the next evaluation may end the run."""
    return self.config.metric is not None and self.misses + 1 >= self.config.patience

  @property
  def due(self) -> bool:
    """Whether the run is to end."""
    return self.misses >= self.config.patience

  def text(self, step: int, total: int) -> str:
    """The sentence for the person."""
    metric = self.config.metric or ''
    return (
      f'Stopped early, at step {step:,} of {total:,}: {metric} was best at step {self.best_step:,} '
      f'({format_metric(metric, self.best)}), {self.misses} evaluations ago (config.stop).'
    )

  @property
  def _direction(self) -> Literal['lower', 'higher']:
    """Which values of the metric are better, by the config or else by its kind."""
    if self.config.direction is not None:
      return self.config.direction
    return 'higher' if metric_kind(self.config.metric or '').higher_is_better else 'lower'
