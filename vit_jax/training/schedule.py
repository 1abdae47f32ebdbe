"""The learning rate: linear warmup, then a decay to the end of the run."""

import collections
import dataclasses
from typing import Literal

import jax.numpy as jnp
import optax

from vit_jax.foundation import durations
from vit_jax.foundation.durations import Duration, DurationOrZero
from vit_jax.foundation.errors import UserError
from vit_jax.options import NotNegative
from vit_jax.training.timeline import Timeline

_DROP = 0.1  # of 'staircase'
_TO_END_VALUE = ('linear', 'cosine', 'exponential')  # the decays that have an end_value


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
  """Learning rate: linear warmup from 0, then a decay to the end of the run."""

  # Learning rate at the end of the warmup.
  learning_rate: NotNegative = 1e-3
  # Length of the linear warmup from 0 to learning_rate; '0 steps' for none.
  warmup: DurationOrZero = '0 steps'
  # Kind of decay from the end of the warmup to the end of the run; 'constant' with a cooldown is WSD (warmup, stable,
  # decay).
  decay: Literal['linear', 'cosine', 'exponential', 'constant', 'rsqrt', 'staircase'] = 'cosine'
  # Learning rate at the end, for 'linear', 'cosine' and 'exponential'.
  end_value: NotNegative = 0.0
  # Timescale of 'rsqrt': rate = peak / sqrt(1 + steps since warmup / timescale).
  timescale: Duration = '10000 steps'
  # Moments at which the rate of 'staircase' falls to a tenth, from the begin of the run, such as ('30 epochs',
  # '60 epochs').
  drops: tuple[Duration, ...] = ()
  # Length of a linear decay to 0 at the end of the run, for 'constant' and 'rsqrt'.
  cooldown: DurationOrZero = '0 steps'

  def check(self, path: str) -> None:
    """Raises UserError for options that the decay would ignore, or an exponential one to zero."""
    if self.decay == 'exponential' and not self.end_value:
      raise UserError(f'{path}.decay is exponential, which never reaches {path}.end_value 0; set it above 0.')
    if bool(self.drops) != (self.decay == 'staircase'):
      raise UserError(
        f'{path}.decay is {self.decay} and {path}.drops is {self.drops}; staircase needs drops, and no other has them.'
      )
    if self.end_value and self.decay not in _TO_END_VALUE:
      raise UserError(
        f'{path}.end_value is for decay {", ".join(_TO_END_VALUE)}, and decay is {self.decay}, which has none; '
        f'leave it out.'
      )
    if self.timescale != ScheduleConfig.timescale and self.decay != 'rsqrt':
      raise UserError(f'{path}.timescale is for decay rsqrt, and decay is {self.decay}; leave it out.')
    if self.decay not in ('constant', 'rsqrt') and durations.parse(self.cooldown)[0]:
      raise UserError(
        f'{path}.cooldown is for decay constant and rsqrt, and decay is {self.decay}, which ends by itself.'
      )


def make_schedule(schedule: ScheduleConfig, timeline: Timeline) -> optax.Schedule:
  """Step (counted from 0) -> learning rate; UserError where warmup, drops and cooldown do not fit into the run."""
  total, peak = timeline.total, schedule.learning_rate
  warmup, cooldown = timeline.steps(schedule.warmup), timeline.steps(schedule.cooldown)
  if warmup + cooldown >= total and total > 0:
    raise UserError(
      f'config.schedule: a warmup of {warmup} and a cooldown of {cooldown} steps do not fit into '
      f'the {total} steps of the run (config.total); shorten them.'
    )
  drops = [timeline.steps(drop) for drop in schedule.drops]
  if drops and not warmup < min(drops) <= max(drops) < total:
    raise UserError(
      f'config.schedule: drops at the steps {drops} do not lie between the warmup of {warmup} steps and the end of '
      f'the run, {total} (config.total); move them.'
    )
  rate = _decay(schedule, timeline, decay_steps=max(total - warmup, 1))
  if warmup:
    rate = optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), rate], [warmup])
  if not cooldown:
    return rate
  return lambda step: rate(step) * jnp.clip((total - step) / cooldown, 0, 1)


def _decay(schedule: ScheduleConfig, timeline: Timeline, decay_steps: int) -> optax.Schedule:
  """Step since the warmup -> learning rate."""
  peak, end = schedule.learning_rate, schedule.end_value
  if schedule.decay == 'linear':
    return optax.linear_schedule(peak, end, decay_steps)
  if schedule.decay == 'cosine':
    cosine = optax.cosine_decay_schedule(peak - end, decay_steps)
    return lambda step: end + cosine(step)
  if schedule.decay == 'exponential':
    return optax.exponential_decay(peak, decay_steps, end / peak if peak else 1.0)
  if schedule.decay == 'staircase':
    warmup = timeline.steps(schedule.warmup)
    steps = [timeline.steps(drop) - warmup for drop in schedule.drops]
    drops = collections.Counter(steps)  # several may be in one
    return optax.piecewise_constant_schedule(peak, {step: _DROP**number for step, number in drops.items()})
  if schedule.decay == 'rsqrt':
    timescale = timeline.period(schedule.timescale)  # at least one step
    return lambda step: peak / jnp.sqrt(1 + step / timescale)
  return optax.constant_schedule(peak)
