"""What a study compares: configs with some options changed, each with several seeds."""

import dataclasses
import pathlib
import shlex
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypeVar

import ml_collections

from vit_jax import config as config_lib
from vit_jax import config_files, option_docs
from vit_jax.config import Config
from vit_jax.errors import UserError
from vit_jax.selftrain import samples
from vit_jax.selftrain.labels import Choice

_Choice = TypeVar('_Choice')


@dataclasses.dataclass(frozen=True)
class Unlabelled:
  """Images that a variant's teacher labels, and that the variant trains on beside its own data.

  Attributes:
    images: a source with its split, such as 'tfds:cifar10:train[10%:]'; its own labels are not looked at.
    choice: which of them, with how many classes.
    weight: how often one of them is drawn, for one draw of the variant's own data.
  """

  images: str
  choice: Choice = dataclasses.field(default_factory=Choice)
  weight: float = 1.0


@dataclasses.dataclass(frozen=True)
class Variant:
  """One of the things that are compared.

  Attributes:
    config: as --config of `vit_jax.main`, such as 'locality:plain,small'.
    options: dotted name -> value, where it differs from that config.
    start: another variant that comes before; its run of the same seed is this one's `init.checkpoint`.
    teacher: another variant that comes before; its run of the same seed is this one's `objective.teachers` or, with
      `unlabelled`, labels those.
    averaged: the teacher is the average of that variant's runs of all seeds, instead of its run of the same seed.
    unlabelled: what the teacher labels; None: nothing.
    compared: whether it is in the table; False: others start from it, and it need not have the metric.
    published: what its source says, for the table.
    line: the variants of one line in the figure, where the study has an `axis`.
    at: its place on that axis; None: the FLOPs of its training.
  """

  config: str
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  start: str = ''
  teacher: str = ''
  averaged: bool = False
  unlabelled: Unlabelled | None = None
  compared: bool = True
  published: str = ''
  line: str = ''
  at: float | None = None

  @property
  def objective_teacher(self) -> str:
    """The variant whose runs are this one's `objective.teachers`; '': none is."""
    return '' if self.unlabelled else self.teacher


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
    teachers: the workdirs of the runs that teach it; (): none does.
    unlabelled: what the teachers label first.
  """

  variant: str
  seed: int
  config: Config
  folder: pathlib.Path
  start: pathlib.Path | None
  teachers: tuple[pathlib.Path, ...] = ()
  unlabelled: Unlabelled | None = None

  @property
  def needed(self) -> set[pathlib.Path]:
    """The workdirs of the runs that have to end before this one begins."""
    return {*self.teachers, *([self.start] if self.start else [])}

  @property
  def title(self) -> str:
    """'plain/seed_0'."""
    return f'{self.variant}/seed_{self.seed}'


def load(name_and_argument: str) -> Study:
  """The study of a file.

  Args:
    name_and_argument: a path, or the name of a study of the package, such as 'poster'; behind a ':', if there is
      one, stands the argument of `get_study`, such as 'shape:digits'.

  Raises:
    UserError: there is no such file, it fails, it takes no such argument, or it gives no study.
  """
  file, study = config_files.from_file(name_and_argument, 'study')
  if not isinstance(study, Study):
    raise UserError(f'get_study() of {file} gives a {type(study).__name__}; write: return Study(...).')
  return study


def chosen(argument: str, choices: Mapping[str, _Choice]) -> _Choice:
  """What the argument of a `get_study` chooses.

  Raises:
    UserError: it is none of the choices.
  """
  if argument not in choices:
    raise UserError(f'The study has no {argument!r}; choose from {", ".join(choices)}.')
  return choices[argument]


def runs(study: Study, workdir: pathlib.Path) -> list[StudyRun]:
  """All runs: the first seed of every variant, then the next, so that there is soon something to compare.

  Raises:
    UserError: a config is wrong, or none of its evaluators has the study's metric.
  """
  configs: dict[str, Config] = {}
  for name, variant in study.variants.items():
    _check_references(name, variant, configs)
    configs[name] = _config(name, variant)
    if variant.compared:
      _check_metric(name, configs[name], study.metric)
  return [_run(study, name, seed, configs[name], workdir) for seed in study.seeds for name in study.variants]


def _check_references(name: str, variant: Variant, before: Collection[str]) -> None:
  """Raises UserError for a variant whose start or teacher is not one of those before it, or is missing."""
  if variant.start and variant.start not in before:
    raise UserError(f'The variant {name!r} starts from {variant.start!r}, which is no variant before it.')
  if variant.teacher and variant.teacher not in before:
    raise UserError(
      f'The variant {name!r} has the teacher {variant.teacher!r}, which is no variant before it.'
    )
  if variant.averaged and not variant.teacher:
    raise UserError(f'The variant {name!r} averages the seeds of a teacher and names none; name the variant.')
  if variant.unlabelled and not variant.teacher:
    raise UserError(
      f'The variant {name!r} has images without labels and no teacher; name the one that labels them.'
    )


def _check_metric(name: str, config: Config, metric: str) -> None:
  """Raises UserError where no evaluator of a variant has the metric that variants are compared by."""
  names = config.metric_names()
  if metric in names:
    return
  if not config.evaluators:
    raise UserError(f'The variant {name!r} measures no {metric!r}, for it has no evaluators; give it one.')
  raise UserError(
    f'The variant {name!r} measures no {metric!r}; choose the metric of the study from {", ".join(names)}.'
  )


def _run(study: Study, name: str, seed: int, config: Config, workdir: pathlib.Path) -> StudyRun:
  """The run of a variant by one seed, with the folders of the runs that it begins and learns from."""
  variant = study.variants[name]
  folder = _folder(workdir, name, seed)
  start = _folder(workdir, variant.start, seed) if variant.start else None
  teachers = _teachers(study, variant, seed, workdir)
  options: dict[str, Any] = {'seed': seed}
  if start is not None:
    options['init.checkpoint'] = str(start)
  if variant.unlabelled is not None:
    options |= _with_labels(config, variant.unlabelled, labels_folder(folder))
  if variant.objective_teacher:
    options['objective.teachers'] = ','.join(map(str, teachers))
  config = _changed(name, config_lib.to_config_dict(config), options)
  return StudyRun(name, seed, config, folder, start, teachers, variant.unlabelled)


def _teachers(study: Study, variant: Variant, seed: int, workdir: pathlib.Path) -> tuple[pathlib.Path, ...]:
  """The folders of the runs that teach a variant's run of `seed`."""
  if not variant.teacher:
    return ()
  seeds = study.seeds if variant.averaged else (seed,)
  return tuple(_folder(workdir, variant.teacher, seed) for seed in seeds)


