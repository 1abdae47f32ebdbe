"""What a study compares: configs with some options changed, each with several seeds; or what a search tries."""

import dataclasses
import pathlib
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeVar

from vit_jax.config import Config
from vit_jax.data import sources
from vit_jax.experiments import options as options_lib
from vit_jax.experiments.runner import Job
from vit_jax.foundation.errors import UserError
from vit_jax.options import config_files
from vit_jax.selftrain import samples
from vit_jax.selftrain.choosing import Choice

_Choice = TypeVar('_Choice')


@dataclasses.dataclass(frozen=True)
class Unlabelled:
  """Images that a variant's teacher labels, and that the variant trains on beside its own data."""

  images: str  # a source with its split, such as 'tfds:cifar10:train[10%:]'; its own labels are not looked at
  choice: Choice = dataclasses.field(default_factory=Choice)  # which of them, with how many classes
  weight: float = 1.0  # how often one of them is drawn, for one draw of the variant's own data


@dataclasses.dataclass(frozen=True)
class Variant:
  """One of the things that are compared."""

  config: str  # as --config of `vit_jax.main`, such as 'locality:plain,small'
  # Dotted name -> value, where it differs from that config.
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  start: str = ''  # another variant before it, whose run of the same seed is this one's `init.checkpoint`
  # Another variant that comes before; its run of the same seed is this one's `objective.teachers` or, with
  # `unlabelled`, labels those.
  teacher: str = ''
  averaged: bool = False  # the teacher is the average of that variant's runs of all seeds
  unlabelled: Unlabelled | None = None  # what the teacher labels; None: nothing
  compared: bool = True  # whether it is in the table; otherwise it need not have the metric
  published: str = ''  # what its source says, for the table
  line: str = ''  # the variants of one line in the figure, where the study has an `axis`
  at: float | None = None  # its place on that axis; None: the FLOPs of its training

  @property
  def objective_teacher(self) -> str:
    """The variant whose runs are this one's `objective.teachers`; '': none is."""
    return '' if self.unlabelled else self.teacher


@dataclasses.dataclass(frozen=True)
class Study:
  """What the `get_study` of a study's file returns."""

  title: str  # of the table
  variants: Mapping[str, Variant]  # name -> variant; a name is the folder of its runs too
  seeds: tuple[int, ...] = (0, 1, 2)  # of the runs of each variant
  metric: str = 'test/accuracy'  # of the last evaluation, that is compared
  axis: str = ''  # title of the figure's horizontal axis; '': the figure has a row for each variant
  # Whether it cross-validates: the run of each seed holds out another fold of the images (`data.fold`), of as many as
  # there are seeds, so that together they measure all of them.
  folds: bool = False

  def headings(self) -> list[str]:
    """What the table calls the runs of a variant: by their seeds or, in cross-validation, by their folds."""
    count = len(self.seeds)
    return [
      f'fold {n}/{count}' if self.folds else f'seed {seed}' for n, seed in enumerate(self.seeds, start=1)
    ]


@dataclasses.dataclass(frozen=True)
class Range:
  """The values that an option may take; made by `uniform`, `log`, `integers` and `choice`."""

  low: float = 0.0
  high: float = 0.0
  log: bool = False  # whether draws are uniform in the logarithm
  integer: bool = False
  values: tuple[Any, ...] = ()  # the values to choose from, in the place of low and high


def uniform(low: float, high: float) -> Range:
  """All numbers from low to high alike."""
  return Range(low, high)


def log(low: float, high: float) -> Range:
  """All orders of magnitude from low to high alike; low is above 0."""
  return Range(low, high, log=True)


def integers(low: int, high: int) -> Range:
  """The integers from low to high, both included."""
  return Range(low, high, integer=True)


def choice(*values: bool | int | float | str) -> Range:
  """One of these values."""
  return Range(values=values)


