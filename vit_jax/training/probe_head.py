"""A head that begins as a probe of frozen features (config.init.head): good accuracy before the first step.

The features are computed once. Where config.total is no step at all, the probe is what the run was for.
"""

import hashlib
import itertools
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from vit_jax.checkpoint import checksums
from vit_jax.data.bad_images import BadImages
from vit_jax.data.pipeline import EvalPipeline
from vit_jax.data.preprocess import Preprocess
from vit_jax.data.sources import Source, subset
from vit_jax.evaluation import base as evaluation
from vit_jax.evaluation import features as features_lib
from vit_jax.evaluation import logistic
from vit_jax.evaluation.base import Limited, Params
from vit_jax.evaluation.features import Features
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import sharding as sharding_lib
from vit_jax.pretrained import kept_head
from vit_jax.training.feature_files import FeatureFiles
from vit_jax.training.run import Run
from vit_jax.training.state import TrainState

# Images, at most, of a head that is trained further; more take minutes, and change the beginning little.
_IMAGES = 20_000
_FILE = 512  # images whose features are a file, about


def with_probe(
  run: Run,
  source: Source,
  state: TrainState,
  variables: Params,
  bad_images: BadImages,
  workdir: pathlib.Path,
  limited: Limited = iter,
) -> tuple[TrainState, str]:
  """The state of step 0 with a logistic regression in its head, and a sentence about it.

  Args:
    variables: the whole model's, those of the state or (with an adapter) merged ones.
    bad_images: takes those that cannot be decoded, which are left out if data.bad_images is 'replace'.
    workdir: where features are kept; of what a killed run had computed only the rest is computed.
    limited: see `Evaluator.run`.

  Raises:
    UserError: images of a single class, of which there is no regression.
  """
  config = run.config
  if run.timeline.total:
    source = subset.at_most(source, max(1, _IMAGES // len(source.class_names)), config.seed)
  if len(np.unique(source.labels())) < 2:
    raise UserError(f'{config.data.title} has images of one class only; there is nothing to tell apart.')
  batches = math.ceil(_FILE / config.batch_size)
  kept = FeatureFiles(workdir, _key(run, source, variables) | {'batches': batches})
  # Process 0 keeps features and fits the head; the others take part in computing those that are not there.
  done = int(multihost_utils.broadcast_one_to_all(np.int32(len(kept)))) * batches * config.batch_size
  text = ''
  if done:
    bad_images.recall(1)
    text = f'Head: the features of {min(done, len(source)):,} images were there from before\n'
  rest = subset.Subset(source, np.arange(len(source)) >= done)
  for part in _parts(run, rest, variables, bad_images, limited, batches):
    bad_images.report(1)
    kept.append(part)
  head = _fitted(kept, run, state)
  text += f'Head: logistic regression of the features of {kept.examples:,} images (l2 {head.l2:g})'
  if not math.isnan(head.accuracy):
    text += f', which by cross-validation gets {head.accuracy:.1%} right'
  return _with_head(state, {'kernel': head.kernel, 'bias': head.bias}), text


def _key(run: Run, source: Source, variables: Params) -> dict[str, Any]:
  """What the features of the images depend on, as JSON."""
  config = run.config
  return {
    'images': [config.data.title, len(source), source.version(), source.sums()],
    'chosen_by': config.seed if run.timeline.total else None,
    'labels': hashlib.sha256(source.labels().tobytes()).hexdigest(),
    'pixels': repr(Preprocess.of_run(config.data, **_cut(run))),
    'model': repr(config.model),
    'variables': checksums.of_arrays(
      {p: v for p, v in pytrees.flatten(variables).items() if not p.startswith(kept_head.HEADS)}
    ),
    'batch_size': config.batch_size,
  }


def _cut(run: Run) -> dict[str, Any]:
  """How images are cut: as those of the evaluator that leads."""
  _, evaluator = evaluation.leading(run.config.evaluators) or ('', None)
  return {'crop': evaluator and evaluator.crop, 'resize': evaluator and evaluator.resize}


def _parts(
  run: Run, source: Source, variables: Params, bad_images: BadImages, limited: Limited, batches: int
) -> Iterator[Features]:
  """The features of all images, of so many batches at a time."""
  data, sharding = run.config.data, mesh_lib.batch_sharding(run.mesh)
  pipeline = EvalPipeline(
    source, data, **_cut(run), batch_size=run.config.batch_size, sharding=sharding, bad_images=bad_images
  )
  step = features_lib.make_step(run.program.graphdef, data, run.mesh)
  computed = features_lib.of_batches(step, variables, limited(pipeline), layer=None, pool=None)
  while part := list(itertools.islice(computed, batches)):
    yield features_lib.joined(part)


def _fitted(parts: FeatureFiles, run: Run, state: TrainState) -> logistic.Head:
  """The head that process 0 fits, in all processes."""
  kernel, scores = state.params['head']['kernel'], run.config.objective.class_scores()
  weights = scores and scores.class_weights
  if jax.process_index() == 0:
    own = None if weights is None else np.asarray(weights, float)
    head = logistic.head(parts, kernel.shape[1], weights=own, seed=run.config.seed)
  else:
    head = logistic.Head(np.zeros(kernel.shape, np.float32), np.zeros(kernel.shape[1], np.float32), 0.0, 0.0)
  return logistic.Head(*multihost_utils.broadcast_one_to_all(tuple(head)))


def _with_head(state: TrainState, head: dict[str, np.ndarray]) -> TrainState:
  """The state with these arrays as its head, where the ones before lay; of the EMA too.

  Logits of two heads are their mean, so that the one of the class token gets twice the values and the other zeros.
  """

  def filled(leaves: Params, factor: int) -> Params:
    return {name: sharding_lib.place(factor * head[name], leaf) for name, leaf in leaves.items()}

  def replaced(params: Params) -> Params:
    if 'distillation_head' not in params:
      return {**params, 'head': filled(params['head'], 1)}
    return {
      **params,
      'head': filled(params['head'], 2),
      'distillation_head': filled(params['distillation_head'], 0),
    }

  ema = replaced(state.ema) if state.ema else state.ema
  return state._replace(params=replaced(state.params), ema=ema)
