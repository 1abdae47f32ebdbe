"""The contract of an evaluator, and the registry of the evaluators that there are.

A newcomer writes one file with two classes, a frozen dataclass of options (`EvaluatorConfig`) and the
evaluator that it opens (`Evaluator`), and adds one line to `EVALUATORS`.
"""

import abc
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
from flax import nnx

from vit_jax.data.config import DataConfig, EvalCrop, Resize
from vit_jax.data.on_device import Batch
from vit_jax.foundation.durations import Duration
from vit_jax.foundation.errors import UserError
from vit_jax.foundation.registry import Registry
from vit_jax.models.base import ModelConfig
from vit_jax.objectives.base import Objective
from vit_jax.options import BatchSize

T = TypeVar('T')
Params = dict[str, Any]  # nested dicts of a model's parameters

# (batches) -> the same batches; see `Evaluator.run`.
Limited = Callable[[Iterable[Batch]], Iterable[Batch]]

EMA_SUFFIX = '_ema'  # of an evaluator's name, in the metrics of the parameters' EMA


class Report(NamedTuple):
  """Where an evaluation is written down, class by class."""

  folder: pathlib.Path
  pictures: bool = True  # whether there are pictures beside the tables


class MetricKind(NamedTuple):
  """How the metrics of one name are read."""

  higher_is_better: bool  # whether the best value is the highest, and not the lowest
  percent: bool = False  # whether it is printed in percent
  headline: bool = False  # whether it is in the last line of a run


@dataclasses.dataclass(frozen=True)
class EvaluationContext:
  """What an evaluator knows of the run."""

  data: DataConfig  # the run's data options: how an image becomes the model's input
  objective: Objective  # what is learned; says what logits mean
  model: ModelConfig  # the network's options
  graphdef: nnx.GraphDef  # the network; with parameters, `nnx.merge` makes it
  num_classes: int  # size of the head
  class_names: tuple[str, ...]  # of the training data; label -> name
  batch_size: int  # of training, over all devices
  mesh: jax.sharding.Mesh  # where parameters and batches lie
  trained: DataConfig | None = None  # the data options by which the parameters were trained; None: `data`


class Evaluator(abc.ABC):
  """Turns parameters into metrics; its data stays open between evaluations.

  Attributes:
    examples: images of the evaluated split, each of which is counted.
    title: what is evaluated, for the screen: 'folder:/photos val'.
    notes: sentences for the person.
  """

  examples: int
  title: str = ''
  notes: tuple[str, ...] = ()

  @abc.abstractmethod
  def run(
    self,
    models: Mapping[str, Params],
    shared: dict[Any, Any],
    report: Report | None = None,
    limited: Limited = iter,
  ) -> dict[str, float]:
    """The metrics of one or more sets of parameters, in one pass over the data.

    In a run of several processes all of them call this, and each gets the same bits.

    Args:
      models: suffix -> parameters, with the model's state: '' and, where the run has one, EMA_SUFFIX for the EMA.
      shared: results that evaluators of the same parameters share, such as features; empty at first.
      report: where process 0 writes tables and pictures; None: nothing is written.
      limited: passes batches on, and ends a run that trains where one is not ready in time (`Watchdog.limited`).

    Returns:
      '<evaluator><suffix>/<metric>' -> value.
    """


