"""The options of early stopping and of TensorBoard."""

import dataclasses
from typing import Literal

from vit_jax.foundation.durations import Duration
from vit_jax.options import Count


@dataclasses.dataclass(frozen=True)
class StopConfig:
  """Early stopping: a run ends, with a checkpoint, once a metric no longer gets better."""

  # Metric that is watched, such as 'val/loss'. None to run to the end.
  metric: str | None = None
  # Evaluations in a row without a new best value, after which the run ends.
  patience: Count = 5
  # Direction in which the metric improves. None for what its evaluator says.
  direction: Literal['lower', 'higher'] | None = None


@dataclasses.dataclass(frozen=True)
class TensorBoardConfig:
  """What TensorBoard shows beside metrics, hyper-parameters, config and first batch."""

  # Pictures at the end: the evaluators' confusion matrices and the attention of some training images; in report/ too.
  pictures: bool = True
  # Interval of histograms of all parameters. None for no histograms.
  histograms: Duration | None = None
