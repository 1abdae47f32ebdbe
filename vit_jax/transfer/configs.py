"""The configs of a transfer's runs: the paper's recipe, with what a person changes for a smaller machine."""

import ast
import dataclasses
from typing import Any

from vit_jax import config as config_lib
from vit_jax import recipes
from vit_jax.config import (
  CheckpointConfig,
  Config,
  DataConfig,
  Evaluator,
  FewShot,
  InitConfig,
  OptimizerConfig,
)
from vit_jax.errors import UserError
from vit_jax.transfer.suites import Row

PROBES = ('ridge', 'logistic', 'knn')


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is transferred, and how it differs from the paper's recipe; None: as the paper.

  Attributes:
    checkpoint: as in config.Init.
    seeds: final runs of each data set, and draws of a probe.
    shots: images of each class, of few-shot probes.
    steps, batch_size, image_size, rates: of fine-tuning.
    scratch: compare with the same model, trained from scratch.
    scratch_rates: learning rates to choose from there.
    real_labels: of ImageNet ReaL, as in config.Evaluator; None: its line is left out.
    options: dotted name -> value as text, of any option of vit_jax/config.py, in all runs.
  """

  checkpoint: str
  seeds: int = 3
  shots: tuple[int, ...] = (5,)
  steps: int | None = None
  batch_size: int | None = None
  image_size: int | None = None
  rates: tuple[float, ...] | None = None
  scratch: bool = False
  scratch_rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
  real_labels: str | None = 'download'
  options: tuple[tuple[str, str], ...] = ()


class Configs:
  """Makes the configs of one transfer; the checkpoint is looked at once."""

  def __init__(self, settings: Settings):
    """Raises UserError for a checkpoint that is not there."""
    self._settings = settings
    self._base = recipes.finetuning(settings.checkpoint, 'cifar10')  # its data and length are replaced

  def rates(self, row: Row, scratch: bool) -> tuple[float, ...]:
    return self._settings.scratch_rates if scratch else self._settings.rates or row.rates

  def choosing(self, row: Row, rate: float, scratch: bool) -> Config:
    """A run on a part of the training split, evaluated once, at its end, on the rest of it."""
    return self._finetuning(row, row.choosing, Evaluator(split=row.held_out), rate, 0, scratch)

  def final(self, row: Row, rate: float, seed: int, scratch: bool) -> Config:
    """A run on the whole training split, evaluated once, at its end, on the test split."""
    test = Evaluator(split=row.test, real_labels=self._settings.real_labels if row.reassessed else None)
    return self._finetuning(row, row.train, test, rate, seed, scratch)

  def probe(self, row: Row, scratch: bool) -> Config:
    """Probes of the checkpoint's features, or of those of random parameters."""
    fewshot = FewShot(train_split=row.train, shots=self._settings.shots, seeds=self._settings.seeds)
    evaluators = {
      name: Evaluator(
        type='fewshot', source=row.source, split=row.test, fewshot=dataclasses.replace(fewshot, probe=name)
      )
      for name in PROBES
    }
    config = dataclasses.replace(self._sized(row), evaluators=evaluators)
    return self._changed(dataclasses.replace(config, init=InitConfig()) if scratch else config)

  def _finetuning(
    self, row: Row, train: str, test: Evaluator, rate: float, seed: int, scratch: bool
  ) -> Config:
    config = self._sized(row)
    steps = self._settings.steps or row.steps
    config = dataclasses.replace(
      config,
      seed=seed,
      total=f'{steps} steps',
      data=dataclasses.replace(config.data, split=train),
      evaluators={'test': dataclasses.replace(test, every=f'{steps} steps')},
      # As recipes.py: 500 steps, but no more than a fifth of a short run.
      schedule=dataclasses.replace(
        config.schedule, learning_rate=rate, warmup=f'{min(500, steps // 5)} steps'
      ),
      checkpoint=CheckpointConfig(every=f'{max(1, min(500, steps // 4))} steps', keep=1),
      log_every=f'{max(1, steps // 10)} steps',
      nonfinite='skip',  # at too high a rate the others go on
    )
    if scratch:
      # The paper's optimizer for training from scratch (table 3); momentum learns little there.
      adam = OptimizerConfig(name='adam', weight_decay=0.1, clip_norm=1.0)
      config = dataclasses.replace(config, init=InitConfig(), optimizer=adam)
    return self._changed(config)

  def _sized(self, row: Row) -> Config:
    side = self._settings.image_size or self._base.data.image_size[0]
    data = DataConfig(
      source=row.source,
      split=row.train,
      image_size=(side, side),
      crop=row.crop,
      padding=round(row.padding * side),
      # BiT's: 384 of 448 pixels.
      resize=side * 448 // 384 if row.crop == 'random' and not row.padding else None,
      flip=row.flip,
    )
    return dataclasses.replace(
      self._base, data=data, batch_size=self._settings.batch_size or self._base.batch_size
    )

  def _changed(self, config: Config) -> Config:
    """With the options given, and validated.

    Raises:
      UserError: an option that there is not, or a wrong value.
    """
    values = config_lib.as_json(config)
    for name, text in self._settings.options:
      section: Any = values
      *path, last = name.split('.')
      for part in path:
        section = section.get(part) if isinstance(section, dict) else None
      if not isinstance(section, dict):
        raise UserError(f'--option={name}={text}: there is no option {name}; vit_jax/config.py has them all.')
      section[last] = _value(text)
    return config_lib.from_config_dict(values)


def _value(text: str) -> Any:
  """'3' -> 3, '(48, 48)' -> a tuple, what is no literal of Python stays text."""
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text