@dataclasses.dataclass(frozen=True)
class EvaluatorConfig(abc.ABC):
  """What is evaluated during training, at its end, and with --mode=eval."""

  # Source of the data, written as data.source. None for data.source itself.
  source: str | None = None
  # Split of the source, such as 'test' or 'train[90%:]'.
  split: str = 'test'
  # Cut of an image: 'resize' (squash, as the paper's evaluation), 'central' (resize the shorter side, cut the middle),
  # or timm's crop_mode: 'timm_center', 'timm_squash', 'timm_border'. None for the cut by which init.checkpoint was
  # evaluated, and without one for 'resize'.
  crop: EvalCrop | None = None
  # Size in pixels before the middle is cut: the shorter side ('central', 'timm_center') or the height, or height and
  # width. None for image_size, and with crop None for the size by which init.checkpoint was evaluated.
  resize: Resize | None = None
  # Images in a batch. None for the training batch size.
  batch_size: BatchSize | None = None
  # Interval of evaluations; there is one at the end too.
  every: Duration = '1 epochs'

  # Place among evaluators of other types, as whose images those of a model in use are prepared (`leading`).
  precedence: ClassVar[int] = 1
  # Every metric that it may give: the name behind the '/' -> how it is read.
  metrics: ClassVar[Mapping[str, MetricKind]]

  @abc.abstractmethod
  def open(self, name: str, source: str, context: EvaluationContext) -> Evaluator:
    """Opens the data of the evaluator `name`: `source`, or the training data's without its split.

    Raises UserError for data that is not there or does not fit the model.
    """

  @property
  def patch_size(self) -> int | None:
    """The patch size at which a model of several is evaluated; None: its own."""
    return None

  def given_metrics(self, name: str, data: DataConfig) -> tuple[str, ...]:
    """The metrics that it gives, as far as the options tell; `name` is the evaluator's, perhaps with a suffix."""
    return tuple(f'{name}/{metric}' for metric in self.metrics)

  def best_metrics(self, name: str, data: DataConfig) -> tuple[str, ...]:
    """Those of `given_metrics` that checkpoint.best may name."""
    return self.given_metrics(name, data)


def leading(evaluators: Mapping[str, EvaluatorConfig]) -> tuple[str, EvaluatorConfig] | None:
  """The evaluator as whose images those of the model in use are prepared, behind its name; None: there is none.

  It is one of the model's own head before others, of the run's own data before other data, and else the first.
  """
  items = evaluators.items()
  return min(items, key=lambda item: (item[1].precedence, item[1].source is not None), default=None)


EVALUATORS: Registry[EvaluatorConfig] = Registry(
  'evaluator',
  {
    'classification': 'vit_jax.evaluation.classification:ClassificationEvaluatorConfig',
    'fewshot': 'vit_jax.evaluation.fewshot:FewShotEvaluatorConfig',
    'retrieval': 'vit_jax.evaluation.retrieval:RetrievalEvaluatorConfig',
    'zero_shot': 'vit_jax.evaluation.zero_shot:ZeroShotEvaluatorConfig',
  },
  tag='type',
)


def check_classes(names: Sequence[str], name: str, source: str) -> None:
  """Raises UserError where the data of the evaluator `name` has no classes, given their `names`."""
  if not names:
    raise UserError(
      f'config.evaluators.{name} needs classes, and {source} has captions alone; give it another source, or the type '
      "'retrieval'."
    )


def one_behind(compute: Callable[[Batch], T], batches: Iterable[Batch]) -> Iterator[T]:
  """What `compute` gives of each batch: the next one is computed while the results of the one before are fetched."""
  pending: list[T] = []
  for batch in batches:
    pending.append(compute(batch))
    if len(pending) > 1:
      yield pending.pop(0)
  yield from pending


def examples_of(evaluators: Mapping[str, Evaluator]) -> dict[str, int]:
  """Name of an evaluator -> its images."""
  return {name: evaluator.examples for name, evaluator in evaluators.items()}


def metric_kind(name: str) -> MetricKind:
  """How a metric of metrics.jsonl is read, by the part of its name after the last '/'.

  A metric that no evaluator declares is a plain number, better when higher unless its name ends in 'loss'.
  """
  last = name.rpartition('/')[2]
  for evaluator in EVALUATORS.names():
    if last in EVALUATORS[evaluator].metrics:
      return EVALUATORS[evaluator].metrics[last]
  return MetricKind(higher_is_better=not last.endswith('loss'))


def format_metric(name: str, value: float) -> str:
  """'98.61%' or '0.1462', as the metric's kind has it."""
  if metric_kind(name).percent:
    return f'{value:.2%}'
  return f'{value:.4f}' if value % 1 else f'{value:.0f}'
