"""The 19 tasks of VTAB-1k (Visual Task Adaptation Benchmark, arXiv 1910.04867), as its authors define them.

`TASKS` maps a name to its `Task`. The source 'vtab:NAME', such as 'vtab:clevr_count:train800val200'
(`vtab_source.py`), reads a task from the data set that TFDS prepares. Splits, labels and numbers of classes
are those of google-research/task_adaptation. Which training images may be cropped and flipped follows BiT's
appendix F (arXiv 1912.11370), as the ViT paper does (appendix B.1.1).
"""

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.foundation.errors import UserError

GROUPS = ('natural', 'specialized', 'structured')
SPLITS = ('train', 'val', 'trainval', 'test', 'train800', 'val200', 'train800val200')

Record = Mapping[str, Any]  # as TFDS reads it: feature -> value


@dataclasses.dataclass(frozen=True)
class Task:
  """One of the 19 tasks."""

  name: str  # such as 'clevr_count'
  group: str  # one of `GROUPS`
  dataset: str  # TFDS's name of the data set, with its config
  num_classes: int  # number of classes in the published definition
  # Maps {split of the data set: number of images} to {one of `SPLITS`: how TFDS writes it}.
  splits: Callable[[Mapping[str, int]], dict[str, str]]
  computed: Callable[[Record], int] | None = None  # maps a record to its class; None: `feature` is it
  class_names: tuple[str, ...] | None = None  # of a computed class; None: those of the feature
  feature: str = 'label'  # the feature that is the class, unless it is computed
  crop: bool = True  # whether training images may be cropped without changing their class
  flip: bool = True  # whether they may be mirrored
  scale: int = 1  # factor of the pixels (those of dSprites are 0 and 1)
  by_hand: str = ''  # what has to be downloaded by hand before TFDS can prepare the data set

  @property
  def source(self) -> str:
    """The value of `config.data.source`; a split follows after another colon, or is `config.data.split`."""
    return f'vtab:{self.name}'

  @property
  def prepare(self) -> str:
    """The command that prepares the data set; it needs TensorFlow."""
    return f'tfds build {self.dataset} --file_format=array_record'

  def label(self, record: Record) -> int:
    """The class of a record."""
    return record[self.feature] if self.computed is None else self.computed(record)

  def names(self, features: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the classes, of a data set with these features (name -> feature)."""
    return self.class_names or tuple(features[self.feature].names)

  def split(self, split: str, sizes: Mapping[str, int]) -> str:
    """One of `SPLITS` as TFDS writes it, of splits of so many images; UserError where it is none, or lacks a split."""
    if split not in SPLITS:
      raise UserError(f'{self.source} has no split {split!r}; it has {", ".join(SPLITS)}.')
    try:
      return self.splits(sizes)[split]
    except KeyError as error:
      raise UserError(
        f'{self.dataset} has no split {error}, which {self.source} needs; prepare it again: {self.prepare}'
      ) from None


def task_of(name: str) -> Task:
  """The task of a name; UserError where there is none."""
  if name not in TASKS:
    near = difflib.get_close_matches(name, TASKS, n=1) or list(TASKS)[:1]
    raise UserError(f'vtab:{name} is none of the {len(TASKS)} tasks of VTAB; did you mean vtab:{near[0]}?')
  return TASKS[name]


def _splits(train: str, val: str, trainval: str, test: str, val_200: str) -> dict[str, str]:
  parts = (train, val, trainval, test, 'train[:800]', val_200, f'train[:800]+{val_200}')
  return dict(zip(SPLITS, parts, strict=True))


def _own_validation(sizes: Mapping[str, int]) -> dict[str, str]:
  """For data sets that have a validation split."""
  return _splits('train', 'validation', 'train+validation', 'test', 'validation[:200]')


def _held_out(percent: int, test: str = 'test') -> Callable[[Mapping[str, int]], dict[str, str]]:
  """For data sets without one: the first `percent` % of train are for training, the rest for validation."""

  def splits(sizes: Mapping[str, int]) -> dict[str, str]:
    n = percent * sizes['train'] // 100
    return _splits(f'train[:{n}]', f'train[{n}:]', 'train', test, f'train[{n}:{n + 200}]')

  return splits


def _three_parts(train: int, val: int) -> Callable[[Mapping[str, int]], dict[str, str]]:
  """For data sets that have only train: `train` % and `val` % of it, and the rest is test."""

  def splits(sizes: Mapping[str, int]) -> dict[str, str]:
    n = train * sizes['train'] // 100
    both = n + val * sizes['train'] // 100
    return _splits(
      f'train[:{n}]', f'train[{n}:{both}]', f'train[:{both}]', f'train[{both}:]', f'train[{n}:{n + 200}]'
    )

  return splits


def _half_of_test(sizes: Mapping[str, int]) -> dict[str, str]:
  """For sNORB: the first half of test is for validation."""
  return _splits('train', 'test[:50%]', 'train+test[:50%]', 'test[50%:]', 'test[:200]')


def _binned(feature: str, values: int, bins: int) -> Callable[[Record], int]:
  """The class is a feature of `values` values, neighbouring ones of which are joined to `bins` classes."""

  def label(record: Record) -> int:
    return int(record[feature] // (values / bins))

  return label


def _between(thresholds: Sequence[float], distance: float) -> int:
  """The index of the last threshold below a distance."""
  return int(np.searchsorted(thresholds, distance, side='left')) - 1


# Thresholds that the authors chose to balance the classes; in Blender's units, and in metres.
_CLEVR_DISTANCES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
_KITTI_DISTANCES = (-100.0, 8.0, 20.0, 999.0)
_NO_VEHICLE = 1000.0
_VEHICLES = 3  # KITTI's first types are Car, Van and Truck


def _clevr_count(record: Record) -> int:
  """Number of objects; an image has 3 to 10."""
  return len(record['objects']['size']) - 3


def _clevr_distance(record: Record) -> int:
  """Distance of the closest object: pixel_coords are x, y and depth."""
  coordinates = np.reshape(record['objects']['pixel_coords'], (-1, 3))
  return _between(_CLEVR_DISTANCES, np.min(coordinates[:, 2]))


def _kitti_distance(record: Record) -> int:
  """Distance of the closest vehicle: location is right, down and ahead, in metres."""
  types, location = np.asarray(record['objects']['type']), np.asarray(record['objects']['location'])
  ahead = location.reshape(-1, 3)[types < _VEHICLES, 2]
  return _between(_KITTI_DISTANCES, np.min(ahead, initial=_NO_VEHICLE))


def _numbers(first: int, last: int, unit: str) -> tuple[str, ...]:
  return tuple(f'{number} {unit}' for number in range(first, last + 1))


def _all_tasks() -> list[Task]:
  natural, specialized, structured = GROUPS
  kaggle = 'train and test images and labels from kaggle.com/c/diabetic-retinopathy-detection'
  clevr, dsprites = _held_out(90, test='validation'), _three_parts(80, 10)
  distances = ('up to 8', '8 to 8.5', '8.5 to 9', '9 to 9.5', '9.5 to 10', 'over 10')
  vehicles = ('up to 8 m', '8 to 20 m', 'over 20 m', 'no vehicle')
  places, turns = _numbers(1, 16, 'of 16 from the left'), _numbers(1, 16, 'of 16 of a turn')
  column, turn = _binned('label_x_position', 32, 16), _binned('label_orientation', 40, 16)
  binary: dict[str, Any] = {'flip': False, 'scale': 255}
  retinopathy = 'diabetic_retinopathy_detection/btgraham-300'
  return [
    Task('caltech101', natural, 'caltech101', 102, _held_out(90)),
    Task('cifar100', natural, 'cifar100', 100, _held_out(90)),
    Task('dtd', natural, 'dtd', 47, _own_validation),
    Task('oxford_flowers102', natural, 'oxford_flowers102', 102, _own_validation),
    Task('oxford_iiit_pet', natural, 'oxford_iiit_pet', 37, _held_out(80)),
    Task('svhn', natural, 'svhn_cropped', 10, _held_out(90)),
    Task('sun397', natural, 'sun397/tfds', 397, _own_validation),
    Task('patch_camelyon', specialized, 'patch_camelyon', 2, _own_validation),
    Task('eurosat', specialized, 'eurosat/rgb', 10, _three_parts(60, 20)),
    Task('resisc45', specialized, 'resisc45', 45, _three_parts(60, 20), by_hand='NWPU-RESISC45.rar'),
    Task('diabetic_retinopathy', specialized, retinopathy, 5, _own_validation, by_hand=kaggle),
    Task('clevr_count', structured, 'clevr', 8, clevr, _clevr_count, _numbers(3, 10, 'objects'), crop=False),
    Task('clevr_distance', structured, 'clevr', 6, clevr, _clevr_distance, distances, crop=False),
    Task('dmlab', structured, 'dmlab', 6, _own_validation, crop=False),
    Task(
      'kitti_distance', structured, 'kitti:3.1.0', 4, _own_validation, _kitti_distance, vehicles, crop=False
    ),
    Task('dsprites_location', structured, 'dsprites', 16, dsprites, column, places, crop=False, **binary),
    Task('dsprites_orientation', structured, 'dsprites', 16, dsprites, turn, turns, **binary),
    Task(
      'smallnorb_azimuth', structured, 'smallnorb', 18, _half_of_test, feature='label_azimuth', flip=False
    ),
    Task('smallnorb_elevation', structured, 'smallnorb', 9, _half_of_test, feature='label_elevation'),
  ]


TASKS: dict[str, Task] = {task.name: task for task in _all_tasks()}
