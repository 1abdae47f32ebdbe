"""MLflow, by `config.tracker='mlflow'`; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say where."""

import logging
import os
import pathlib
import time
from typing import Any

import mlflow
from mlflow.entities import Metric, Param

from vit_jax import config as config_lib
from vit_jax.config import Config
from vit_jax.foundation.errors import UserError, first_line

_log = logging.getLogger(__name__)
_MOST_PARAMS = 100  # of a request
_LONGEST_VALUE = 500  # characters of a parameter, on any of its servers


class MlflowTracker:
  """As `trackers.Tracker`; a thread of MLflow's sends the metrics."""

  def __init__(self, config: Config, workdir: pathlib.Path, run_id: str | None):
    self._last: Any = None  # the last request under way
    try:
      self._client = mlflow.MlflowClient()
      if run_id is None:
        self._id = self._begin(config, workdir.name)
      else:
        self._id = run_id
        self._client.update_run(run_id, status='RUNNING')
    except Exception as error:  # MLflow's own, and those of its server or data base
      raise UserError(
        f'MLflow cannot begin a run ({first_line(error)}); set MLFLOW_TRACKING_URI to a server that takes it.'
      ) from error

  @property
  def id(self) -> str:
    return self._id

  def write(self, step: int, values: dict[str, float]) -> None:
    now = int(time.time() * 1000)
    metrics = [Metric(name, float(value), now, step) for name, value in values.items()]
    self._last = self._client.log_batch(self._id, metrics=metrics, synchronous=False)

  def close(self, complete: bool) -> None:
    try:
      if self._last is not None:
        self._last.wait()  # they are sent in order
      self._client.set_terminated(self._id, 'FINISHED' if complete else 'KILLED')
    except Exception as error:  # as above
      _log.warning('MLflow has not all of the run: %s', error)

  def _begin(self, config: Config, name: str) -> str:
    """The id of a new run, with the config's options as its parameters."""
    title = os.environ.get('MLFLOW_EXPERIMENT_NAME', 'vit_jax')
    experiment = self._client.get_experiment_by_name(title)
    place = experiment.experiment_id if experiment else self._client.create_experiment(title)
    run_id = self._client.create_run(place, run_name=name).info.run_id
    params = [Param(key, str(value)[:_LONGEST_VALUE]) for key, value in config_lib.flatten(config).items()]
    for first in range(0, len(params), _MOST_PARAMS):
      self._client.log_batch(run_id, params=params[first : first + _MOST_PARAMS])
    return run_id
