"""The options of a run's checkpoints."""

import dataclasses

from vit_jax.foundation.durations import Duration
from vit_jax.options import Count


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  """When to save, and what to keep."""

  # Interval of saves; a run also saves at its end.
  every: Duration = '1 epochs'
  # Number of the newest checkpoints that are kept.
  keep: Count = 2
  # Interval of which the first save is kept for good, from the second interval on. None to keep no such saves.
  keep_every: Duration | None = None
  # Metric by which the best step that is both evaluated and saved is kept too: '<evaluator>/accuracy',
  # '<evaluator>/loss', …; for few-shot evaluators '<evaluator>_5shot/accuracy'. None to keep no best step.
  best: str | None = None
