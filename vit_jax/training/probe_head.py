"""A head that begins as a probe of frozen features (config.init.head): good accuracy before the first step."""

import math

import numpy as np

from vit_jax.data.bad_images import BadImages
from vit_jax.data.pipeline import EvalPipeline
from vit_jax.data.sources import Source, subset
from vit_jax.evaluation import features as features_lib
from vit_jax.evaluation import probes
from vit_jax.evaluation.base import Limited, Params
from vit_jax.foundation.errors import UserError
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import sharding as sharding_lib
from vit_jax.training.run import Run
from vit_jax.training.state import TrainState

_IMAGES = 20_000  # at most; more take minutes, and change the head little


def with_probe(
  run: Run, source: Source, state: TrainState, bad_images: BadImages, limited: Limited = iter
) -> tuple[TrainState, str]:
  """The state of step 0 with a logistic regression in its head, and a sentence about it.

  Args:
    bad_images: takes those that cannot be decoded, which are left out if data.bad_images is 'replace'.
    limited: see `Evaluator.run`.

  Raises:
    UserError: images of a single class, of which there is no regression.
  """
  config, classes = run.config, run.architecture.num_classes
  sample = subset.at_most(source, max(1, _IMAGES // len(source.class_names)), config.seed)
  evaluator = next(iter(config.evaluators.values()), None)
  batches = EvalPipeline(
    sample,
    config.data,
    crop=evaluator.crop if evaluator else None,
    resize=evaluator.resize if evaluator else None,
    batch_size=config.batch_size,
    sharding=mesh_lib.batch_sharding(run.mesh),
    bad_images=bad_images,
  )
  step = features_lib.make_step(run.program.graphdef, config.data, run.mesh)
  features = features_lib.extract(step, state.variables, limited(batches), layer=None, pool=None)
  if len(np.unique(features.labels)) < 2:
    raise UserError(f'{config.data.title} has images of one class only; there is nothing to tell apart.')
  head = probes.logistic_head(features.values, features.labels, classes)
  text = f'Head: logistic regression of the features of {len(features.labels):,} images (l2 {head.l2:g})'
  if not math.isnan(head.accuracy):
    text += f', which by cross-validation gets {head.accuracy:.1%} right'
  return _with_head(state, {'kernel': head.kernel, 'bias': head.bias}), text


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
