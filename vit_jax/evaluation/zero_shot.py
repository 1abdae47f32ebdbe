"""The evaluator of zero-shot classification: the names of classes, as texts, are the head of the image tower.

CLIP, arXiv 2103.00020, section 3.1. It is the evaluator of a head, which is made anew of each set of parameters; the
data may be any with names of classes, whatever the model was trained on.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.evaluation.base import EvaluationContext, Limited, Params, Report, check_classes
from vit_jax.evaluation.classification import ClassificationEvaluator, ClassificationEvaluatorConfig
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.models.capabilities import ComparesTexts, TextTowerOptions
from vit_jax.models.text_tower import text_head
from vit_jax.objectives.classification import ClassificationObjective
from vit_jax.parallel import mesh as mesh_lib


@dataclasses.dataclass(frozen=True)
class ZeroShotEvaluatorConfig(ClassificationEvaluatorConfig):
  """Metrics of a head that the text tower makes of the names of the classes of any data."""

  # Texts, of whose features a class has the mean; {} stands for the name of the class. () for those of
  # objective.prompts without captions.
  prompts: tuple[str, ...] = ()

  def open(self, name: str, source: str, context: EvaluationContext) -> 'ZeroShotEvaluator':
    return ZeroShotEvaluator(name, self, source, context)


class ZeroShotEvaluator(ClassificationEvaluator):
  """An opened evaluator of type 'zero_shot'."""

  def __init__(self, name: str, options: ZeroShotEvaluatorConfig, source: str, context: EvaluationContext):
    """The arguments are those of `EvaluatorConfig.open`."""
    # Importing TFDS and OpenCV takes seconds, which `import vit_jax.config` need not.
    from vit_jax.data import sources
    from vit_jax.pretrained import captions, tokenizing, zero_shot

    model, texts, data = context.model, context.objective.texts, context.data
    if not isinstance(model, TextTowerOptions) or texts is None:
      raise UserError(
        f'config.evaluators.{name} is of type zero_shot, and {context.objective.title} has no texts; its type must '
        "be 'classification' or 'fewshot'."
      )
    split, opened = sources.evaluated(source, options.split, data, context.trained or data)
    records = sources.open_source(source, split, data=opened)
    names = records.class_names
    check_classes(names, name, source)
    prompts = options.prompts or [each for each in texts.prompts if captions.CAPTION not in each]
    if not prompts:
      raise UserError(
        f'config.evaluators.{name}.prompts is (), and config.objective.prompts are of captions; give one of classes, '
        "such as 'a photo of a {}.'."
      )
    tokenize = captions.tokenizer(texts.tokenizer, model)
    self._numbers = tokenizing.distinct(zero_shot.prompted(names, prompts), tokenize)
    tower = model.with_cosine_head()
    architecture = Architecture(tower, data.image_size, data.channels, len(names))
    graphdef, shapes = architecture.graph_and_shapes()
    self._parts = {path.partition('/')[0] for path in shapes} - {'head'}
    self._head = jax.jit(
      functools.partial(_head, context.graphdef, classes=len(names)),
      out_shardings=mesh_lib.replicated(context.mesh),
    )
    classifier = dataclasses.replace(
      context,
      objective=ClassificationObjective(loss=context.objective.link),
      model=tower,
      graphdef=graphdef,
      num_classes=len(names),
      class_names=names,
    )
    super().__init__(name, options, source, classifier, records)

  def run(
    self,
    models: Mapping[str, Params],
    shared: dict[Any, Any],
    report: Report | None = None,
    limited: Limited = iter,
  ) -> dict[str, float]:
    classifiers = {
      suffix: {name: params[name] for name in self._parts} | {'head': self._head(params, self._numbers)}
      for suffix, params in models.items()
    }
    return super().run(classifiers, shared, report, limited)


def _head(graphdef: nnx.GraphDef, params: Params, numbers: np.ndarray, *, classes: int) -> Params:
  """The head of so many classes, of whose texts the tokens are int (classes * prompts, N)."""
  model: Any = nnx.merge(graphdef, params)
  assert isinstance(model, ComparesTexts), 'its options have a text tower'
  return text_head(model.text_features(jnp.asarray(numbers)), classes, *model.scale_and_bias())
