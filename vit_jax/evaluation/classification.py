"""The evaluator of a model's own head: accuracy, loss and their kin on one split."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.data import on_device
from vit_jax.data.config import DataConfig
from vit_jax.data.on_device import Batch
from vit_jax.data.sources.base import Source
from vit_jax.evaluation import base, classification_metrics, ranking
from vit_jax.evaluation.base import EvaluationContext, Evaluator, EvaluatorConfig, Limited, MetricKind, Params
from vit_jax.evaluation.classification_metrics import Examples
from vit_jax.foundation import class_matching
from vit_jax.foundation.errors import UserError
from vit_jax.models import flexible_patches
from vit_jax.models.base import Model, ModelConfig
from vit_jax.objectives.classification import ClassificationObjective, ranks
from vit_jax.options import Size
from vit_jax.parallel import mesh as mesh_lib

EvalStep = Callable[[Params, Batch], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class ClassificationEvaluatorConfig(EvaluatorConfig):
  """Metrics of the model's head (evaluation/classification_metrics.py); --mode=eval also writes pictures."""

  # ImageNet ReaL's labels of ImageNet's validation images: the path or address of real.json, or 'download'; the
  # evaluator then gives real_accuracy too. None for no such labels.
  real_labels: str | None = None
  # Patch size, of a model that was trained with several (config.model.patch_sizes). None for the model's own.
  patch: Size | None = None

  precedence: ClassVar[int] = 0
  metrics: ClassVar[Mapping[str, MetricKind]] = classification_metrics.METRICS

  def open(self, name: str, source: str, context: EvaluationContext) -> 'ClassificationEvaluator':
    return ClassificationEvaluator(name, self, source, context)

  @property
  def patch_size(self) -> int | None:
    return self.patch

  def given_metrics(self, name: str, data: DataConfig) -> tuple[str, ...]:
    single = () if data.max_labels else classification_metrics.OF_SINGLE_CLASSES
    return (*self.best_metrics(name, data), *(f'{name}/{metric}' for metric in single))

  def best_metrics(self, name: str, data: DataConfig) -> tuple[str, ...]:
    metrics = ['accuracy', 'loss']
    if data.max_labels:
      metrics.append('mean_average_precision')
    if self.real_labels:
      metrics.append('real_accuracy')
    return tuple(f'{name}/{metric}' for metric in metrics)


class ClassificationEvaluator(Evaluator):
  """An opened evaluator of type 'classification'."""

  def __init__(
    self,
    name: str,
    options: ClassificationEvaluatorConfig,
    source: str,
    context: EvaluationContext,
    records: Source | None = None,
  ):
    """The arguments are those of `EvaluatorConfig.open`; `records`: the source, where it is open already."""
    # Importing TFDS and OpenCV takes seconds, which `import vit_jax.config` need not.
    from vit_jax.data import sources
    from vit_jax.data.pipeline import EvalPipeline
    from vit_jax.evaluation.real_labels import RealLabels

    class_scores = context.objective.class_scores()
    if class_scores is None:
      raise UserError(
        f'config.evaluators.{name} is of type classification, and {context.objective.title} names no '
        f"classes; its type must be 'fewshot'."
      )
    if options.patch:
      _check_patch(context.model, options.patch, context.data, f'config.evaluators.{name}.patch')
    data, names, trained = context.data, context.class_names or None, context.trained or context.data
    split, data = sources.evaluated(source, options.split, data, trained)
    if records is None:
      records = sources.open_source(source, split, data=data, class_names=names)
    base.check_classes(records.class_names, name, source)
    if split != options.split:
      self.notes += (f'All images of {source} are counted: the model was trained on {trained.title}.',)
    if names is None:
      names = records.class_names
      remedy = 'evaluate data that has as many'
      self.notes += class_matching.rows(
        (), names, outputs=context.num_classes, what='The head', remedy=remedy
      ).notes
    real_labels = None
    if options.real_labels:
      own_names = sources.open_source(source, split, data=data).class_names
      real_labels = RealLabels(options.real_labels, own_names, names)
    self._name, self._class_names = name, names
    self.title = sources.title(source, split)
    self._batches = EvalPipeline(
      records,
      data,
      crop=options.crop,
      resize=options.resize,
      batch_size=options.batch_size or context.batch_size,
      sharding=mesh_lib.batch_sharding(context.mesh),
      real_labels=real_labels,
    )
    self._step = make_eval_step(
      context.graphdef,
      class_scores,
      data,
      context.mesh,
      num_classes=context.num_classes,
      patch=options.patch,
    )
    self.examples = len(records)

  def run(
    self,
    models: Mapping[str, Params],
    shared: dict[Any, Any],
    report: base.Report | None = None,
    limited: Limited = iter,
  ) -> dict[str, float]:
    scores: dict[str, float] = {}
    for suffix, examples in collect(self._step, models, limited(self._batches)).items():
      name = f'{self._name}{suffix}'
      values = classification_metrics.summarise(examples)
      scores |= {f'{name}/{metric}': value for metric, value in values.items()}
      if report is not None and jax.process_index() == 0:
        from vit_jax.evaluation.report import save

        save(report.folder, name, examples, self._class_names, pictures=report.pictures)
    return scores


