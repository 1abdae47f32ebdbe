"""How a run's images are prepared: as its options say, else as when it began, else as its initial checkpoint.

The config that comes out says all of it, so that config.json, the checkpoints and a resumed run keep it.
"""

import dataclasses
import math
import pathlib

from vit_jax.config import Config
from vit_jax.data.config import DataConfig, EvalCrop, Resize
from vit_jax.data.preprocess import Preprocess
from vit_jax.evaluation.base import EvaluatorConfig
from vit_jax.pretrained import formats
from vit_jax.training.resume import stored_config


def resolved(config: Config, workdir: pathlib.Path | None = None) -> Config:
  """The config with every option said that is about the pixels of its images.

  Where a run has begun in `workdir`, it goes on as it began. Raises UserError where config.init.checkpoint is not there
  or damaged, or where the images that it or the run was evaluated on cannot be cut as the config's other options say.
  """
  config = _resolved(config, workdir)
  config.check('config')
  return config


def _resolved(config: Config, workdir: pathlib.Path | None) -> Config:
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
  """The config with what it leaves open taken from the config that its run began with.

  For another image size, what an evaluator cuts off keeps its share of the image.
  """
  data, old = config.data, begun.data
  data = dataclasses.replace(
    data,
    mean=data.mean or old.mean,
    std=data.std or old.std,
    interpolation=data.interpolation or old.interpolation,
  )
  evaluators = {
    name: _cut_as(evaluator, *_cut_at(data.image_size, old, begun.evaluators[name]))
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
  evaluators = {name: _cut_as(options, own.crop, own.resize) for name, options in config.evaluators.items()}
  return dataclasses.replace(config, data=filled, evaluators=evaluators)


def _cut_at(
  size: tuple[int, int], begun: DataConfig, evaluator: EvaluatorConfig
) -> tuple[EvalCrop | None, Resize | None]:
  """The crop and resize of an evaluator, which are for the images of `begun`, for images of another size."""
  if evaluator.resize is None or size == begun.image_size:
    return evaluator.crop, evaluator.resize
  return evaluator.crop, Preprocess.of_run(begun, evaluator.crop, evaluator.resize).at(size).resize


def _cut_as(evaluator: EvaluatorConfig, crop: EvalCrop | None, resize: Resize | None) -> EvaluatorConfig:
  """An evaluator with this crop, unless it says its own."""
  if evaluator.crop is not None:
    return evaluator
  return dataclasses.replace(evaluator, crop=crop, resize=evaluator.resize or resize)


def _of_channels(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
  """One number, or one a channel; of another number of channels their mean."""
  if len(set(values)) == 1:
    return values[:1]
  return values if len(values) == channels else (math.fsum(values) / len(values),)
