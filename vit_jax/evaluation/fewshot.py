"""Few-shot probes of frozen features: N images of each class, several draws, settings chosen on others.

The images learnt from and those that the probe's setting (l2 or k) is chosen on are both drawn from the
training split and have none in common; the test split is only predicted, once, with what was chosen.
"""

import dataclasses
import hashlib
import logging
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from vit_jax import config
from vit_jax.config import Config
from vit_jax.data import sources
from vit_jax.data.config import DataConfig
from vit_jax.data.pipeline import EvalPipeline
from vit_jax.data.sources import subset
from vit_jax.errors import UserError
from vit_jax.evaluation import features as features_lib
from vit_jax.evaluation.features import Features, FeatureStep, Spec
from vit_jax.evaluation.probes import GRIDS, PROBES
from vit_jax.parallel import mesh as mesh_lib

_log = logging.getLogger(__name__)


class Draw(NamedTuple):
  """Numbers of records: int64, sorted."""

  shots: np.ndarray
  validation: np.ndarray


class Score(NamedTuple):
  """A draw's test accuracy, and the setting that was chosen for it."""

  accuracy: float
  setting: float


def draw(labels: np.ndarray, shots: int, validation: int, seed: int) -> Draw:
  """The records to learn from, and others to choose by.

  Args:
    labels: int (records,).
    shots: records of each class to learn from, or all that a class has; 0: all but those to choose by, which
      are then no more than half of a class.
    validation: records of each class to choose by, or what a class has left.
    seed: of the draw. Draws of more shots by the same seed contain those of fewer.
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

  Of settings that are equally good the first of `grid` is taken.
  """
  predict = PROBES[probe](shots.values, shots.labels, classes)
  right = lambda data, setting: int((predict(data.values, setting) == data.labels).sum())
  chosen = max(grid, key=lambda setting: right(validation, setting))
  return Score(right(test, chosen) / len(test.labels), chosen)


class FewShotEvaluator:
  """An evaluator of type 'fewshot': its data is opened and drawn once, features are computed each time."""

  def __init__(
    self,
    name: str,
    options: config.Evaluator,
    spec: str,
    run: Config,
    mesh: jax.sharding.Mesh,
  ):
    """
    Args:
      name: of the evaluator, for messages.
      options: its section of the config.
      spec: the source, without a split.
      run: of which model features are, and how an image becomes its input.
      mesh: over which features are computed.

    Raises:
      UserError: no such data, layer or pooling; images with lists of classes; none left to choose by.
    """
    self._options, self._probe, data = options, options.fewshot, run.data
    features_lib.check(run.model, self._probe.layer, self._probe.pool, f'config.evaluators.{name}.fewshot')
    data = dataclasses.replace(data, max_labels=None, classes=() if options.source else data.classes)
    self._grid = self._probe.grid or GRIDS[self._probe.probe]
    train = sources.open_source(spec, self._probe.train_split, data=data)
    test = sources.open_source(spec, options.split, data=data, class_names=train.class_names)
    labels = train.labels()
    self.class_names = train.class_names
    self.examples = len(test)
    self._draws = {
      (shots, seed): draw(labels, shots, self._probe.validation, seed)
      for shots in self._probe.shots
      for seed in range(self._probe.seeds)
    }
    self.too_few = self._say_too_few(name, spec, labels)
    # Every record that is in some draw, once.
    self._numbers = np.unique(np.concatenate([part for pair in self._draws.values() for part in pair]))
    self.images = len(self._numbers) + self.examples  # whose features are computed
    chosen = np.zeros(len(train), bool)
    chosen[self._numbers] = True
    digest = hashlib.blake2b(self._numbers.tobytes(), digest_size=16).digest()
    self._specs = (
      self._spec(spec, self._probe.train_split, digest, data),
      self._spec(spec, options.split, None, data),
    )
    self._pipelines = [
      EvalPipeline(
        source,
        data,
        options,
        batch_size=options.batch_size or run.batch_size,
        sharding=mesh_lib.batch_sharding(mesh),
      )
      for source in (subset.Selection(train, chosen), test)
    ]

  def scores(
    self, step: FeatureStep, params: dict[str, Any], cache: dict[Spec, Features]
  ) -> dict[int, list[Score]]:
    """{shots: the score of each seed's draw}.

    Args:
      step: of `features.make_step`.
      params: the model's.
      cache: features of these parameters that are known, to which those computed are added.
    """
    for spec, batches in zip(self._specs, self._pipelines, strict=True):
      if spec not in cache:
        cache[spec] = features_lib.extract(step, params, batches, layer=spec.layer, pool=spec.pool)
    train, test = (cache[spec] for spec in self._specs)
    part = lambda numbers: Features(*(array[np.searchsorted(self._numbers, numbers)] for array in train))
    result: dict[int, list[Score]] = {shots: [] for shots in self._probe.shots}
    for (shots, _), (learnt, held_out) in self._draws.items():
      one = score(self._probe.probe, self._grid, part(learnt), part(held_out), test, len(self.class_names))
      result[shots].append(one)
    return result

  def metrics(
    self, step: FeatureStep, models: dict[str, dict[str, Any]], caches: dict[str, dict[Spec, Features]]
  ) -> dict[str, float]:
    """{'<model>_5shot/accuracy': mean over the draws, '…/deviation': of one draw (n - 1)}.

    Args:
      step: of `features.make_step`.
      models: what the metrics' names begin with -> parameters.
      caches: for each model, as for `scores`.
    """
    result = {}
    for name, params in models.items():
      for shots, scores in self.scores(step, params, caches[name]).items():
        accuracies = [score.accuracy for score in scores]
        prefix = self._probe.metric_prefix(name, shots)
        result[f'{prefix}/accuracy'] = statistics.fmean(accuracies)
        if len(accuracies) > 1:
          result[f'{prefix}/deviation'] = statistics.stdev(accuracies)
    return result

  def _spec(self, source: str, split: str, records: bytes | None, data: DataConfig) -> Spec:
    options = self._options
    # What changes no feature is left out.
    data = dataclasses.replace(data, source='', split='', threads=1, prefetch=1)
    return Spec(
      source, split, records, data, options.crop, options.resize, self._probe.layer, self._probe.pool
    )

  def _say_too_few(self, name: str, spec: str, labels: np.ndarray) -> dict[str, int]:
    """Class -> images, of those with too few for the most shots and the validation; logs them."""
    wanted = max(self._probe.shots) + self._probe.validation
    sizes = np.bincount(labels, minlength=len(self.class_names))
    few = {self.class_names[number]: int(sizes[number]) for number in np.flatnonzero(sizes < wanted)}
    for (shots, seed), parts in self._draws.items():
      if not len(parts.validation):
        raise UserError(
          f'{spec} {self._probe.train_split} has no images left to choose by after {shots} of each class '
          f'(seed {seed}); lower config.evaluators.{name}.fewshot.shots.'
        )
    if few:
      shown = ', '.join(f'{title} ({count})' for title, count in list(few.items())[:10])
      more = f' and {len(few) - 10} more' if len(few) > 10 else ''
      _log.warning(
        'Evaluator %s: %d of the %d classes of %s have fewer than the %d images that shots and validation '
        'take; they give what they have: %s%s.',
        *(name, len(few), len(self.class_names), spec, wanted, shown, more),
      )
    return few