def _check_patch(model: ModelConfig, patch: int, data: DataConfig, option: str) -> None:
  """Raises UserError for patches that the model cannot have, or that do not divide the images."""
  if model.patch_sizes is None:
    raise UserError(
      f'{option} is {patch}, and {model.title} cuts no images into patches of another size; leave it out.'
    )
  if data.max_patches:
    raise UserError(
      f'{option} is {patch}, and config.data.max_patches has cut the images already; leave it out.'
    )
  dataclasses.replace(model, patch=patch).grid(data.image_size, f'{option}: the image size')


def make_eval_step(
  graphdef: nnx.GraphDef,
  class_scores: ClassificationObjective,
  data: DataConfig,
  mesh: jax.sharding.Mesh,
  *,
  num_classes: int,
  patch: int | None = None,
) -> EvalStep:
  """The compiled function (params, batch with 'mask') -> what `collect` takes.

  That is 'examples', a row each, 'num_classes', both on every device of the mesh, and where images have lists of
  classes 'scores', float32 (B, K) split by class and padded so that classes divide over the devices.
  """
  outputs: dict[str, Any] = dict.fromkeys(('examples', 'num_classes'), mesh_lib.replicated(mesh))
  padding = 0
  if data.max_labels:
    outputs['scores'] = NamedSharding(mesh, PartitionSpec(None, mesh.axis_names))
    padding = -num_classes % mesh.size

  def evaluate(params: Params, batch: Batch) -> dict[str, Any]:
    model: Model = nnx.merge(graphdef, params)
    if patch is not None:
      flexible_patches.use(model, patch)
    logits = model(on_device.prepared(batch, data))
    labels = batch['label']
    chex.assert_shape(logits, (len(labels), num_classes))
    chex.assert_type([logits, labels], [jnp.float32, jnp.int32])
    examples = {name: values for name, values in batch.items() if name not in ('image', 'grid')}
    examples |= answers(class_scores, logits, labels, batch.get('weight'))
    result = {'examples': examples, 'num_classes': jnp.int32(num_classes)}
    if data.max_labels:
      result['scores'] = jnp.pad(logits, ((0, 0), (0, padding)))
    return result

  return jax.jit(evaluate, out_shardings=outputs)


def answers(
  class_scores: ClassificationObjective,
  logits: jax.Array,
  labels: jax.Array,
  weights: jax.Array | None = None,
) -> dict[str, jax.Array]:
  """Fields of `Examples`: what logits (B, K) say of examples with labels (B,), or lists (B, n) and their weights."""
  targets = class_scores.targets(labels, logits.shape[-1], weights)
  return {
    'prediction': logits.argmax(axis=-1).astype(jnp.int32),
    'confidence': class_scores.confidence(logits),
    'rank': ranks(logits, labels) if labels.ndim == 1 else jnp.full(len(logits), -1, jnp.int32),
    'loss': class_scores.cross_entropy(logits, targets, smooth=False),
  }


def collect(step: EvalStep, models: Mapping[str, Params], batches: Iterable[Batch]) -> dict[str, Examples]:
  """What each model (name -> parameters) says of each example, in the data's order and on every process.

  The step is of `make_eval_step`, and the batches have each example of the data set once.
  """
  collectors = {name: _Collector() for name in models}

  def of_models(batch: Batch) -> dict[str, dict[str, Any]]:
    return {name: step(params, batch) for name, params in models.items()}

  for outputs in base.one_behind(of_models, batches):
    for name, values in outputs.items():
      collectors[name].add(**values)
  return {name: collector.examples() for name, collector in collectors.items()}


class _Collector:
  """The results of one model: the rows of all batches that are no padding."""

  def __init__(self) -> None:
    self._rows: dict[str, list[np.ndarray]] = {}
    self._num_classes = 0
    self._ranking: ranking.MeanAveragePrecision | None = None

  def add(
    self, examples: dict[str, jax.Array], num_classes: jax.Array, scores: jax.Array | None = None
  ) -> None:
    self._num_classes = int(num_classes)
    if scores is not None:
      self._ranking = self._ranking or ranking.MeanAveragePrecision()
      labels = ranking.positives(examples['label'], examples.get('weight'))
      self._ranking.add(scores, labels, examples['mask'])
    mask = np.asarray(examples['mask'])
    for name, values in examples.items():
      if name != 'mask':
        self._rows.setdefault(name, []).append(np.asarray(values)[mask])

  def examples(self) -> Examples:
    arrays = {name: np.concatenate(parts) for name, parts in self._rows.items()}
    precision = self._ranking.result() if self._ranking else None
    return Examples(self._num_classes, **arrays, mean_average_precision=precision)
