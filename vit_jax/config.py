"""The config of a run: it composes the frozen dataclasses of options that stand beside what they configure.

A file in `configs/` returns `to_config_dict(Config(...))`; `from_config_dict` turns it, with the overrides of
the command line applied, back into a checked `Config`. Every option is documented above its field, here or in
the section's own file. Durations are text with a unit (durations.py).
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import ml_collections

from vit_jax import options
from vit_jax.adapters.lora import AdapterConfig
from vit_jax.checkpoint.config import CheckpointConfig
from vit_jax.data.config import DataConfig, check_resize
from vit_jax.evaluation.base import EMA_SUFFIX, EVALUATORS, EvaluatorConfig
from vit_jax.evaluation.classification import ClassificationEvaluatorConfig
from vit_jax.evaluation.fewshot import FewShotEvaluatorConfig
from vit_jax.evaluation.retrieval import RetrievalEvaluatorConfig
from vit_jax.evaluation.zero_shot import ZeroShotEvaluatorConfig
from vit_jax.foundation import durations
from vit_jax.foundation.durations import Duration, DurationOrZero
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import MODELS, Architecture, ModelConfig
from vit_jax.models.dino import DinoConfig
from vit_jax.models.efficientnet import EfficientNetConfig
from vit_jax.models.mae import MaeConfig
from vit_jax.models.mixer import MixerConfig
from vit_jax.models.moco import MocoConfig
from vit_jax.models.resnet import ResNetConfig
from vit_jax.models.two_towers import TwoTowersConfig
from vit_jax.models.vit_config import ViTConfig
from vit_jax.objectives.base import OBJECTIVES, Objective
from vit_jax.objectives.classification import ClassificationObjective
from vit_jax.objectives.contrastive import ContrastiveObjective
from vit_jax.objectives.contrastive_views import ContrastiveViewsObjective
from vit_jax.objectives.distillation import DistillationObjective
from vit_jax.objectives.mae import MaeObjective
from vit_jax.objectives.masked_patches import MaskedPatchesObjective
from vit_jax.objectives.self_distillation import SelfDistillationObjective
from vit_jax.options import (
  RESUMABLE,
  BatchSize,
  Between,
  Count,
  NotNegative,
  flatten,
  old_configs,
  to_config_dict,
)
from vit_jax.parallel.mesh import MeshConfig
from vit_jax.pretrained.config import InitConfig
from vit_jax.training.config import StopConfig, TensorBoardConfig
from vit_jax.training.optimizer import OptimizerConfig
from vit_jax.training.profiling import ProfiledSteps
from vit_jax.training.schedule import ScheduleConfig

__all__ = [
  'AdapterConfig',
  'CheckpointConfig',
  'ClassificationEvaluatorConfig',
  'ClassificationObjective',
  'Config',
  'ContrastiveObjective',
  'ContrastiveViewsObjective',
  'DataConfig',
  'DinoConfig',
  'DistillationObjective',
  'EfficientNetConfig',
  'FewShotEvaluatorConfig',
  'InitConfig',
  'MaeConfig',
  'MaeObjective',
  'MaskedPatchesObjective',
  'MeshConfig',
  'MixerConfig',
  'MocoConfig',
  'OptimizerConfig',
  'ResNetConfig',
  'RetrievalEvaluatorConfig',
  'ScheduleConfig',
  'SelfDistillationObjective',
  'StopConfig',
  'TensorBoardConfig',
  'TwoTowersConfig',
  'ViTConfig',
  'ZeroShotEvaluatorConfig',
  'as_json',
  'differing_options',
  'flatten',
  'from_config_dict',
  'to_config_dict',
]

# What stands before the '/' in the metrics that training itself logs.
_OF_TRAINING = ('train', 'perf', 'data')


@dataclasses.dataclass(frozen=True)
class Config:
  """A run."""

  # Seed of initial parameters, the order of the images, augmentation and dropout.
  seed: Annotated[int, Between(0, 2**32 - 1)] = 0
  # Length of the training. '0 steps' where the head that init.head 'probe' or 'text' makes is all that is wanted.
  total: DurationOrZero = '10 epochs'
  # Images in a step, over all devices.
  batch_size: BatchSize = 512
  # Number of parts of a batch, computed one after the other to save memory. None for as few as fit (training/auto.py).
  # A model with running statistics takes them from each part, and a loss that compares examples compares those of one,
  # so that their parts are chosen only here, and a run keeps them.
  accumulation: Annotated[Count | None, RESUMABLE] = None
  # Model, by model.name: 'vit' (hybrids too), 'mae', 'dino', 'moco', 'two_towers', 'mixer', 'resnet' or 'efficientnet'.
  model: Annotated[ModelConfig, MODELS] = ViTConfig()  # noqa: RUF009 (frozen)
  init: InitConfig = InitConfig()  # noqa: RUF009
  adapter: AdapterConfig = AdapterConfig()  # noqa: RUF009
  data: DataConfig = DataConfig()  # noqa: RUF009
  # Evaluators by name, each of type 'classification', 'fewshot', 'retrieval' or 'zero_shot'.
  evaluators: Annotated[dict[str, EvaluatorConfig], EVALUATORS] = dataclasses.field(default_factory=dict)
  # Objective, by objective.name: 'classification', 'contrastive', 'contrastive_views', 'distillation', 'mae',
  # 'masked_patches' or 'self_distillation'.
  objective: Annotated[Objective, OBJECTIVES] = ClassificationObjective()  # noqa: RUF009
  optimizer: OptimizerConfig = OptimizerConfig()  # noqa: RUF009
  schedule: ScheduleConfig = ScheduleConfig()  # noqa: RUF009
  # Decay in a step of an exponential moving average (EMA) of the parameters and running statistics, which is evaluated
  # beside them. 0 for no EMA.
  ema: Annotated[float, Between(0, 1 - 1e-9)] = 0.0
  # Course of that decay: 'constant'; 'warmup', the smaller one of `ema` and (1 + step) / (10 + step), as TensorFlow's,
  # so that the average of a short run is not held back by its first parameters; or 'cosine', from `ema` to 1 at the end
  # of the run, as of a teacher (DINO, MoCo v3).
  ema_schedule: Literal['constant', 'warmup', 'cosine'] = 'constant'
  # Action at a loss or gradient that is not finite: 'stop', or 'skip' the step.
  nonfinite: Literal['stop', 'skip'] = 'stop'
  mesh: Annotated[MeshConfig, RESUMABLE] = MeshConfig()  # noqa: RUF009
  checkpoint: Annotated[CheckpointConfig, RESUMABLE] = CheckpointConfig()  # noqa: RUF009
  stop: Annotated[StopConfig, RESUMABLE] = StopConfig()  # noqa: RUF009
  # Interval at which numbers are shown and written; shorter where a run would log less than twenty times.
  log_every: Annotated[Duration, RESUMABLE] = '50 steps'
  tensorboard: Annotated[TensorBoardConfig, RESUMABLE] = TensorBoardConfig()  # noqa: RUF009
  # Tracker of experiments that gets the metrics too: 'wandb' or 'mlflow' (docs/evaluation.md). None for no tracker.
  tracker: Annotated[Literal['wandb', 'mlflow'] | None, RESUMABLE] = None
  # Steps to write a profile of into the workdir, such as 'steps 10-20'; SIGUSR1 asks for one too (docs/profiling.md).
  profile: Annotated[ProfiledSteps | None, RESUMABLE] = None
  # Seconds after which a step, or reading a batch for an evaluation, counts as hung: the process writes the stacks of
  # its threads and ends with exit code 75, to be started again. Compiling and saving do not count. 0 for no limit.
  step_limit: Annotated[NotNegative, RESUMABLE] = 1800.0

  @property
  def begins_trained(self) -> bool:
    """Whether the model is not all random before the first step."""
    return self.init.checkpoint is not None or self.init.head == 'probe'

  @property
  def batch_parts(self) -> int:
    """Parts of a batch computed one after the other; 1 where that is still open."""
    return self.accumulation or 1

  def learns_by_parts(self, architecture: Architecture) -> bool:
    """Whether parts of a batch change what is learned: running statistics, and losses that compare examples."""
    return self.objective.compares_examples or bool(architecture.state_paths())

  def metric_names(self, *, best: bool = False) -> list[str]:
    """The metrics that the evaluators give, also of the EMA; with `best` only those by which checkpoints are ranked."""
    names = []
    for name, evaluator in self.evaluators.items():
      given = evaluator.best_metrics if best else evaluator.given_metrics
      names += [metric for title in self._titles(name) for metric in given(title, self.data)]
    return names

  def _titles(self, evaluator: str) -> tuple[str, ...]:
    """What an evaluator is called in metrics: by its name, and likewise of the EMA if there is one."""
    return (evaluator, f'{evaluator}{EMA_SUFFIX}') if self.ema else (evaluator,)

  def check_evaluator_names(self) -> None:
    """Raises UserError where an evaluator's metrics or report would lie in the place of others, as a run trains."""
    owners: dict[str, str] = dict.fromkeys(_OF_TRAINING, 'what training logs')
    for name, evaluator in self.evaluators.items():
      path = f'config.evaluators.{name}'
      if '/' in name:
        raise UserError(f"{path} has a '/' in its name, and names files in report/; rename it.")
      metrics = [
        metric for title in self._titles(name) for metric in evaluator.given_metrics(title, self.data)
      ]
      for group in {metric.rpartition('/')[0] for metric in metrics}:
        if owners.setdefault(group, path) != path:
          raise UserError(
            f'{path} would write {group}/… to metrics.jsonl in the place of {owners[group]}; rename the evaluator.'
          )

  def check(self, path: str) -> None:
    """Raises UserError, naming the options and the remedy, where sections contradict each other."""
    if self.batch_size % self.batch_parts:
      raise UserError(
        f'{path}.batch_size {self.batch_size} does not divide into {path}.accumulation '
        f'{self.accumulation} equal parts; change one of them.'
      )
    self._check_repeats(path)
    self.objective.check_run(self.model, self.data)
    self._check_any_shape(path)
    ends = self.schedule.decay != 'constant' or durations.parse(self.schedule.cooldown)[0]
    if self.optimizer.averages and ends:
      raise UserError(
        f'{path}.optimizer.name is {self.optimizer.name!r}, whose average takes the place of a decay of the learning '
        f"rate; set {path}.schedule.decay='constant' without a cooldown (a warmup is fine)."
      )
    if self.objective.learns_from_ema and not self.ema:
      raise UserError(
        f'{path}.objective is {self.objective.title}, whose teacher is the EMA, and {path}.ema is 0; set it to 0.99 or '
        f'more.'
      )
    if self.objective.learns_from_ema and self.adapter.rank:
      raise UserError(
        f'{path}.adapter.rank is {self.adapter.rank}, and {self.objective.title} trains whole models; leave it out.'
      )
    if self.adapter.rank and self.init.checkpoint is None:
      raise UserError(
        f'{path}.adapter.rank is {self.adapter.rank}, and an adapter needs a trained base; name it in '
        f'{path}.init.checkpoint, or set the rank to 0.'
      )
    if self.adapter.dora and not self.adapter.rank:
      raise UserError(
        f'{path}.adapter.dora is True, and {path}.adapter.rank 0 has no adapter, but trains the whole model; set it to '
        f'16, or leave dora out.'
      )
    one_class_each = self.data.max_labels is None and self.objective.class_scores() is not None
    if self.init.head == 'probe' and not one_class_each:
      raise UserError(
        f"{path}.init.head is 'probe', which needs images of one class each; set it to 'constant'."
      )
    if self.init.head == 'probe' and self.objective.link == 'sigmoid':
      raise UserError(
        f"{path}.init.head is 'probe', a head of probabilities that sum to one, and {self.objective.title} gives each "
        f"class its own; set it to 'constant', or the loss to 'softmax'."
      )
    if self.init.head == 'text' and self.init.checkpoint is None:
      raise UserError(
        f"{path}.init.head is 'text', which needs {path}.init.checkpoint; name a CLIP or a SigLIP."
      )
    if self.init.head == 'constant' and not durations.parse(self.total)[0]:
      raise UserError(
        f'{path}.total is {self.total!r}, in which nothing is learned; give it a length, or set '
        f"{path}.init.head='probe'."
      )
    for name, evaluator in self.evaluators.items():
      self._check_evaluator(f'{path}.evaluators.{name}', evaluator)
    self._check_metric(f'{path}.checkpoint.best', self.checkpoint.best)
    self._check_metric(f'{path}.stop.metric', self.stop.metric)

  def _check_repeats(self, path: str) -> None:
    """Raises UserError for repeats that do not divide the batch, or that the objective would take for other images."""
    if self.batch_size % self.data.repeats:
      raise UserError(
        f'{path}.batch_size {self.batch_size} does not divide by {path}.data.repeats {self.data.repeats}; '
        f'change one of them.'
      )
    if self.data.repeats > 1 and self.objective.compares_examples:
      raise UserError(
        f'{path}.data.repeats is {self.data.repeats}, and {self.objective.title} tells the images of a batch apart, '
        f'several of which would be the same; set it to 1.'
      )

  def _check_any_shape(self, path: str) -> None:
    """Raises UserError for what takes images of one size, where data.max_patches is for images of any shape."""
    if not self.data.max_patches:
      return
    self.model.check_any_shape(f'{path}.data.max_patches')
    if self.data.patch != self.model.patch_pixels:
      raise UserError(
        f'{path}.data.patch is {self.data.patch} pixels, and the model has patches of {self.model.patch_pixels}; set '
        f'it to {self.model.patch_pixels}.'
      )
    if self.model.patch_sizes:
      raise UserError(
        f'{path}.data.max_patches is for patches of one size; leave {path}.model.patch_sizes out.'
      )
    if self.objective.frozen_models() or self.objective.extra_crops(self.data):
      raise UserError(
        f'{path}.data.max_patches is for images of any shape, and {self.objective.title} takes images of one size; '
        'leave it out.'
      )

  def _check_evaluator(self, path: str, evaluator: EvaluatorConfig) -> None:
    crop = evaluator.crop or 'resize'
    check_resize(f'{path}.resize', evaluator.resize, self.data.image_size, crop=crop)
    if self.data.mixture and evaluator.source is None:
      raise UserError(
        f'{path}.source is not given; name the data to evaluate on, since config.data.mixture has several.'
      )
    kind, fitting = EVALUATORS.name_of(type(evaluator)), self.objective.evaluators
    if fitting and kind not in fitting:
      raise UserError(
        f'{path}.type is {kind!r}, which makes no sense of {self.objective.title}; '
        f'choose {" or ".join(map(repr, fitting))}.'
      )

  def _check_metric(self, path: str, metric: str | None) -> None:
    names = self.metric_names(best=True)
    if metric is not None and not names:
      raise UserError(
        f'{path} is {metric!r}, and config.evaluators is empty, so that no metric is ever there; add an evaluator, or '
        f'leave it out.'
      )
    if metric is not None and metric not in names:
      raise UserError(f'{path} is {metric!r}, which no evaluator gives; choose one of {", ".join(names)}.')