def command(name: str, study: Study) -> str:
  """The command that trains a variant by itself, but for its seed and workdir; with the one that labels before it.

  The runs that it starts from or learns from are named as folders: 'teacher' is the workdir of that variant, or
  'teacher/seed_0,teacher/seed_1' where it is the average of its seeds.
  """
  variant = study.variants[name]
  teachers = variant.teacher
  if variant.averaged:
    teachers = ','.join(map(str, _teachers(study, variant, 0, pathlib.Path())))
  options = dict(variant.options)
  if variant.start:
    options['init.checkpoint'] = variant.start
  if variant.objective_teacher:
    options['objective.teachers'] = teachers
  before = ''
  if variant.unlabelled is not None:
    labels = f'labels_of_{variant.teacher}'
    options |= _with_labels(_config(name, variant), variant.unlabelled, f'./{labels}')
    before = _labelling(teachers, variant.unlabelled, labels) + ' && '
  changed = [f'--config.{option}={value}' for option, value in options.items()]
  return before + shlex.join(['python', '-m', 'vit_jax.main', f'--config={variant.config}', *changed])


def _labelling(teachers: str, unlabelled: Unlabelled, workdir: str) -> str:
  """The command with which teachers label images."""
  choice, default = unlabelled.choice._asdict(), Choice()._asdict()
  flags = {'teachers': teachers, 'workdir': workdir}
  flags |= {name: value for name, value in choice.items() if value != default[name]}
  words = [f'--{name}={value}' for name, value in flags.items()]
  return shlex.join(['python', '-m', 'vit_jax.selftrain', *words, unlabelled.images])


def _folder(workdir: pathlib.Path, variant: str, seed: int) -> pathlib.Path:
  return workdir / variant / f'seed_{seed}'


def labels_folder(folder: pathlib.Path) -> pathlib.Path:
  """Where the labels are that a run's teacher gives."""
  return folder / 'labels'


def _with_labels(config: Config, unlabelled: Unlabelled, labels: pathlib.Path | str) -> dict[str, Any]:
  """The options of a run that trains on its own data and on what its teacher labels, in the folder `labels`."""
  own, labelled = f'{config.data.source}:{config.data.split}', f'{labels}/{samples.DATA_SET}'
  return {
    'data.mixture': ((own, 1.0), (f'tfds:{labelled}', unlabelled.weight)),
    'data.max_labels': unlabelled.choice.top,
    'data.label_weights': True,
  } | {
    f'evaluators.{name}.source': evaluator.source or config.data.source
    for name, evaluator in config.evaluators.items()
  }


def _config(name: str, variant: Variant) -> Config:
  """The config of a variant's runs, but for what differs by seed; its input, as its XLA, takes one thread."""
  options: dict[str, Any] = {'data.threads': 1, **variant.options}
  if variant.objective_teacher:
    options['objective.teachers'] = variant.objective_teacher
  return _changed(name, config_files.load(variant.config), options)


def _changed(name: str, values: ml_collections.ConfigDict, options: Mapping[str, Any]) -> Config:
  """A variant's config with options changed.

  Raises:
    UserError: there is no such option, or it cannot have the value.
  """
  try:
    values.update_from_flattened_dict(options)
  except KeyError as error:
    known = _option_names(values)
    wrong = next((option for option in options if option not in known), '')
    near = option_docs.nearest(wrong, known)
    hint = f'did you mean {near}?' if near else 'the options are in vit_jax/config.py.'
    raise UserError(f'An option of the variant {name!r} is wrong: there is no {wrong}; {hint}') from error
  except (TypeError, AttributeError) as error:
    text = ' '.join(str(error).strip('"').split())
    raise UserError(f'An option of the variant {name!r} is wrong: {text}') from error
  return config_lib.from_config_dict(values)


def _option_names(values: ml_collections.ConfigDict, prefix: str = '') -> set[str]:
  """The dotted names of all options."""
  found = set()
  for name, value in values.items():
    inside = isinstance(value, ml_collections.ConfigDict)
    found |= _option_names(value, f'{prefix}{name}.') if inside else {f'{prefix}{name}'}
  return found
