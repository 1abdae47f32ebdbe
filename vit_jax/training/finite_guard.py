"""What watches a run's loss."""

import json
import pathlib

import jax

from vit_jax.checkpoint.manager import Manager
from vit_jax.config import Config
from vit_jax.data.pipeline import TrainPipeline
from vit_jax.errors import UserError


class FiniteGuard:
  """Stops the run at a step whose loss or gradient is not finite (config.nonfinite 'stop').

  It looks at a step's metrics when the next one is under way, so that the device never waits.
  """

  def __init__(self, config: Config, pipeline: TrainPipeline, manager: Manager, workdir: pathlib.Path):
    self._stop = config.nonfinite == 'stop'
    self._pipeline, self._manager, self._workdir = pipeline, manager, workdir
    self._pending: tuple[int, dict[str, jax.Array]] | None = None

  def check(self, step: int, step_metrics: dict[str, jax.Array]) -> None:
    """Takes the metrics of `step`, and looks at those of the step before."""
    self.flush()
    self._pending = (step, step_metrics)

  def flush(self) -> None:
    """Looks at what has not been looked at yet; nothing is logged or saved before."""
    pending, self._pending = self._pending, None
    # Asked in every mode: it is what keeps the loop from running more than a step ahead of the device.
    if pending is not None and not pending[1]['finite'] and self._stop:
      raise UserError(self._text(*pending))

  def _text(self, step: int, step_metrics: dict[str, jax.Array]) -> str:
    values = {name: float(step_metrics[name]) for name in ('train/loss', 'train/grad_norm', 'learning_rate')}
    path = self._workdir / 'report' / f'nonfinite_step_{step}.json'
    if jax.process_index() == 0:
      records = self._pipeline.indices(step - 1).tolist()
      path.write_text(
        json.dumps({'step': step, **{k: repr(v) for k, v in values.items()}, 'records': records})
      )
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
