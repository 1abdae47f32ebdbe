"""What a training step carries to the next one."""

from typing import Any, NamedTuple, Self

import jax

from vit_jax.foundation import pytrees


class TrainState(NamedTuple):
  """All of a run that changes: with it and the config, training goes on as if never interrupted."""

  step: jax.Array  # int32: steps taken
  skipped: jax.Array  # int32: steps whose loss or gradient was not finite
  params: dict[str, Any]
  opt_state: Any
  ema: dict[str, Any]  # exponential moving average of `variables`; {} where config.ema is 0
  model_state: dict[str, Any]  # what the model has beside parameters, such as running statistics; often {}

  @property
  def variables(self) -> dict[str, Any]:
    """Parameters and model state as one tree, as evaluators and checkpoint formats take a model."""
    return pytrees.merged(self.params, self.model_state)

  def items(self) -> dict[str, Any]:
    """The checkpoint's items: parameters can be restored without the rest."""
    items = {
      'params': self.params,
      'opt_state': self.opt_state,
      'counters': {'step': self.step, 'skipped': self.skipped},
    }
    return items | {name: tree for name in ('ema', 'model_state') if (tree := getattr(self, name))}

  @classmethod
  def from_items(cls, items: dict[str, Any]) -> Self:
    """The state of `items`."""
    return cls(
      params=items['params'],
      opt_state=items['opt_state'],
      ema=items.get('ema', {}),
      model_state=items.get('model_state', {}),
      **items['counters'],
    )
