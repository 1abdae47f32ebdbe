"""Few-shot probes of frozen features: N images of each class, several draws, settings chosen on others.

The images that a probe learns from and those by which its setting (l2 or k) is chosen are both drawn from the
training split and have none in common; the test split is only predicted, once, with the chosen setting.
"""

import dataclasses
import hashlib
import logging
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from vit_jax.data import sources
from vit_jax.data.config import DataConfig, EvalCrop, Resize
from vit_jax.data.sources import subset
from vit_jax.data.sources.base import ListsOfClassesError
from vit_jax.evaluation import base
from vit_jax.evaluation import features as features_lib
from vit_jax.evaluation.base import EvaluationContext, Evaluator, EvaluatorConfig, Limited, MetricKind, Params
from vit_jax.evaluation.features import Features
from vit_jax.evaluation.probes import GRIDS, PROBES
from vit_jax.foundation.errors import UserError
from vit_jax.options import Amount, Count, Positive
from vit_jax.parallel import mesh as mesh_lib

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class FewShotEvaluatorConfig(EvaluatorConfig):
  """A classifier learned from the frozen features of a few images, on data of any classes."""

  # Split from which the images to learn from and, apart from them, the images to choose by are drawn.
  train_split: str = 'train'
  # Numbers of images of each class to learn from, each an evaluation of its own; 0 for all but those to choose by.
  shots: tuple[Amount, ...] = (5,)
  # Images of each class by which the setting (see `grid`) is chosen. 0 to learn from all, where `grid` has only one.
  validation: Amount = 10
  # Draws of images; the metrics are the mean accuracy and its deviation (n - 1) over them.
  seeds: Count = 3
  # Classifier of the features: 'ridge' (regression to ±1 in closed form, as the paper), 'logistic' (L-BFGS), 'knn'
  # (cosine) or 'weighted_knn' (DINO's vote, in which nearer ones count more).
  probe: Literal['ridge', 'logistic', 'knn', 'weighted_knn'] = 'ridge'
  # Settings to choose from: the penalty l2 of 'ridge' and 'logistic', the k of the others. () for those of
  # evaluation/probes.py.
  grid: tuple[Positive, ...] = ()
  # Block after which features are taken, from 0; -1 for those after the last norm. None for what the head reads.
  layer: int | None = None
  # Pooling of that layer's tokens: 'token', 'gap', 'token_gap' or 'map', as far as the model has it. None for its own.
  pool: Literal['token', 'gap', 'token_gap', 'map'] | None = None

  precedence: ClassVar[int] = 2
  metrics: ClassVar[Mapping[str, MetricKind]] = {
    'accuracy': MetricKind(higher_is_better=True, percent=True, headline=True),
    'deviation': MetricKind(higher_is_better=False),
  }

  def check(self, path: str) -> None:
    """Raises UserError where there is nothing to learn from, or nothing to choose from."""
    if not self.shots:
      raise UserError(f'{path}.shots is (); give at least one number.')
    if not self.validation and len(self.grid) != 1:
      raise UserError(
        f'{path}.validation is 0, which leaves no images to choose a setting by; give {path}.grid one, such as (20,).'
      )
    if 'knn' in self.probe and not all(k >= 1 and float(k).is_integer() for k in self.grid):
      raise UserError(
        f'{path}.grid is {self.grid}, and the k of {self.probe} counts neighbours; give whole numbers from 1, such as '
        '(1, 5).'
      )

  def open(self, name: str, source: str, context: EvaluationContext) -> 'FewShotEvaluator':
    return FewShotEvaluator(name, self, source, context)

  def given_metrics(self, name: str, data: DataConfig) -> tuple[str, ...]:
    metrics = ('accuracy', 'deviation') if self.seeds > 1 else ('accuracy',)
    return tuple(f'{metric_prefix(name, shots)}/{metric}' for shots in self.shots for metric in metrics)

  def best_metrics(self, name: str, data: DataConfig) -> tuple[str, ...]:
    return tuple(f'{metric_prefix(name, shots)}/accuracy' for shots in self.shots)


def metric_prefix(name: str, shots: int) -> str:
  """'web' -> 'web_5shot', or 'web_all' for all images: the evaluator's name in its metrics."""
  return f'{name}_{shots}shot' if shots else f'{name}_all'


