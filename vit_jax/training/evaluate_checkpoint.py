"""--mode=eval: the evaluators of a config on the newest checkpoint of its workdir."""

import dataclasses
import itertools
import os
import pathlib
from typing import Any

from vit_jax import config as config_lib
from vit_jax.checkpoint.manager import Manager
from vit_jax.config import Config
from vit_jax.data import sources
from vit_jax.data.config import DataConfig
from vit_jax.evaluation.base import Report
from vit_jax.foundation.errors import UserError
from vit_jax.training import agreement, preprocessing
from vit_jax.training.console import Console
from vit_jax.training.initialization import read_base
from vit_jax.training.run import Dataset, Run, evaluate
from vit_jax.training.schedule import ScheduleConfig
from vit_jax.training.state import TrainState
from vit_jax.training.workdir import Workdir, open_workdir


def evaluate_newest(config: Config, place: Workdir | str | os.PathLike[str]) -> dict[str, float]:
  """Evaluates the newest sound checkpoint of a workdir by the evaluators of a config.

  The report goes to a new folder of the workdir; nothing else is changed. Raises UserError where there is no
  checkpoint, or nothing to evaluate.
  """
  if not config.evaluators:
    raise UserError('config.evaluators is empty; name at least one split to evaluate.')
  screen = Console()
  with open_workdir(place, read_only=True) as workdir:
    config = preprocessing.resolved(config, workdir.folder)
    step, run, state, trained = _newest(config, workdir.checkpoints)
    evaluators = run.open_evaluators(trained)
    agreement.check(run, evaluators)
    screen.evaluators(evaluators)
    report = _new_folder(workdir.folder, step)
    scores = evaluate(state, evaluators, Report(report), workdir.checked)
    screen.evaluation(step, scores)
    if report.exists():
      screen.say(workdir.named(f'Report: {report}'))
  return scores


def _newest(config: Config, checkpoints: str) -> tuple[int, Run, TrainState, DataConfig]:
  """The newest sound checkpoint's step, run, state with the model and the EMA, and what it was trained on."""
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
  step, items, meta = newest
  run = runs[-1]
  data = sources.placed(config_lib.from_config_dict(meta['config']).data, meta.get('directory'))
  if any(evaluator.source is None for evaluator in config.evaluators.values()):
    sources.check_fold(data, meta['examples'], meta.get('data_version', ''))
  base = read_base(run, meta.get('base'))[0] if config.adapter.rank else {}
  state = run.program.whole(run.program.state._replace(**items), base)
  return step, run, state, data


def _new_folder(workdir: pathlib.Path, step: int) -> pathlib.Path:
  """The name of a folder that is not there yet: 'evaluations/step_500', then 'evaluations/step_500-2' …"""
  first = workdir / 'evaluations' / f'step_{step}'
  others = (first.with_name(f'{first.name}-{number}') for number in itertools.count(2))
  return next(folder for folder in itertools.chain([first], others) if not folder.exists())


def _without_length(config: Config) -> Config:
  """The config for a model that `convert` wrote: no data trained it, so that an epoch has no steps."""
  data = dataclasses.replace(config.data, progressive_resizing=())
  return dataclasses.replace(config, total='1 steps', data=data, schedule=ScheduleConfig())