@dataclasses.dataclass(frozen=True)
class Search:
  """What the `get_study` of a search's file returns."""

  title: str  # of the table
  variant: Variant  # the config, with the options that all trials share
  ranges: Mapping[str, Range]  # dotted name of an option -> its values
  trials: int  # how many draws are tried, also by several machines together
  # How options are drawn: 'random'; 'grid' goes through all combinations of ranges made by `choice`; 'tpe' is the
  # tree-structured Parzen estimator (Bergstra et al., 2011), which learns from the trials that have ended.
  sampler: Literal['random', 'grid', 'tpe'] = 'random'
  # Reduction factor of asynchronous successive halving (Li et al., 2018): after 1, H, H² … evaluations, a trial that
  # is not among the best 1/H of those that came so far stops. 0: all trials train to their end.
  halving: int = 0
  seed: int = 0  # of the draws and of the runs
  metric: str = 'test/accuracy'  # what is to become best, as the last evaluation measures it


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyRun(Job):
  """One training run of a study."""

  teachers: tuple[pathlib.Path, ...] = ()  # the workdirs of the runs that teach it; (): none does
  unlabelled: Unlabelled | None = None  # what the teachers label first


def title(variant: str, seed: int) -> str:
  """That of a run, and its folder below the study's workdir: 'plain/seed_0'."""
  return f'{variant}/seed_{seed}'


def load(name_and_argument: str) -> Study | Search:
  """The study or search of a file: a path, or the name of a study of the package, such as 'poster'.

  Behind a ':' may stand the argument of `get_study`, such as 'shape:digits'. Raises UserError where there is no such
  file, it fails, it takes no such argument, or it gives no study.
  """
  file, study = config_files.from_file(name_and_argument, 'study')
  if not isinstance(study, Study | Search):
    raise UserError(
      f'get_study() of {file} gives a {type(study).__name__}; write: return Study(...) or Search(...).'
    )
  return study


def chosen(argument: str, choices: Mapping[str, _Choice]) -> _Choice:
  """What the argument of a `get_study` chooses; UserError where it is none of the choices."""
  if argument not in choices:
    raise UserError(f'The study has no {argument!r}; choose from {", ".join(choices)}.')
  return choices[argument]


def runs(study: Study, workdir: pathlib.Path) -> list[StudyRun]:
  """All runs: the first seed of every variant, then the next, so that there is soon something to compare.

  Raises UserError for a wrong config, or one without an evaluator that has the study's metric.
  """
  configs: dict[str, Config] = {}
  for name, variant in study.variants.items():
    _check_references(name, variant, configs)
    if study.folds and variant.averaged:
      raise UserError(
        f'The variant {name!r} is taught by the average of all seeds of {variant.teacher!r}, and in cross-validation '
        'those of other folds have learned from the images that it is measured by; leave averaged out.'
      )
    configs[name] = config_of(name, variant)
    if variant.compared:
      _check_metric(name, configs[name], study.metric)
  return [_run(study, name, seed, configs[name], workdir) for seed in study.seeds for name in study.variants]


def _check_references(name: str, variant: Variant, before: Collection[str]) -> None:
  """Raises UserError for a variant whose start or teacher is not one of those before it, or is missing."""
  for verb, other in (('starts from', variant.start), ('has the teacher', variant.teacher)):
    if other and other not in before:
      raise UserError(f'The variant {name!r} {verb} {other!r}, which is no variant before it.')
  if variant.averaged and not variant.teacher:
    raise UserError(f'The variant {name!r} averages the seeds of a teacher and names none; name the variant.')
  if variant.unlabelled and not variant.teacher:
    raise UserError(
      f'The variant {name!r} has images without labels and no teacher; name the one that labels them.'
    )


def _check_metric(name: str, config: Config, metric: str) -> None:
  """Raises UserError where no evaluator of a variant has the metric that variants are compared by."""
  names = config.metric_names()
  if metric not in names:
    choice = f'; choose the metric of the study from {", ".join(names)}.'
    remedy = choice if config.evaluators else ', for it has no evaluators; give it one.'
    raise UserError(f'The variant {name!r} measures no {metric!r}{remedy}')


