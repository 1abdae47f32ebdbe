"""What a training step carries to the next one."""

from typing import Any, NamedTuple, Self

import jax


class TrainState(NamedTuple):
  """All of a run that changes: with it and the config, training goes on as if never interrupted."""

  step: jax.Array  # int32: steps taken
  skipped: jax.Array  # int32: steps whose loss or gradient was not finite
  params: dict[str, Any]
  opt_state: Any
  ema: dict[str, Any]  # exponential moving average of params; {} where config.ema is 0

  def items(self) -> dict[str, Any]:
    """The checkpoint's items: parameters can be restored without the rest."""
    items = {
      'params': self.params,
      'opt_state': self.opt_state,
      'counters': {'step': self.step, 'skipped': self.skipped},
    }
    return items | ({'ema': self.ema} if self.ema else {})

  @classmethod
  def from_items(cls, items: dict[str, Any]) -> Self:
    """The state of `items`."""
    return cls(
      params=items['params'],
      opt_state=items['opt_state'],
      ema=items.get('ema', {}),
      **items['counters'],
    )
