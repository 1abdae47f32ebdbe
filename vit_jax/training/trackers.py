"""Trackers of experiments beside `metrics.jsonl` and TensorBoard: the contract, and which one a config names."""

import importlib
import importlib.util
import json
import pathlib
import secrets
from typing import Protocol

import jax

from vit_jax.config import Config
from vit_jax.foundation import files
from vit_jax.foundation.errors import UserError

# Name -> the package that it needs, and the class.
_TRACKERS = {
  'wandb': ('wandb', 'vit_jax.training.wandb_tracker', 'WandbTracker'),
  'mlflow': ('mlflow', 'vit_jax.training.mlflow_tracker', 'MlflowTracker'),
}


class Tracker(Protocol):
  """A run as one tracker shows it. What the network does to it never stops the training."""

  def __init__(self, config: Config, workdir: pathlib.Path, run_id: str | None):
    """Begins a run, or goes on with one.

    Args:
      config: of the run.
      workdir: its folder, whose name is the run's.
      run_id: what `id` was before; None: the run begins.

    Raises:
      UserError: the tracker cannot be reached, or not with these credentials.
    """
    ...

  @property
  def id(self) -> str:
    """What names the run to the tracker."""
    ...

  def write(self, step: int, values: dict[str, float]) -> None:
    """Adds the metrics of a step."""
    ...

  def close(self, complete: bool) -> None:
    """Ends the run; it is complete, or was stopped and may go on."""
    ...


def open_tracker(config: Config, workdir: pathlib.Path, resume_step: int) -> Tracker | None:
  """The tracker that `config.tracker` names, on process 0; None: there is none.

  A run that goes on after a checkpoint stays one run: its id is in `tracker.json` of the workdir.

  Raises:
    UserError: its package is not installed, or as `Tracker`.
  """
  name = config.tracker
  if name is None:
    return None
  package, module, kind = _TRACKERS[name]
  if importlib.util.find_spec(package) is None:  # on all processes
    raise UserError(
      f"config.tracker is {name!r}, which is not installed; install it: pip install 'vit_jax[{name}]'"
    )
  if jax.process_index():
    return None
  path = workdir / 'tracker.json'
  before = _read(path).get(name) if resume_step else None
  tracker: Tracker = getattr(importlib.import_module(module), kind)(config, workdir, before)
  files.write_json(path, {name: tracker.id})
  return tracker


def new_id() -> str:
  """A name for a run that no other has."""
  return secrets.token_hex(8)


def _read(path: pathlib.Path) -> dict[str, str]:
  try:
    values = json.loads(path.read_bytes())
  except (OSError, ValueError):
    return {}
  return (
    {name: text for name, text in values.items() if isinstance(text, str)} if isinstance(values, dict) else {}
  )
