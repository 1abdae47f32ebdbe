"""The options of a run's checkpoints."""

import dataclasses

from vit_jax.foundation.durations import Duration
from vit_jax.options import Count


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  """When to save, and what to keep."""

  # How often to save; a run also saves at its end.
  every: Duration = '1 epochs'
  # How many of the newest checkpoints to keep.
  keep: Count = 2
  # And, for good, the first that is saved in each such interval after the first one.
  keep_every: Duration | None = None
  # And, of the steps that are both evaluated and saved, the best by a metric of an evaluator:
  # '<evaluator>/accuracy', '<evaluator>/loss', …; of few-shot evaluators '<evaluator>_5shot/accuracy'.
  best: str | None = None
