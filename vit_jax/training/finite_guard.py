"""Stops a run whose loss or gradient is not finite."""

import json
import pathlib

import jax

from vit_jax.checkpoint.manager import Manager
from vit_jax.config import Config
from vit_jax.data.pipeline import TrainPipeline
from vit_jax.errors import UserError

Metrics = dict[str, jax.Array]


class FiniteGuard:
  """Stops the run at a step whose loss or gradient is not finite (config.nonfinite 'stop').

  It looks at a step's metrics when the next one is under way, so that the device never waits.
  """

  def __init__(self, config: Config, pipeline: TrainPipeline, manager: Manager, workdir: pathlib.Path):
    self._stop = config.nonfinite == 'stop'
    self._pipeline, self._manager, self._workdir = pipeline, manager, workdir
    self._pending: tuple[int, Metrics] | None = None

  def check(self, step: int, step_metrics: Metrics) -> None:
    """Takes the metrics of `step`, and looks at those of the step before.

    Raises:
      UserError: the step before was not finite.
    """
    self.flush()
    self._pending = (step, step_metrics)

  def flush(self) -> None:
    """Looks at metrics that have not been looked at yet; nothing is logged or saved before."""
    pending, self._pending = self._pending, None
    if pending is None:
      return
    # Read in every mode: this keeps the loop from running more than a step ahead of the device.
    finite = bool(pending[1]['finite'])
    if not finite and self._stop:
      raise UserError(self._sentence(*pending))

  def _sentence(self, step: int, step_metrics: Metrics) -> str:
    values = {name: float(step_metrics[name]) for name in ('train/loss', 'train/grad_norm', 'learning_rate')}
    path = self._workdir / 'report' / f'nonfinite_step_{step}.json'
    if jax.process_index() == 0:
      records = self._pipeline.indices(step - 1).tolist()
      texts = {name: repr(value) for name, value in values.items()}
      path.write_text(json.dumps({'step': step, **texts, 'records': records}), encoding='utf-8')
    self._manager.wait()
    newest = self._manager.latest_step()
    good = 'there is no checkpoint yet'
    if newest is not None:
      good = f'the last good checkpoint is {self._manager.path(newest)}'
    return (
      f'Step {step}: the loss ({values["train/loss"]}) or the gradient norm '
      f"({values['train/grad_norm']}) is not finite; {good}, the batch's records are in {path}; "
      'lower the learning rate, or set config.nonfinite=skip.'
    )
