"""What is transferred to: the rows of the paper's table, VTAB's tasks, few-shot probes, any other source."""

import dataclasses
import difflib
import hashlib
import os
import re

from vit_jax.data import sources
from vit_jax.data.sources.digits import DigitsSource
from vit_jax.data.sources.folder_listing import folders_in
from vit_jax.data.sources.tfds import builder_of
from vit_jax.data.sources.vtab import TASKS, task_of
from vit_jax.errors import UserError

FEWSHOT = 'fewshot:'
_RATES = (0.001, 0.003, 0.01, 0.03)


@dataclasses.dataclass(frozen=True)
class Row:
  """One data set, and how the paper (table 4, appendix B.1.1) fine-tunes on it.

  Attributes:
    name: what the table calls it.
    source: without a split.
    train: the split of the final runs, and of the shots of few-shot probes.
    choosing: the split that rates are swept on, a part of `train`.
    held_out: the split that they are chosen by, the rest of `train`.
    test: the split of the result.
    fewshot: whether it is a probe of frozen features instead of fine-tuning.
    steps: of a run.
    rates: learning rates to choose from; one is taken as it is.
    crop: of training images, as in config.Data.
    padding: as in config.Data, as a share of the image's side.
    flip: as in config.Data.
    prepare: the command that prepares the data, or ''.
    reassessed: whether ImageNet ReaL has labels of the test split too.
  """

  name: str
  source: str
  train: str
  choosing: str
  held_out: str
  test: str
  fewshot: bool = False
  steps: int = 2_500
  rates: tuple[float, ...] = _RATES
  crop: str = 'inception'
  padding: float = 0.0
  flip: bool = True
  prepare: str = ''
  reassessed: bool = False


def _of_the_paper(name: str, held_out: int, steps: int, test: str = 'test', rates=_RATES) -> Row:
  """A row of table 4; `held_out` is the per cent of the training split that the authors chose rates by."""
  return Row(
    name,
    f'tfds:{name}',
    train='train',
    choosing=f'train[:{100 - held_out}%]',
    held_out=f'train[{100 - held_out}%:]',
    test=test,
    steps=steps,
    rates=rates,
    prepare=f'tfds build {name} --file_format=array_record',
    reassessed=name == 'imagenet2012',
  )


PAPER = {
  row.name: row
  for row in (
    _of_the_paper('imagenet2012', 1, 20_000, 'validation', (0.003, 0.01, 0.03, 0.06)),
    _of_the_paper('cifar10', 2, 10_000),
    _of_the_paper('cifar100', 2, 10_000),
    _of_the_paper('oxford_iiit_pet', 10, 500),
    _of_the_paper('oxford_flowers102', 10, 500),
  )
}
_SUITES = {
  'paper': [*PAPER, *(f'vtab:{name}' for name in TASKS), f'{FEWSHOT}imagenet2012'],
  'vtab': [f'vtab:{name}' for name in TASKS],
  'fewshot': [f'{FEWSHOT}{name}' for name in PAPER],
}


def names(suite: str) -> list[str]:
  """The names of a suite's rows, of which `row` makes rows.

  Args:
    suite: 'paper', 'vtab', 'fewshot', or names with commas between: of the paper ('cifar10'), any source
      ('digits', 'vtab:dmlab', 'folder:/path', 'tfds:NAME'), with 'fewshot:' before it for probes.

  Raises:
    UserError: a name that is nothing of this, or twice.
  """
  result = [name.strip() for item in suite.split(',') for name in _SUITES.get(item.strip(), [item])]
  for name in result:
    if name.removeprefix(FEWSHOT) not in PAPER:
      _parse(name.removeprefix(FEWSHOT))
    if result.count(name) > 1:
      raise UserError(f'--suite has {name} twice; name each once.')
  return result


def row(name: str) -> Row:
  """The row of one of `names`, with the splits that its data has.

  Raises:
    UserError: the data is not there, or has nothing to be tested on.
  """
  plain = name.removeprefix(FEWSHOT)
  found = PAPER.get(plain) or _other(plain)
  return dataclasses.replace(found, name=name, fewshot=name.startswith(FEWSHOT))


def prepare_command(name: str) -> str:
  """The command that prepares a row's data; '' where there is none."""
  plain = name.removeprefix(FEWSHOT)
  if plain in PAPER:
    return PAPER[plain].prepare
  kind, place = _parse(plain)
  if kind == 'vtab':
    task = task_of(place)
    return task.prepare + (f' (by hand before: {task.by_hand})' if task.by_hand else '')
  return f'tfds build {place} --file_format=array_record' if kind == 'tfds' and place[0] not in '/~.' else ''


def _parse(name: str) -> tuple[str, str]:
  """'folder:/path' -> ('folder', '/path')."""
  if ':' not in name and name != 'digits':
    near = difflib.get_close_matches(name, [*_SUITES, *PAPER, 'digits'], n=1) or [f'tfds:{name}']
    raise UserError(
      f'--suite has {name!r}, which is none of {", ".join([*_SUITES, *PAPER])}, digits, vtab:TASK, '
      f'tfds:NAME, folder:/path; did you mean {near[0]}?'
    )
  kind, place, split = sources.parse(name, '')
  if kind == 'vtab':
    task_of(place)
  if split:
    raise UserError(f'--suite has {name!r} with a split; leave it out, the training split is divided here.')
  return kind, place


def _other(name: str) -> Row:
  kind, place = _parse(name)
  if kind == 'vtab':
    task = task_of(place)
    crop = 'random' if task.crop else 'resize'
    parts = {'train': 'train800val200', 'choosing': 'train800', 'held_out': 'val200', 'test': 'test'}
    return Row(name, name, **parts, rates=(0.01,), crop=crop, flip=task.flip)
  parts = {'train': 'train', 'choosing': 'train[:90%]', 'held_out': 'train[90%:]'}
  if kind == 'digits':
    DigitsSource('train')
    # As configs/quickstart.py shifts them, and no mirror: a mirrored 3 is no 3.
    return Row(name, name, **parts, test='test', crop='random', padding=1 / 8, flip=False)
  return Row(name, name, **parts, test=_test_split(kind, place))


def _test_split(kind: str, place: str) -> str:
  """The split to test on: 'test', or else that for validation, or what a folder without splits holds out."""
  if kind == 'folder':
    folder = os.path.expanduser(place)
    if not os.path.isdir(folder):
      raise UserError(f'There is no folder {place}; give the path of one that has a sub-folder per class.')
    return 'test' if 'test' in folders_in(folder) else 'val'
  splits = builder_of(place).info.splits
  for name in ('test', 'validation', 'val'):
    if name in splits:
      return name
  raise UserError(f'tfds:{place} has no split to test on (test, validation or val), but {", ".join(splits)}.')


def folder_name(name: str) -> str:
  """A folder for a row: its name as far as it can be one, and, where that is not all, a digest of it."""
  plain = re.sub(r'[^\w.-]+', '_', name).strip('_')
  if plain == name:
    return name
  return f'{plain[-60:]}_{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}'
