"""What a study compares: configs with some options changed, each with several seeds."""

import dataclasses
import pathlib
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from vit_jax import config as config_lib
from vit_jax import config_files
from vit_jax.config import Config
from vit_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Variant:
  """One of the things that are compared.

  Attributes:
    config: as --config of `vit_jax.main`, such as 'locality:plain,small'.
    options: dotted name -> value, where it differs from that config.
    start: another variant that comes before; its run of the same seed is this one's `init.checkpoint`.
    compared: whether it is in the table; False: others start from it, and it need not have the metric.
    published: what its source says, for the table.
    line: the variants of one line in the figure, where the study has an `axis`.
    at: its place on that axis; None: the FLOPs of its training.
  """

  config: str
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  start: str = ''
  compared: bool = True
  published: str = ''
  line: str = ''
  at: float | None = None


@dataclasses.dataclass(frozen=True)
class Study:
  """What the `get_study` of a study's file returns.

  Attributes:
    title: of the table.
    variants: name -> variant; a name is the folder of its runs too.
    seeds: of the runs of each variant.
    metric: of the last evaluation, that is compared.
    axis: title of the figure's horizontal axis; '': the figure has a row for each variant.
  """

  title: str
  variants: Mapping[str, Variant]
  seeds: tuple[int, ...] = (0, 1, 2)
  metric: str = 'test/accuracy'
  axis: str = ''


class StudyRun(NamedTuple):
  """One training run of a study.

  Attributes:
    variant: its name.
    seed: config.seed.
    config: the run.
    folder: its workdir.
    start: the workdir of the run that it begins from; None: it begins anew.
  """

  variant: str
  seed: int
  config: Config
  folder: pathlib.Path
  start: pathlib.Path | None

  @property
  def title(self) -> str:
    """'plain/seed_0'."""
    return f'{self.variant}/seed_{self.seed}'


def load(name: str) -> Study:
  """The study of a file.

  Args:
    name: a path, or the name of a study of the package, such as 'poster'.

  Raises:
    UserError: there is no such file, it fails, or it gives no study.
  """
  file = config_files.find(name, 'study')
  study = config_files.call(file, 'get_study', name, [])
  if not isinstance(study, Study):
    raise UserError(f'get_study() of {file} gives a {type(study).__name__}; write: return Study(...).')
  return study


def runs(study: Study, workdir: pathlib.Path) -> list[StudyRun]:
  """All runs: the first seed of every variant, then the next, so that there is soon something to compare.

  Raises:
    UserError: a config is wrong, or none of its evaluators has the study's metric.
  """
  configs = {}
  for name, variant in study.variants.items():
    if variant.start and variant.start not in configs:
      raise UserError(f'The variant {name!r} starts from {variant.start!r}, which is no variant before it.')
    config = configs[name] = _config(name, variant)
    if variant.compared and study.metric.split('/')[0] not in config.evaluators:
      known = ', '.join(config.evaluators) or 'none'
      raise UserError(f'The variant {name!r} measures no {study.metric!r}; its evaluators: {known}.')
  found = []
  for seed in study.seeds:
    for name, variant in study.variants.items():
      config = dataclasses.replace(configs[name], seed=seed)
      start = _folder(workdir, variant.start, seed) if variant.start else None
      if start is not None:
        config = dataclasses.replace(config, init=dataclasses.replace(config.init, checkpoint=str(start)))
      found.append(StudyRun(name, seed, config, _folder(workdir, name, seed), start))
  return found


def command(variant: Variant) -> str:
  """The command that trains a variant by itself, but for its seed and workdir."""
  options = [f'--config.{name}={value}' for name, value in variant.options.items()]
  if variant.start:
    options.append(f'--config.init.checkpoint={variant.start}')
  return shlex.join(['python', '-m', 'vit_jax.main', f'--config={variant.config}', *options])


def _folder(workdir: pathlib.Path, variant: str, seed: int) -> pathlib.Path:
  return workdir / variant / f'seed_{seed}'


def _config(name: str, variant: Variant) -> Config:
  """The config of a variant's runs, but for seed and start; its input, as its XLA, takes one thread."""
  values = config_files.load(variant.config)
  try:
    values.update_from_flattened_dict({'data.threads': 1, **variant.options})
  except (KeyError, TypeError, AttributeError) as error:
    text = ' '.join(str(error).strip('"').split())
    raise UserError(f'An option of the variant {name!r} is wrong: {text}') from error
  return config_lib.from_config_dict(values)
