"""How a run's images are prepared: as its options say, else as when it began, else as its initial checkpoint.

The config that comes out says all of it, so that config.json, the checkpoints and a resumed run keep it.
"""

import dataclasses
import math
import pathlib

from vit_jax.config import Config
from vit_jax.data.config import DataConfig
from vit_jax.data.preprocess import Preprocess
from vit_jax.evaluation.base import EvaluatorConfig
from vit_jax.pretrained import formats
from vit_jax.training.workdir import stored_config


def resolved(config: Config, workdir: pathlib.Path | None = None) -> Config:
  """The config with every option said that is about the pixels of its images.

  Args:
    config: the run; data.mean, data.std, data.interpolation and its evaluators' crop may be None.
    workdir: of the run; where it has begun there, it goes on as it began.

  Raises:
    UserError: config.init.checkpoint is not there, or damaged.
  """
  begun = None if workdir is None else stored_config(workdir)
  if begun is not None:
    config = as_begun(config, begun)
  data, evaluators = config.data, config.evaluators.values()
  said = (data.mean, data.std, data.interpolation, *(evaluator.crop for evaluator in evaluators))
  if None not in said:
    return config
  own = Preprocess.of_run(DataConfig(image_size=data.image_size, channels=data.channels), None, None)
  if config.init.checkpoint is not None:
    own = formats.preprocess(config.init.checkpoint, image_size=data.image_size).at(data.image_size)
  return _filled(config, own)


def as_begun(config: Config, begun: Config) -> Config:
  """The config with what it leaves open taken from the config that its run began with."""
  data, old = config.data, begun.data
  data = dataclasses.replace(
    data,
    mean=data.mean or old.mean,
    std=data.std or old.std,
    interpolation=data.interpolation or old.interpolation,
  )
  evaluators = {
    name: _cut_as(evaluator, begun.evaluators[name].crop, begun.evaluators[name].resize)
    if name in begun.evaluators
    else evaluator
    for name, evaluator in config.evaluators.items()
  }
  return dataclasses.replace(config, data=data, evaluators=evaluators)


def _filled(config: Config, own: Preprocess) -> Config:
  """The config with what it leaves open taken from a description for its image size."""
  data = config.data
  filled = dataclasses.replace(
    data,
    mean=data.mean or _of_channels(own.mean, data.channels),
    std=data.std or _of_channels(own.std, data.channels),
    interpolation=data.interpolation or own.interpolation,
  )
  resize = own.shorter or (None if own.whole is None else own.whole[0])
  crop = 'resize' if own.shorter is None else 'central'
  evaluators = {name: _cut_as(options, crop, resize) for name, options in config.evaluators.items()}
  return dataclasses.replace(config, data=filled, evaluators=evaluators)


def _cut_as(evaluator: EvaluatorConfig, crop: str | None, resize: int | None) -> EvaluatorConfig:
  """An evaluator with this crop, unless it says its own."""
  if evaluator.crop is not None:
    return evaluator
  return dataclasses.replace(evaluator, crop=crop, resize=evaluator.resize or resize)


def _of_channels(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
  """One number, or one a channel; of another number of channels their mean."""
  if len(set(values)) == 1:
    return values[:1]
  return values if len(values) == channels else (math.fsum(values) / len(values),)
