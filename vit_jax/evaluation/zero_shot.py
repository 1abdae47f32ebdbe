"""The evaluator of zero-shot classification: the names of classes, as texts, are the head of the image tower.

CLIP, arXiv 2103.00020, section 3.1. The metrics are those of a classifier, and the data may be any with names of
classes, whatever the model was trained on.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.data.config import DataConfig
from vit_jax.evaluation import classification_metrics
from vit_jax.evaluation.base import EvaluationContext, EvaluatorConfig, Limited, MetricKind, Params
from vit_jax.evaluation.classification import ClassificationEvaluator, ClassificationEvaluatorConfig
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.models.capabilities import ComparesTexts, TextTowerOptions
from vit_jax.objectives.classification import ClassificationObjective


@dataclasses.dataclass(frozen=True)
class ZeroShotEvaluatorConfig(EvaluatorConfig):
  """Metrics of a head that the text tower makes of the names of the classes of any data."""

  # Texts, of whose features a class has the mean; {} stands for the name of the class. () for objective.prompts.
  prompts: tuple[str, ...] = ()

  metrics: ClassVar[Mapping[str, MetricKind]] = classification_metrics.METRICS

  def open(self, name: str, source: str, context: EvaluationContext) -> 'ZeroShotEvaluator':
    return ZeroShotEvaluator(name, self, source, context)

  def given_metrics(self, name: str, data: DataConfig) -> tuple[str, ...]:
    return (
      *self.best_metrics(name, data),
      *(f'{name}/{each}' for each in classification_metrics.OF_SINGLE_CLASSES),
    )

  def best_metrics(self, name: str, data: DataConfig) -> tuple[str, ...]:
    return f'{name}/accuracy', f'{name}/loss'


class ZeroShotEvaluator(ClassificationEvaluator):
  """An opened evaluator of type 'zero_shot': the classifier is made anew of each set of parameters."""

  def __init__(self, name: str, options: ZeroShotEvaluatorConfig, source: str, context: EvaluationContext):
    """The arguments are those of `EvaluatorConfig.open`."""
    # Importing TFDS and OpenCV takes seconds, which `import vit_jax.config` need not.
    from vit_jax.data import sources
    from vit_jax.pretrained import captions, zero_shot

    model, texts, data = context.model, context.objective.texts, context.data
    if not isinstance(model, TextTowerOptions) or texts is None:
      raise UserError(
        f'config.evaluators.{name} is of type zero_shot, and {context.objective.title} has no texts; its type must '
        "be 'classification' or 'fewshot'."
      )
    names = sources.open_source(source, options.split, data=data).class_names
    prompts = options.prompts or texts.prompts
    numbers = captions.tokenize(texts.tokenizer, zero_shot.prompted(names, prompts), model)
    tower = model.with_cosine_head()
    architecture = Architecture(tower, data.image_size, data.channels, len(names))
    graphdef, shapes = architecture.graph_and_shapes()
    super().__init__(
      name,
      ClassificationEvaluatorConfig(
        **{field.name: getattr(options, field.name) for field in dataclasses.fields(EvaluatorConfig)}
      ),
      source,
      dataclasses.replace(
        context,
        objective=ClassificationObjective(loss=context.objective.link),
        model=tower,
        graphdef=graphdef,
        num_classes=len(names),
        class_names=(),
      ),
    )
    whole = jax.sharding.NamedSharding(context.mesh, jax.sharding.PartitionSpec())
    self._head = jax.jit(functools.partial(_head, context.graphdef, classes=len(names)), out_shardings=whole)
    self._numbers = numbers
    self._paths = {path.partition('/')[0] for path in shapes} - {'head'}

  def run(
    self,
    models: Mapping[str, Params],
    shared: dict[Any, Any],
    report_folder: pathlib.Path | None = None,
    limited: Limited = iter,
  ) -> dict[str, float]:
    classifiers = {
      suffix: {name: params[name] for name in self._paths} | {'head': self._head(params, self._numbers)}
      for suffix, params in models.items()
    }
    return super().run(classifiers, shared, report_folder, limited)


def _head(graphdef: nnx.GraphDef, params: Params, numbers: np.ndarray, *, classes: int) -> Params:
  """The head of so many classes, of whose texts the tokens are int (classes * prompts, N), as zero_shot.with_head."""
  model: Any = nnx.merge(graphdef, params)
  assert isinstance(model, ComparesTexts)
  features = model.text_features(numbers)
  features = features.reshape(classes, -1, features.shape[-1]).mean(axis=1)
  features /= jnp.linalg.norm(features, axis=-1, keepdims=True)
  scale, bias = model.scale_and_bias()
  return {'kernel': scale * features.T, 'bias': jnp.broadcast_to(bias, classes)}
