"""The run object: what training, evaluation, plans and probes all set up from a config, made once."""

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from vit_jax.config import Config
from vit_jax.data import sources
from vit_jax.data.config import DataConfig
from vit_jax.data.sources import Source
from vit_jax.evaluation.base import EMA_SUFFIX, EvaluationContext, Evaluator, Limited, Params, Report
from vit_jax.foundation import class_matching
from vit_jax.foundation.errors import UserError
from vit_jax.models import flops
from vit_jax.models.base import Architecture
from vit_jax.models.capabilities import TextTowerOptions
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.pretrained import captions
from vit_jax.pretrained.captions import Captions
from vit_jax.training import auto
from vit_jax.training.any_shape import SequenceLengths
from vit_jax.training.frozen import FrozenModels
from vit_jax.training.progressive_resizing import ProgressiveResizing, Size
from vit_jax.training.state import TrainState
from vit_jax.training.step import Program, make_program, trained_paths
from vit_jax.training.timeline import Timeline

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Dataset:
  """What a run knows of its training data when the data itself need not be here."""

  examples: int  # images an epoch
  class_names: tuple[str, ...] = ()  # label -> name
  num_classes: int | None = None  # how many there are, where they have no names here
  class_counts: np.ndarray | None = None  # float64 (classes,): images of each, where the objective asks

  @property
  def classes(self) -> int:
    """How many classes there are."""
    return len(self.class_names) if self.num_classes is None else self.num_classes


class Run:
  """A config on devices: the mesh, the timeline in steps, the network and its compiled functions.

  Attributes:
    asked, config: the config as it was given, and with nothing left open (training/auto.py).
    chosen: a line about what was left open; empty: nothing was.
    dataset, mesh: its training data and its devices.
    timeline, resizing: its durations in steps, and the size of the images, or columns of patches, of each step.
    architecture: the network with the shapes of its input and output.
    frozen: the models that the objective asks beside the network.
  """

  def __init__(self, config: Config, dataset: Dataset, devices: Sequence[Any] | None = None):
    """The devices are by default those of all processes; a plan passes those of a machine that is not here.

    Raises UserError for a config that does not fit the data or the devices.
    """
    self.dataset, self.asked = dataset, config
    self.timeline = Timeline.of(config.total, batch_size=config.batch_size, examples=dataset.examples)
    self.resizing = (
      SequenceLengths(config.data) if config.data.max_patches else ProgressiveResizing(config, self.timeline)
    )
    architecture = Architecture(
      config.model,
      config.data.image_size,
      config.data.channels,
      config.objective.head_size(dataset.classes, config.data),
    )
    devices = list(jax.devices() if devices is None else devices)
    objective = config.objective.with_counts(dataset.classes, dataset.class_counts)
    config = dataclasses.replace(config, objective=objective)
    largest = dataclasses.replace(architecture, image_size=config.data.input_size)
    self.config, self.chosen = auto.choose(config, largest, self.timeline.total, devices)
    self.architecture = dataclasses.replace(architecture, model=self.config.model)
    self.mesh = mesh_lib.make_mesh(self.config.mesh, devices)
    self.frozen = FrozenModels(self.config, self.mesh, self.architecture.num_classes)

  @functools.cached_property
  def program(self) -> Program:
    """The training step and the shapes it works on."""
    return make_program(self.config, self.mesh, self.architecture, self.timeline, self.frozen)

  @property
  def frozen_shapes(self) -> tuple[Params, ...]:
    """What a step takes beside state and batch: the frozen models' parameters, and last those of an adapter's base."""
    base = self.program.base
    return (*self.frozen.shapes, base) if base else self.frozen.shapes

  @property
  def training_source(self) -> str:
    """Where the training data is, without the split that config.data.source may name: 'tfds:cifar10'."""
    return sources.without_split(self.config.data.source)

  def captions(self) -> Captions | None:
    """What makes the images' texts, where the objective has any; UserError for a tokenizer that cannot be read."""
    model, texts = self.config.model, self.config.objective.texts
    if texts is None or not isinstance(model, TextTowerOptions):
      return None
    tokenize = captions.tokenizer(texts.tokenizer, model)
    return Captions(texts.prompts, tokenize, model, self.dataset.class_names)

  def open_evaluators(self, trained: DataConfig | None = None) -> dict[str, Evaluator]:
    """The evaluators by name, their data opened; UserError where that is not there or does not fit the model.

    `trained`: the data options by which the parameters were trained, if not the run's.
    """
    config = self.config
    context = EvaluationContext(
      data=config.data,
      objective=config.objective,
      model=config.model,
      graphdef=self.program.graphdef,
      num_classes=self.architecture.num_classes,
      class_names=self.dataset.class_names,
      batch_size=config.batch_size,
      mesh=self.mesh,
      trained=trained,
    )
    opened = {}
    for name, options in config.evaluators.items():
      source = options.source or self.training_source
      if sources.was_trained_on(source, options.split, trained or config.data):
        title = sources.title(source, options.split)
        _log.warning('config.evaluators.%s counts images of %s, on which the model is trained.', name, title)
      opened[name] = options.open(name, source, context)
    return opened

  def step_flops(self, image_size: Size) -> float:
    """Model FLOPs of a training step, forward and backward, at an image size; recomputation excluded.

    Of frozen models, and of the large crops of a teacher that is the EMA, it has the forward pass; of an adapter's
    base, and of frozen parameters, no gradients that nobody asks for. SAM's two passes are both counted.
    """
    objective = self.config.objective
    extra = objective.extra_crops(self.config.data)
    crops = [image_size, *(crop.size for crop in extra for _ in range(crop.number))]
    each = sum(map(self._flops_of_an_image, crops))
    if objective.learns_from_ema:  # of the image and its second crop
      each += 2 * self.architecture.forward_flops(image_size)
    each += objective.own_flops(dataclasses.replace(self.architecture, image_size=image_size))
    gradients = 2 if self.config.optimizer.sam_radius else 1
    return float(self.config.batch_size * (gradients * each + self.frozen.forward_flops()))

  def _flops_of_an_image(self, size: Size) -> float:
    optimizer = self.config.optimizer
    if not optimizer.freezes:
      passes = flops.TRAINING - bool(self.config.adapter.rank)
      return passes * self.architecture.forward_flops(size, training=True)
    layers = self.architecture.model.training_layers(dataclasses.replace(self.architecture, image_size=size))
    trained = trained_paths(self.config, self.program.state.params)
    return 2 * flops.of_training(layers, trained, optimizer.freeze_blocks)

  def training_flops(self, steps: int | None = None) -> float:
    """Model FLOPs of the first so many training steps; None: of all."""
    return self.resizing.sum_before(self.step_flops)(self.timeline.total if steps is None else steps)


