"""How a run's images are prepared: as its options say, else as when it began, else as its initial checkpoint.

The config that comes out says all of it, so that config.json, the checkpoints and a resumed run keep it.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping

from vit_jax.config import Config
from vit_jax.data.config import DataConfig, EvalCrop, Interpolation, Resize
from vit_jax.data.preprocess import Preprocess
from vit_jax.evaluation.base import EvaluatorConfig
from vit_jax.pretrained import formats
from vit_jax.training.resume import stored_config

Values = tuple[float, ...] | None  # one for all channels, or one for each
Cut = tuple[EvalCrop | None, Resize | None]


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
  mean, std = (_of_channels(values, data.channels) for values in (own.mean, own.std))
  return _filled(
    config, mean, std, own.interpolation, dict.fromkeys(config.evaluators, (own.crop, own.resize))
  )


def as_begun(config: Config, begun: Config) -> Config:
  """The config with what it leaves open taken from the config that its run began with.

  For another image size, what an evaluator cuts off keeps its share of the image.
  """
  size, old = config.data.image_size, begun.data
  there = {name: options for name, options in begun.evaluators.items() if name in config.evaluators}
  cuts = {name: _cut_at(size, old, options) for name, options in there.items()}
  return _filled(config, old.mean, old.std, old.interpolation, cuts)


def _filled(
  config: Config, mean: Values, std: Values, interpolation: Interpolation | None, cuts: Mapping[str, Cut]
) -> Config:
  """The config with what it leaves open filled in, also of the evaluators that `cuts` has."""
  data = config.data
  filled = dataclasses.replace(
    data, mean=data.mean or mean, std=data.std or std, interpolation=data.interpolation or interpolation
  )
  cut = {name: _cut_as(config.evaluators[name], *each) for name, each in cuts.items()}
  return dataclasses.replace(config, data=filled, evaluators=config.evaluators | cut)


def _cut_at(size: tuple[int, int], begun: DataConfig, evaluator: EvaluatorConfig) -> Cut:
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
