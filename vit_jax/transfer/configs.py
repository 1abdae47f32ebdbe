"""The configs of a transfer's runs: the paper's recipe, with the changes that a smaller machine asks for."""

import ast
import dataclasses
from typing import Any, Literal

from vit_jax import config as c
from vit_jax import recipes
from vit_jax.experiments import options as options_lib
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained.config import Weights
from vit_jax.transfer.suites import Row

# What the runs of a transfer differ in, or what is computed for them: option -> the flag that says it.
_FLAGS = {
  'seed': 'seeds',
  'total': 'steps',
  'batch_size': 'batch_size',
  'init.checkpoint': 'checkpoint',
  'init.weights': 'weights',
  'data.source': 'suite',
  'data.split': 'suite',
  'data.mixture': 'suite',
  'data.image_size': 'image_size',
  'evaluators': 'suite',
  'schedule.learning_rate': 'rates',
  'schedule.warmup': 'steps',
}
PROBES: tuple[Literal['ridge', 'logistic', 'knn'], ...] = ('ridge', 'logistic', 'knn')


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is transferred, and how it differs from the paper's recipe: the flags of the command, which say what each is.

  None: as in the paper; without `real_labels`, the line of ImageNet ReaL is left out.
  """

  checkpoint: str
  weights: Weights | None = None
  seeds: int = 3
  shots: tuple[int, ...] = (5,)
  steps: int | None = None
  batch_size: int | None = None
  image_size: int | None = None
  rates: tuple[float, ...] | None = None
  scratch: bool = False
  scratch_rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
  real_labels: str | None = 'download'
  options: tuple[tuple[str, str], ...] = ()  # (dotted name, value as text)

  def __post_init__(self) -> None:
    """Raises UserError for an option that a transfer itself sets."""
    for name, text in self.options:
      for option, flag in _FLAGS.items():
        if f'{name}.'.startswith(f'{option}.') or option.startswith(f'{name}.'):
          raise UserError(
            f'--option={name}={text} would change {option} of all runs alike, which --{flag} says; use --{flag}.'
          )


class Configs:
  """Makes the configs of one transfer; the checkpoint is looked at once."""

  def __init__(self, settings: Settings):
    """Raises UserError for a checkpoint that is not there."""
    self._settings = settings
    base = recipes.finetuning(settings.checkpoint, 'cifar10')  # its data and length are replaced
    self._base = dataclasses.replace(
      base,
      init=dataclasses.replace(base.init, weights=settings.weights),
      tensorboard=c.TensorBoardConfig(pictures=False),  # its many short runs are seen as a table
    )

  def rates(self, row: Row, *, scratch: bool) -> tuple[float, ...]:
    """The learning rates to sweep."""
    if scratch:
      return self._settings.scratch_rates
    return self._settings.rates or row.rates

  def sweep(self, row: Row, rate: float, *, scratch: bool) -> c.Config:
    """A run on a part of the training split, evaluated on the rest of it."""
    held_out = {'split': row.sweep_test}
    return self._finetuning(row, row.sweep_train, held_out, rate, seed=0, scratch=scratch)

  def final(self, row: Row, rate: float, seed: int, *, scratch: bool) -> c.Config:
    """A run on the whole training split, evaluated on the test split."""
    real_labels = self._settings.real_labels if row.has_real_labels else None
    test = {'split': row.test, 'real_labels': real_labels}
    return self._finetuning(row, row.train, test, rate, seed=seed, scratch=scratch)

  def probe(self, row: Row, *, scratch: bool) -> c.Config:
    """Few-shot probes of the checkpoint's features, or of those of random parameters."""
    evaluators: dict[str, Any] = {}
    for probe in PROBES:
      evaluators[probe] = c.FewShotEvaluatorConfig(
        source=row.source,
        split=row.test,
        crop=_evaluation_crop(row),
        train_split=row.train,
        shots=self._settings.shots,
        seeds=self._settings.seeds,
        probe=probe,
      )
    config = dataclasses.replace(self._sized(row), evaluators=evaluators)
    if scratch:
      config = dataclasses.replace(config, init=c.InitConfig())
    return self._with_options(config)

  def _finetuning(
    self, row: Row, train: str, test: dict[str, Any], rate: float, *, seed: int, scratch: bool
  ) -> c.Config:
    """A run on the split `train`, evaluated once, at its end, by an evaluator of the options `test`."""
    config = self._sized(row)
    steps = self._settings.steps or row.steps
    warmup = recipes.finetuning_warmup(steps)
    evaluator = c.ClassificationEvaluatorConfig(every=f'{steps} steps', crop=_evaluation_crop(row), **test)
    config = dataclasses.replace(
      config,
      seed=seed,
      total=f'{steps} steps',
      data=dataclasses.replace(config.data, split=train),
      evaluators={'test': evaluator},
      schedule=dataclasses.replace(config.schedule, learning_rate=rate, warmup=warmup),
      checkpoint=c.CheckpointConfig(every=f'{max(1, min(500, steps // 4))} steps', keep=1),
      log_every=f'{max(1, steps // 10)} steps',
      nonfinite='skip',  # a rate that is too high loses the sweep, and does not end it
    )
    if scratch:
      # The paper's optimizer for training from scratch (table 3); momentum learns little there.
      adam = c.OptimizerConfig(name='adam', weight_decay=0.1, clip_norm=1.0)
      config = dataclasses.replace(config, init=c.InitConfig(), optimizer=adam)
    return self._with_options(config)

  def _sized(self, row: Row) -> c.Config:
    """The recipe with the data of a row, and the image and batch size of the settings."""
    side = self._settings.image_size or self._base.data.image_size[0]
    data = c.DataConfig(
      source=row.source,
      split=row.train,
      image_size=(side, side),
      crop=row.crop,
      padding=round(row.padding * side),
      resize=recipes.random_crop_resize(side) if row.crop == 'random' and not row.padding else None,
      flip=row.flip,
    )
    batch_size = self._settings.batch_size or self._base.batch_size
    return dataclasses.replace(self._base, data=data, batch_size=batch_size)

  def _with_options(self, config: c.Config) -> c.Config:
    """The config with the options of the settings; UserError for one that there is not, or a wrong value."""
    options = {name: _value(text) for name, text in self._settings.options}
    return options_lib.changed(config, options, '--option')


def _evaluation_crop(row: Row) -> Literal['resize'] | None:
  """Squashed where training shows whole images too; None: as the checkpoint's own evaluation."""
  return None if row.crop == 'inception' else 'resize'


def _value(text: str) -> Any:
  """'3' -> 3, '(48, 48)' -> a tuple; text that is no literal of Python stays text."""
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text