def open_training(config: Config, trained: Sequence[str] | None = None) -> tuple[Run, Source]:
  """A run on the devices that are here, and its training data.

  The labels are numbered as `trained`, the classes of the run's checkpoint, if it has one. Raises UserError for a
  config that does not fit the data or the devices, and for data that is not there or has other classes.
  """
  source = sources.open_training(config.data, config.seed)
  if trained is not None and tuple(trained) != tuple(source.class_names):
    source = _numbered_as(trained, source, config)
  counts = None
  if config.objective.counts_classes:
    counts = _counts_of_classes(source)
  dataset = Dataset(len(source), tuple(source.class_names), class_counts=counts)
  if not dataset.examples:
    raise UserError(f'The training data {config.data.title} has no records; choose another source or split.')
  config.objective.check_classes(dataset.class_names, config.data.title)
  return Run(config, dataset), source


def _counts_of_classes(source: Source) -> np.ndarray:
  """float64 (classes,): images of each, each counted as often as it is drawn from the parts of a mixture."""
  labels = source.labels()
  sizes, weights = (np.array(values, float) for values in zip(*source.parts, strict=True))
  often = weights / weights.sum() * sizes.sum() / np.maximum(sizes, 1)
  of_images = np.repeat(often, sizes.astype(int))
  images, *_ = known = np.nonzero(labels >= 0)
  return np.bincount(labels[known], of_images[images], minlength=len(source.class_names))


def _numbered_as(trained: Sequence[str], source: Source, config: Config) -> Source:
  """The training data with the labels of a checkpoint; the arguments and errors are those of `open_training`."""
  remedy = (
    'restore the data, or begin a new --workdir with --config.init.checkpoint=THIS_WORKDIR and '
    '"--config.init.reinitialise=()", which keeps the rows of the classes that both have'
  )
  what = 'The run in the workdir'
  matched = class_matching.rows(trained, source.class_names, outputs=len(trained), what=what, remedy=remedy)
  for note in matched.notes:
    _log.warning('%s', note)
  return sources.open_training(config.data, config.seed, trained)


def evaluate(
  state: TrainState,
  evaluators: Mapping[str, Evaluator],
  report: Report | None = None,
  limited: Limited = iter,
) -> dict[str, float]:
  """The metrics of all evaluators for a state's model, and for its EMA where there is one; see `Evaluator.run`."""
  models: dict[str, Params] = {'': state.variables}
  if state.ema:
    models[EMA_SUFFIX] = state.ema
  shared: dict[Any, Any] = {}
  scores: dict[str, float] = {}
  for evaluator in evaluators.values():
    scores |= evaluator.run(models, shared, report, limited)
  return scores
