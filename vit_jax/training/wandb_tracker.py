"""Weights & Biases, by `config.tracker='wandb'`; WANDB_PROJECT, WANDB_MODE and its other variables hold."""

import os
import pathlib

import wandb

from vit_jax import config as config_lib
from vit_jax.config import Config
from vit_jax.foundation.errors import UserError, first_line
from vit_jax.training import trackers


class WandbTracker:
  """As `trackers.Tracker`; what is not sent yet lies in the workdir's wandb/."""

  def __init__(self, config: Config, workdir: pathlib.Path, run_id: str | None):
    try:
      self._run = wandb.init(
        project=os.environ.get('WANDB_PROJECT', 'vit_jax'),
        id=run_id or trackers.new_id(),
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

  @property
  def id(self) -> str:
    return self._run.id

  def write(self, step: int, values: dict[str, float]) -> None:
    self._run.log(values, step=step)

  def close(self, complete: bool) -> None:
    self._run.finish(exit_code=0 if complete else 1)
