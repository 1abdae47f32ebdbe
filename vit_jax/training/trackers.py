"""Trackers of experiments beside `metrics.jsonl` and TensorBoard: MLflow, and Weights & Biases."""

import contextlib
import importlib.util
import json
import logging
import os
import pathlib
import secrets
import time
from typing import Any, Protocol

import jax

from vit_jax import config as config_lib
from vit_jax.config import Config
from vit_jax.foundation import files
from vit_jax.foundation.errors import UserError, first_line

_log = logging.getLogger(__name__)
_MOST_PARAMS = 100  # of a request to MLflow
_LONGEST_VALUE = 500  # characters of a parameter, on any of MLflow's servers


class Tracker(Protocol):
  """A run as one tracker shows it. What the network does to it never stops the training."""

  id: str  # what names the run to the tracker

  def __init__(self, config: Config, workdir: pathlib.Path, run_id: str | None):
    """Begins a run that is called as the workdir, or goes on with that of an id; UserError where that cannot be."""
    ...

  def write(self, step: int, values: dict[str, float]) -> None:
    """Adds the metrics of a step."""
    ...

  def close(self, complete: bool) -> None:
    """Ends the run; it is complete, or was stopped and may go on."""
    ...


class WandbTracker:
  """A `Tracker`; WANDB_PROJECT, WANDB_MODE and its other variables hold. What is not sent yet lies in wandb/."""

  def __init__(self, config: Config, workdir: pathlib.Path, run_id: str | None):
    import wandb

    try:
      self._run = wandb.init(
        project=os.environ.get('WANDB_PROJECT', 'vit_jax'),
        id=run_id or secrets.token_hex(8),
        name=workdir.name,
        dir=str(workdir),
        config=config_lib.as_json(config),
        resume='allow',
        settings=wandb.Settings(console='off'),  # the progress line is ours
      )
    except wandb.Error as error:
      raise UserError(
        f'Weights & Biases cannot begin a run ({first_line(error)}); log in (wandb login), or keep the run here to '
        f'send it later (WANDB_MODE=offline).'
      ) from error
    self.id = self._run.id

  def write(self, step: int, values: dict[str, float]) -> None:
    self._run.log(values, step=step)

  def close(self, complete: bool) -> None:
    self._run.finish(exit_code=0 if complete else 1)


class MlflowTracker:
  """A `Tracker`; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say where. A thread of MLflow's sends the metrics."""

  def __init__(self, config: Config, workdir: pathlib.Path, run_id: str | None):
    import mlflow

    self._last: Any = None  # the last request under way
    try:
      self._client = mlflow.MlflowClient()
      if run_id is not None:
        self._client.update_run(run_id, status='RUNNING')
      self.id = run_id or self._begin(config, workdir.name)
    except Exception as error:  # MLflow's own, and those of its server or data base
      raise UserError(
        f'MLflow cannot begin a run ({first_line(error)}); set MLFLOW_TRACKING_URI to a server that takes it.'
      ) from error

  def write(self, step: int, values: dict[str, float]) -> None:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    metrics = [Metric(name, float(value), now, step) for name, value in values.items()]
    self._last = self._client.log_batch(self.id, metrics=metrics, synchronous=False)

  def close(self, complete: bool) -> None:
    try:
      if self._last is not None:
        self._last.wait()  # they are sent in order
      self._client.set_terminated(self.id, 'FINISHED' if complete else 'KILLED')
    except Exception as error:  # as above
      _log.warning('MLflow has not all of the run: %s', error)

  def _begin(self, config: Config, name: str) -> str:
    """The id of a new run, with the config's options as its parameters."""
    from mlflow.entities import Param

    title = os.environ.get('MLFLOW_EXPERIMENT_NAME', 'vit_jax')
    experiment = self._client.get_experiment_by_name(title)
    place = experiment.experiment_id if experiment else self._client.create_experiment(title)
    run_id = self._client.create_run(place, run_name=name).info.run_id
    params = [Param(key, str(value)[:_LONGEST_VALUE]) for key, value in config_lib.flatten(config).items()]
    for first in range(0, len(params), _MOST_PARAMS):
      self._client.log_batch(run_id, params=params[first : first + _MOST_PARAMS])
    return run_id


_TRACKERS: dict[str, type[Tracker]] = {'wandb': WandbTracker, 'mlflow': MlflowTracker}


def open_tracker(config: Config, workdir: pathlib.Path, resume_step: int | None) -> Tracker | None:
  """The tracker that `config.tracker` names, on process 0; None: there is none.

  A run that goes on after a checkpoint stays one run: its id is in `tracker.json` of the workdir. Raises UserError
  where the tracker's package is not installed, or as `Tracker`.
  """
  name = config.tracker
  if name is None:
    return None
  if importlib.util.find_spec(name) is None:  # on all processes
    raise UserError(
      f"config.tracker is {name!r}, which is not installed; install it: pip install 'vit_jax[{name}]'"
    )
  if jax.process_index():
    return None
  path = workdir / 'tracker.json'
  tracker = _TRACKERS[name](config, workdir, None if resume_step is None else _stored_id(path, name))
  files.write_json(path, {name: tracker.id})
  return tracker


def _stored_id(path: pathlib.Path, name: str) -> str | None:
  """The id of a tracker's run in `tracker.json`; None where there is none, or the file is damaged."""
  with contextlib.suppress(OSError, ValueError):
    values = json.loads(path.read_bytes())
    if isinstance(values, dict) and isinstance(values.get(name), str):
      return values[name]
  return None
