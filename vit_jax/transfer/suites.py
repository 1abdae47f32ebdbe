"""What is transferred to: the rows of the paper's table, VTAB's tasks, few-shot probes, any other source."""

import dataclasses
import difflib
import hashlib
import re
from typing import Any

from vit_jax.data import sources
from vit_jax.data.config import Crop
from vit_jax.data.sources import splits
from vit_jax.data.sources.vtab import TASKS, Task, task_of
from vit_jax.foundation.errors import UserError

FEWSHOT = 'fewshot:'
VTAB = 'vtab:'
_RATES = (0.001, 0.003, 0.01, 0.03)


@dataclasses.dataclass(frozen=True)
class Row:
  """One data set, and how the paper (table 4, appendix B.1.1) fine-tunes on it."""

  name: str  # in the table
  source: str  # as config.data.source, without a split
  train: str  # the split that the final runs train on; few-shot probes draw their images from it
  sweep_train: str  # the part of `train` that the sweep of learning rates trains on
  sweep_test: str  # the rest of `train`, by which the rate is chosen
  test: str  # the split of the result
  fewshot: bool = False  # whether frozen features are probed instead of fine-tuning
  steps: int = 2_500  # length of a run
  rates: tuple[float, ...] = _RATES  # learning rates to sweep; a single one is taken without a sweep
  crop: Crop = 'inception'  # of training images, as config.data.crop
  padding: float = 0.0  # as config.data.padding, but as a share of the image's side
  flip: bool = True  # as config.data.flip
  prepare: str = ''  # the command that prepares the data; '' if the error about missing data says it
  has_real_labels: bool = False  # whether ImageNet ReaL has labels of the test split


def _divided(source: str, test: str, percent: int = 90, **options: Any) -> Row:
  """A source whose sweeps train on so much of the training split, and choose by the rest of it."""
  train, rest = f'train[:{percent}%]', f'train[{percent}%:]'
  return Row(source, source, 'train', train, rest, test, **options)


def _of_table_4(
  name: str, held_out: int, steps: int, test: str = 'test', rates: tuple[float, ...] = _RATES
) -> Row:
  """A row of table 4; the authors chose the rate by `held_out` per cent of the training split."""
  return dataclasses.replace(
    _divided(f'tfds:{name}', test, 100 - held_out),
    name=name,
    steps=steps,
    rates=rates,
    prepare=f'tfds build {name} --file_format=array_record',
    has_real_labels=name == 'imagenet2012',
  )


def _of_vtab(task: Task) -> Row:
  """A task of VTAB-1k, which the paper fine-tunes on at one rate."""
  by_hand = f' (by hand before: {task.by_hand})' if task.by_hand else ''
  return Row(
    task.source,
    task.source,
    train='train800val200',
    sweep_train='train800',
    sweep_test='val200',
    test='test',
    rates=(0.01,),
    crop='random' if task.crop else 'resize',
    flip=task.flip,
    prepare=task.prepare + by_hand,
  )


PAPER = {
  'imagenet2012': _of_table_4('imagenet2012', 1, 20_000, 'validation', (0.003, 0.01, 0.03, 0.06)),
  'cifar10': _of_table_4('cifar10', 2, 10_000),
  'cifar100': _of_table_4('cifar100', 2, 10_000),
  'oxford_iiit_pet': _of_table_4('oxford_iiit_pet', 10, 500),
  'oxford_flowers102': _of_table_4('oxford_flowers102', 10, 500),
}
_VTAB_ROWS = {task.source: _of_vtab(task) for task in TASKS.values()}
# Shifted as in configs/quickstart.py, and not mirrored: a mirrored 3 is no 3.
_DIGITS = _divided('digits', 'test', crop='random', padding=1 / 8, flip=False)
_ROWS = PAPER | _VTAB_ROWS | {'digits': _DIGITS}
_SUITES = {
  'paper': [*PAPER, *_VTAB_ROWS, f'{FEWSHOT}imagenet2012'],
  'vtab': [*_VTAB_ROWS],
  'fewshot': [f'{FEWSHOT}{name}' for name in PAPER],
}


def names(suite: str) -> list[str]:
  """The names of the rows (see `row`) of 'paper', 'vtab', 'fewshot', or of names with commas between.

  Those are of the paper ('cifar10'), or any source ('digits', 'vtab:dmlab', 'folder:/path'), with 'fewshot:' before it
  for probes. Others, or one twice, are a UserError.
  """
  result = [name.strip() for item in suite.split(',') for name in _SUITES.get(item.strip(), [item])]
  for name in result:
    _check(name.removeprefix(FEWSHOT))
    if result.count(name) > 1:
      raise UserError(f'--suite has {name} twice; name each once.')
  return result


def row(name: str) -> Row:
  """The row of one of `names`; UserError where the data is not there, or has no split to test on."""
  plain = name.removeprefix(FEWSHOT)
  found = _ROWS.get(plain) or _divided(plain, splits.first_of(splits.HELD_OUT, plain))
  return dataclasses.replace(found, name=name, fewshot=name.startswith(FEWSHOT))


def prepare_command(name: str) -> str:
  """The command that prepares a row's data; '' if there is none, or the error about missing data says it."""
  plain = name.removeprefix(FEWSHOT)
  return _ROWS[plain].prepare if plain in _ROWS else ''


def _check(name: str) -> None:
  """Raises UserError for a name that is neither a row nor a source."""
  if name in _ROWS:
    return
  if name.startswith(VTAB):
    task_of(name.removeprefix(VTAB))
  if ':' not in name:
    near = difflib.get_close_matches(name, [*_SUITES, *PAPER, 'digits'], n=1) or [f'tfds:{name}']
    raise UserError(
      f'--suite has {name!r}, which is none of {", ".join([*_SUITES, *PAPER])}, digits, vtab:TASK, '
      f'tfds:NAME, folder:/path; did you mean {near[0]}?'
    )
  _, _, split = sources.parse(name, '')
  if split:
    raise UserError(f'--suite has {name!r} with a split; leave it out, the training split is divided here.')


def folder_name(name: str) -> str:
  """A folder for a row: its name if it can be one, else as much of it as can be, and a digest."""
  plain = re.sub(r'[^\w.-]+', '_', name).strip('_')
  if plain == name:
    return name
  return f'{plain[-60:]}_{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}'
