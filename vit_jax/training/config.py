"""The options of early stopping and of TensorBoard."""

import dataclasses
from typing import Literal

from vit_jax.foundation.durations import Duration
from vit_jax.options import Count


@dataclasses.dataclass(frozen=True)
class StopConfig:
  """Early stopping: a run ends, with a checkpoint, once a metric no longer gets better."""

  # The metric, such as 'val/loss'; None: the run goes on to its end.
  metric: str | None = None
  # Evaluations in a row without a new best value that end the run.
  patience: Count = 5
  # Whether 'lower' or 'higher' is better; None: as the metric's evaluator says.
  direction: Literal['lower', 'higher'] | None = None


@dataclasses.dataclass(frozen=True)
class TensorBoardConfig:
  """What TensorBoard shows beside metrics, hyper-parameters, config and first batch."""

  # At the end, the evaluators' confusion matrices and the attention of some training images; in report/ too.
  pictures: bool = True
  # How often to add histograms of all parameters; None: never.
  histograms: Duration | None = None