def from_config_dict(values: ml_collections.ConfigDict | Mapping[str, Any]) -> Config:
  """The checked config of a ConfigDict, or of the JSON that `as_json` made, by this version or an older one.

  Raises UserError for an unknown option, a wrong value, or values that contradict each other.
  """
  if isinstance(values, ml_collections.ConfigDict):
    return options.from_dict(Config, values.to_dict())
  if not isinstance(values, Mapping):
    raise UserError(f'A config is a JSON object, and this is {type(values).__name__}.')
  try:
    values = old_configs.migrated(values)
  except (TypeError, AttributeError, ValueError, ArithmeticError) as error:
    raise UserError(f'The config is none that vit_jax wrote ({error}); restore it.') from error
  return options.from_dict(Config, values)


def as_json(config: Config) -> dict[str, Any]:
  """The config as nested dicts of JSON's types (tuples become lists)."""
  return options.as_dict(config)


def differing_options(old: Config, new: Config) -> list[str]:
  """The options, by dotted name, that keep `new` from going on with a run of `old`."""
  before, after = (
    flatten(dataclasses.replace(config, optimizer=config.optimizer.with_defaults())) for config in (old, new)
  )
  resumable = set(options.resumable(Config))

  def may_change(name: str) -> bool:
    """Whether the option, or a section that it is in, is among them."""
    parts = name.split('.')
    sections = {'.'.join(parts[:end]) + '.' for end in range(1, len(parts))}
    return not resumable.isdisjoint({name, *sections})

  names = sorted(before.keys() | after.keys())
  differing = [n for n in names if before.get(n) != after.get(n) and not may_change(n)]
  if old.batch_parts != new.batch_parts:
    architecture = Architecture(new.model, new.data.image_size, new.data.channels, 1)
    differing += ['accumulation'] if new.learns_by_parts(architecture) else []
  return differing
