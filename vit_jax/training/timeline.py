"""The length of a run in steps, and its durations in steps."""

import dataclasses
from fractions import Fraction

from vit_jax.foundation import durations
from vit_jax.foundation.errors import UserError

_MOST_STEPS = 2**31 - 1  # devices count steps in int32


@dataclasses.dataclass(frozen=True)
class Timeline:
  """Turns durations of the config into steps."""

  batch_size: int  # images a step, over all devices
  examples: int  # training images an epoch
  total: int  # steps of the run

  @classmethod
  def of(cls, total: str, *, batch_size: int, examples: int) -> 'Timeline':
    """The timeline of a run that lasts `total`.

    Raises UserError for more than nothing and less than a step, or more than can be counted.
    """
    steps = durations.nearest(durations.steps(total, batch_size=batch_size, examples=examples))
    least = 1 if durations.parse(total)[0] else 0
    if not least <= steps <= _MOST_STEPS:
      raise UserError(
        f'config.total is {total!r}, which is {steps:.4g} steps; it must be from 1 to {_MOST_STEPS:,} steps.'
      )
    return cls(batch_size, examples, steps)

  @property
  def epochs(self) -> float:
    """Passes through the training data."""
    return self.total * self.batch_size / self.examples

  def steps(self, duration: str) -> int:
    """Steps of a duration, to the nearest; '%' is of the whole run."""
    return durations.nearest(self._exact(duration))

  def interval(self, every: str) -> Fraction:
    """Steps between two events that occur `every` so often: at least one, and perhaps no whole number."""
    return max(Fraction(1), self._exact(every))

  def period(self, every: str) -> int:
    """Whole steps between two such events, to the nearest."""
    return durations.nearest(self.interval(every))

  def occurs(self, every: str, step: int) -> bool:
    """Whether an event falls on a step: the one nearest to a multiple of `every`, which may be no whole steps."""
    interval = self.interval(every)
    multiple = max(1, durations.nearest(step / interval))
    return durations.nearest(multiple * interval) == step

  def _exact(self, duration: str) -> Fraction:
    return durations.steps(duration, batch_size=self.batch_size, examples=self.examples, total=self.total)
