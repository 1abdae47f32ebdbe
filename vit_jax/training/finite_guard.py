"""Stops a run whose loss or gradient is not finite, or mostly is not."""

import collections
import json
import pathlib

import jax

from vit_jax.checkpoint.manager import Manager
from vit_jax.config import Config
from vit_jax.data.pipeline import TrainPipeline
from vit_jax.foundation.errors import NotFinite
from vit_jax.objectives.base import Metrics

# A run that skips steps ends where more than half of so many were skipped, and there are at least _FEWEST.
_WINDOW, _FEWEST = 100, 20


class FiniteGuard:
  """Stops the run at a step whose loss or gradient is not finite (config.nonfinite 'stop'), or once most steps are.

  It looks at a step's metrics when the next one is under way, so that the device never waits.
  """

  def __init__(self, config: Config, pipeline: TrainPipeline, manager: Manager, workdir: pathlib.Path):
    self._stop = config.nonfinite == 'stop'
    self._pipeline, self._manager, self._workdir = pipeline, manager, workdir
    self._pending: tuple[int, Metrics] | None = None
    self._skipped = collections.deque[bool](maxlen=_WINDOW)  # whether each of the last steps was

  def check(self, step: int, step_metrics: Metrics) -> None:
    """Takes the metrics of `step`; raises NotFinite where the step before, or most of the last ones, was not finite."""
    self.flush()
    self._pending = (step, step_metrics)

  def flush(self) -> None:
    """Looks at metrics that have not been looked at yet; nothing is logged or saved before."""
    pending, self._pending = self._pending, None
    if pending is None:
      return
    # Read in every mode: this keeps the loop from running more than a step ahead of the device.
    finite = bool(jax.device_get(pending[1]['finite']))
    self._skipped.append(not finite)
    skipped, steps = sum(self._skipped), len(self._skipped)
    if not finite and (self._stop or (steps >= _FEWEST and 2 * skipped > steps)):
      raise NotFinite(self._sentence(*pending))

  def _sentence(self, step: int, step_metrics: Metrics) -> str:
    names = ('train/loss', 'train/grad_norm', 'learning_rate')
    values = {name: float(jax.device_get(step_metrics[name])) for name in names}
    path = self._workdir / 'report' / f'nonfinite_step_{step}.json'
    if jax.process_index() == 0:
      records = self._pipeline.indices(step - 1).tolist()
      texts = {name: repr(value) for name, value in values.items()}
      path.write_text(json.dumps({'step': step, **texts, 'records': records}), encoding='utf-8')
    self._manager.wait()
    newest = self._manager.latest_step()
    good, remedy = 'there is no checkpoint yet', 'lower the learning rate, or set config.nonfinite=skip'
    if newest is not None:
      good = f'the last good checkpoint is {self._manager.path(newest)}'
    often = ''
    if not self._stop:
      often = f', as in {sum(self._skipped)} of the last {len(self._skipped)} steps, which were skipped'
      good, remedy = (
        good.replace('last good', 'newest'),
        f'lower the learning rate ({values["learning_rate"]:g})',
      )
    return (
      f'Step {step}: the loss ({values["train/loss"]}) or the gradient norm '
      f"({values['train/grad_norm']}) is not finite{often}; {good}, the batch's records are in {path}; {remedy}."
    )