@dataclasses.dataclass(frozen=True)
class FeatureKey:
  """Everything that the features of one set of parameters depend on: those of equal keys are the same."""

  source: str
  split: str
  records: bytes | None  # a digest of the records taken from the split; None: all
  data: DataConfig
  crop: EvalCrop | None
  resize: Resize | None
  layer: int | None
  pool: str | None


class Draw(NamedTuple):
  """The numbers of records that a draw takes: int64, sorted."""

  shots: np.ndarray
  validation: np.ndarray


class Score(NamedTuple):
  """A draw's test accuracy, and the setting that was chosen for it."""

  accuracy: float
  setting: float


def draw(labels: np.ndarray, shots: int, validation: int, seed: int) -> Draw:
  """Draws the records to learn from, and others to choose by: so many of each class, or what it has left.

  With 0 shots all are learned from but those to choose by, which are then no more than half of a class. Draws of more
  shots by the same seed contain those of fewer.
  """
  rank = subset.ranks(labels, seed)
  if shots:
    return Draw(np.flatnonzero(rank < shots), np.flatnonzero((shots <= rank) & (rank < shots + validation)))
  sizes = np.bincount(labels)[labels]
  held_out = rank < np.minimum(validation, sizes // 2)
  return Draw(np.flatnonzero(~held_out), np.flatnonzero(held_out))


def score(
  probe: str, grid: Sequence[float], shots: Features, validation: Features, test: Features, classes: int
) -> Score:
  """Fits a probe, chooses its setting by the accuracy on `validation`, and predicts `test` with that alone.

  Of equally good settings the first of `grid` is taken.
  """
  predict = PROBES[probe](shots.values, shots.labels, classes)

  def right(features: Features, setting: float) -> int:
    return int((predict(features.values, setting) == features.labels).sum())

  chosen = grid[0] if len(grid) == 1 else max(grid, key=lambda setting: right(validation, setting))
  return Score(right(test, chosen) / len(test.labels), chosen)


class FewShotEvaluator(Evaluator):
  """An opened evaluator of type 'fewshot': its data is drawn once, features are computed each time."""

  def __init__(self, name: str, options: FewShotEvaluatorConfig, source: str, context: EvaluationContext):
    """As `EvaluatorConfig.open`.

    Raises UserError also for a layer or pooling that there is not, images with lists of classes, and none to choose by.
    """
    # Importing OpenCV takes a while, which `import vit_jax.config` need not.
    from vit_jax.data.pipeline import EvalPipeline

    features_lib.check(context.model, options.layer, options.pool, f'config.evaluators.{name}')
    self._name, self._options = name, options
    self._step = features_lib.make_step(context.graphdef, context.data, context.mesh)
    # The probe's classes are its own; those of the training data are chosen only where it is the same data.
    chosen_classes = () if options.source else context.data.classes
    data = dataclasses.replace(context.data, max_labels=None, label_weights=False, classes=chosen_classes)
    if named := sources.parse(source, '')[2]:
      raise UserError(
        f'config.evaluators.{name}.source names the split {named!r}, from which a probe would learn and be tested; '
        f'leave it out there, and set config.evaluators.{name}.train_split and split.'
      )
    if sources.have_in_common(source, options.train_split, options.split):
      raise UserError(
        f'config.evaluators.{name} learns from images of the split {options.train_split!r} and is tested on '
        f'{options.split!r}, which has some of them; set another split or train_split.'
      )
    _, data = sources.evaluated(source, options.split, data, context.trained or context.data)
    try:
      train = sources.open_source(source, options.train_split, data=data)
    except ListsOfClassesError as error:
      raise UserError(
        f'config.evaluators.{name} is few-shot, which needs images of one class each, and {source} has lists of '
        f'classes; give it another source.'
      ) from error
    base.check_classes(train.class_names, name, source)
    test = sources.open_source(source, options.split, data=data, class_names=train.class_names)
    self.title = sources.title(source, options.split)
    labels = train.labels()
    self.class_names = train.class_names
    self.examples = len(test)
    self._draws = {
      (shots, seed): draw(labels, shots, options.validation, seed)
      for shots in options.shots
      for seed in range(options.seeds)
    }
    self._check_validation(source)
    self.too_few = self._small_classes(source, labels)
    # Every record that is in some draw, once.
    self._numbers = np.unique(np.concatenate([part for pair in self._draws.values() for part in pair]))
    self.images = len(self._numbers) + self.examples  # whose features are computed
    drawn = np.zeros(len(train), bool)
    drawn[self._numbers] = True
    digest = hashlib.blake2b(self._numbers.tobytes(), digest_size=16).digest()
    self._keys = (
      self._feature_key(source, options.train_split, digest, data),
      self._feature_key(source, options.split, None, data),
    )
    self._pipelines = [
      EvalPipeline(
        records,
        data,
        crop=options.crop,
        resize=options.resize,
        batch_size=options.batch_size or context.batch_size,
        sharding=mesh_lib.batch_sharding(context.mesh),
      )
      for records in (subset.Subset(train, drawn), test)
    ]

  def run(
    self,
    models: Mapping[str, Params],
    shared: dict[Any, Any],
    report: base.Report | None = None,
    limited: Limited = iter,
  ) -> dict[str, float]:
    """{'<evaluator>_5shot/accuracy': mean over the draws, '…/deviation': of one draw (n - 1)}."""
    result: dict[str, float] = {}
    for suffix, params in models.items():
      cache = shared.setdefault(suffix, {})
      for shots, scores in self.scores(params, cache, limited).items():
        accuracies = [score.accuracy for score in scores]
        prefix = metric_prefix(f'{self._name}{suffix}', shots)
        result[f'{prefix}/accuracy'] = statistics.fmean(accuracies)
        if len(accuracies) > 1:
          result[f'{prefix}/deviation'] = statistics.stdev(accuracies)
    return result

  def scores(
    self, params: Params, cache: dict[FeatureKey, Features], limited: Limited = iter
  ) -> dict[int, list[Score]]:
    """{shots: the score of each seed's draw}; new features of these parameters are added to those known, `cache`."""
    for key, batches in zip(self._keys, self._pipelines, strict=True):
      if key not in cache:
        cache[key] = features_lib.extract(
          self._step, params, limited(batches), layer=self._options.layer, pool=self._options.pool
        )
    train, test = (cache[key] for key in self._keys)

    def part(numbers: np.ndarray) -> Features:
      rows = np.searchsorted(self._numbers, numbers)
      return Features(train.values[rows], train.labels[rows])

    probe = self._options.probe
    grid = self._options.grid or GRIDS[probe]
    result: dict[int, list[Score]] = {shots: [] for shots in self._options.shots}
    for (shots, _), numbers in self._draws.items():
      learnt, held_out = part(numbers.shots), part(numbers.validation)
      result[shots].append(score(probe, grid, learnt, held_out, test, len(self.class_names)))
    return result

  def _feature_key(self, source: str, split: str, records: bytes | None, data: DataConfig) -> FeatureKey:
    options = self._options
    data = dataclasses.replace(data, source='', split='', threads=1, prefetch=1)  # which change no feature
    return FeatureKey(source, split, records, data, options.crop, options.resize, options.layer, options.pool)

  def _check_validation(self, source: str) -> None:
    """Raises UserError where a draw leaves no image to choose the probe's setting by."""
    for (shots, seed), parts in self._draws.items():
      if self._options.validation and not len(parts.validation):
        raise UserError(
          f'{source} {self._options.train_split} has no images left to choose by after {shots} of each class '
          f'(seed {seed}); lower config.evaluators.{self._name}.shots.'
        )

  def _small_classes(self, source: str, labels: np.ndarray) -> dict[str, int]:
    """Class -> images, of those with too few for the most shots and the validation; logs them."""
    wanted = max(self._options.shots) + self._options.validation
    sizes = np.bincount(labels, minlength=len(self.class_names))
    few = {self.class_names[number]: int(sizes[number]) for number in np.flatnonzero(sizes < wanted)}
    if few:
      shown = ', '.join(f'{title} ({count})' for title, count in list(few.items())[:10])
      more = f' and {len(few) - 10} more' if len(few) > 10 else ''
      _log.warning(
        'Evaluator %s: %d of the %d classes of %s have fewer than the %d images that shots and validation '
        'take; they give what they have: %s%s.',
        *(self._name, len(few), len(self.class_names), source, wanted, shown, more),
      )
    return few