def _run(study: Study, name: str, seed: int, config: Config, workdir: pathlib.Path) -> StudyRun:
  """The run of a variant by one seed, with the folders of the runs that it begins and learns from."""
  variant, folder = study.variants[name], workdir / title(name, seed)
  start = workdir / title(variant.start, seed) if variant.start else None
  teachers = tuple(workdir / teacher for teacher in _teachers(study, variant, seed))
  options = {'seed': seed, **_links(variant, start, teachers)}
  if study.folds:
    options['data.fold'] = f'{study.seeds.index(seed) + 1}/{len(study.seeds)}'
  if variant.unlabelled is not None:
    options |= _with_labels(config, variant.unlabelled, labels_folder(folder))
  return StudyRun(
    title=title(name, seed),
    config=options_lib.changed(config, options, f'the variant {name!r}'),
    folder=folder,
    needed=frozenset([*teachers, *([start] if start else [])]),
    teachers=teachers,
    unlabelled=variant.unlabelled,
  )


def _teachers(study: Study, variant: Variant, seed: int) -> list[str]:
  """The titles of the runs that teach a variant's run of `seed`."""
  if not variant.teacher:
    return []
  return [title(variant.teacher, each) for each in (study.seeds if variant.averaged else (seed,))]


def _links(
  variant: Variant, start: pathlib.Path | str | None, teachers: Sequence[pathlib.Path | str]
) -> dict[str, Any]:
  """The options that name the runs which a variant's run begins from and learns from."""
  options = {'init.checkpoint': str(start)} if start else {}
  if variant.objective_teacher:
    options['objective.teachers'] = ','.join(map(str, teachers))
  return options


def command(name: str, study: Study) -> str:
  """The command that trains a variant by itself, but for its seed and workdir; with the one that labels before it.

  The runs that it starts from or learns from are named as folders: 'teacher' is the workdir of that variant, or
  'teacher/seed_0,teacher/seed_1' where it is the average of its seeds.
  """
  variant = study.variants[name]
  teachers = _teachers(study, variant, 0) if variant.averaged else [variant.teacher]
  options, before = {**variant.options, **_links(variant, variant.start, teachers)}, ''
  if variant.unlabelled is not None:
    labels = f'labels_of_{variant.teacher}'
    options |= _with_labels(config_of(name, variant), variant.unlabelled, f'./{labels}')
    before = _labelling(','.join(teachers), variant.unlabelled, labels) + ' && '
  changed = [f'--config.{option}={value}' for option, value in options.items()]
  return before + shlex.join(['python', '-m', 'vit_jax.main', f'--config={variant.config}', *changed])


def _labelling(teachers: str, unlabelled: Unlabelled, workdir: str) -> str:
  """The command with which teachers label images."""
  choice, default = unlabelled.choice._asdict(), Choice()._asdict()
  flags = {'teachers': teachers, 'workdir': workdir}
  flags |= {name: value for name, value in choice.items() if value != default[name]}
  words = [f'--{name}={value}' for name, value in flags.items()]
  return shlex.join(['python', '-m', 'vit_jax.selftrain', *words, unlabelled.images])


def labels_folder(folder: pathlib.Path) -> pathlib.Path:
  """Where the labels are that a run's teacher gives."""
  return folder / 'labels'


def _with_labels(config: Config, unlabelled: Unlabelled, labels: pathlib.Path | str) -> dict[str, Any]:
  """The options of a run that trains on its own data and on what its teacher labels, in the folder `labels`."""
  place = sources.without_split(config.data.source)
  _, _, split = sources.parse(config.data.source, config.data.split)
  own = config.data.mixture or ((f'{place}:{split}', 1.0),)
  draws = unlabelled.weight * sum(weight for _, weight in own)
  return {
    # All of the labelled images: a fold, which has a 'train' of its own, is of the variant's own data.
    'data.mixture': (*own, (f'tfds:{labels}/{samples.DATA_SET}:all', draws)),
    'data.max_labels': unlabelled.choice.top,
    'data.label_weights': True,
  } | {
    f'evaluators.{name}.source': evaluator.source or place for name, evaluator in config.evaluators.items()
  }


def config_of(name: str, variant: Variant) -> Config:
  """The config of a variant's runs, but for what differs by seed; its input, as its XLA, takes one thread."""
  options: dict[str, Any] = {'data.threads': 1, **variant.options}
  if variant.objective_teacher:
    options['objective.teachers'] = variant.objective_teacher
  if variant.start:
    options['init.checkpoint'] = variant.start
  return options_lib.changed(config_files.load(variant.config), options, f'the variant {name!r}')
