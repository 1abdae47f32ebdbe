"""--mode=eval: the evaluators of a config on the newest checkpoint of its workdir."""

import dataclasses
import os
from typing import Any

from vit_jax.checkpoint.manager import Manager
from vit_jax.config import Config
from vit_jax.errors import UserError
from vit_jax.training import agreement, preprocessing
from vit_jax.training.console import Console
from vit_jax.training.run import Dataset, Run, evaluate
from vit_jax.training.schedule import ScheduleConfig
from vit_jax.training.state import TrainState
from vit_jax.training.workdir import Workdir, open_workdir


def evaluate_newest(config: Config, place: Workdir | str | os.PathLike[str]) -> dict[str, float]:
  """Evaluates the newest sound checkpoint of a workdir; writes to report/ there, and changes nothing else.

  Args:
    config: with the evaluators.
    place: the workdir, or where it is.

  Raises:
    UserError: there is no checkpoint, or nothing to evaluate.
  """
  if not config.evaluators:
    raise UserError('config.evaluators is empty; name at least one split to evaluate.')
  with open_workdir(place, read_only=True) as workdir:
    config = preprocessing.resolved(config, workdir.folder)
    step, run, state = _newest(config, workdir.checkpoints)
    evaluators = run.open_evaluators()
    agreement.check(run, evaluators)
    scores = evaluate(state, evaluators, workdir.folder / 'report')
  Console().evaluation(step, scores)
  return scores


def _newest(config: Config, checkpoints: str) -> tuple[int, Run, TrainState]:
  """The step of the newest sound checkpoint, its run, and its state with the model and the EMA of the checkpoint."""
  runs: list[Run] = []

  def wanted(meta: dict[str, Any]) -> dict[str, Any]:
    """The items to restore of a checkpoint: the model and its EMA in the shapes that its own data give."""
    known = config if meta['examples'] else _without_length(config)
    run = Run(known, Dataset(meta['examples'], tuple(meta['class_names'])))
    runs.append(run)
    items = run.program.state.items()
    return {name: item for name, item in items.items() if name in ('params', 'ema', 'model_state')}

  newest = Manager(checkpoints, config.checkpoint, read_only=True).restore_newest(wanted)
  if newest is None:
    raise UserError(f'There is no checkpoint in {checkpoints}; train first, or check --workdir.')
  return newest[0], runs[-1], runs[-1].program.state._replace(**newest[1])


def _without_length(config: Config) -> Config:
  """The config for a model that `convert` wrote: no data trained it, so that an epoch has no steps."""
  data = dataclasses.replace(config.data, progressive_resizing=())
  return dataclasses.replace(config, total='1 steps', data=data, schedule=ScheduleConfig())
