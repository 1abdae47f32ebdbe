"""The length of a run in steps, and its durations in steps."""

import dataclasses

from vit_jax import durations


@dataclasses.dataclass(frozen=True)
class Timeline:
  """Turns durations of the config into steps.

  Attributes:
    batch_size: images a step, over all devices.
    examples: training images an epoch.
    total: steps of the run.
  """

  batch_size: int
  examples: int
  total: int

  @classmethod
  def of(cls, total: str, *, batch_size: int, examples: int) -> 'Timeline':
    """The timeline of a run that lasts `total`, a duration in epochs, steps or examples."""
    steps = durations.steps(total, batch_size=batch_size, examples=examples)
    return cls(batch_size, examples, steps)

  @property
  def epochs(self) -> float:
    """Passes through the training data."""
    return self.total * self.batch_size / self.examples

  def steps(self, duration: str) -> int:
    """Steps of a duration, to the nearest; '%' is of the whole run."""
    return durations.steps(duration, batch_size=self.batch_size, examples=self.examples, total=self.total)

  def period(self, duration: str) -> int:
    """Steps between two events that occur every `duration`: at least one."""
    return max(1, self.steps(duration))
