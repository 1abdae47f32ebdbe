"""The contract of an objective (what a model learns), and the registry of the objectives that there are.

A newcomer writes one file with a frozen dataclass of options that is an `Objective`, and adds one line to
`OBJECTIVES`.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data.config import DataConfig, ExtraCrops
from vit_jax.data.on_device import Batch
from vit_jax.foundation.class_matching import By
from vit_jax.foundation.errors import UserError
from vit_jax.foundation.registry import Registry
from vit_jax.models.base import Architecture, DType, Model, ModelConfig
from vit_jax.models.capabilities import PrototypeOptions, TextTowerOptions, ViewOptions

if TYPE_CHECKING:
  from vit_jax.objectives.classification import ClassificationObjective

Metrics = dict[str, jax.Array]
# The batch's images, float32 (B, H, W, C), to a frozen model's logits, float32 (B, K).
Predictor = Callable[[jax.Array], jax.Array]
# Models without a head for classes: what their options have, their name, and the objective that trains them.
_HEADLESS = (
  (TextTowerOptions, 'two_towers', 'contrastive'),
  (PrototypeOptions, 'dino', 'self_distillation'),
  (ViewOptions, 'moco', 'contrastive_views'),
)


@dataclasses.dataclass(frozen=True)
class FrozenModel:
  """A model that an objective asks beside the one that is trained, such as a teacher.

  The trainer reads it, and gives its parameters to the step as arguments, split over the mesh by its own
  sharding rules. No step changes them, and no checkpoint of the run has them.
  """

  checkpoint: str  # anything that `pretrained.formats.read` reads
  image_size: tuple[int, int] | None = None  # height, width of its images; None: as it was trained
  dtype: DType | None = None  # what it computes in; None: as the checkpoint says
  classes: By = 'name'  # how its outputs are matched with the data's classes


class Texts(NamedTuple):
  """What makes the texts that are compared with images."""

  prompts: tuple[str, ...]  # in which {} stands for the name of an image's class, {text} for its caption
  tokenizer: str  # 'bytes', or the folder of a tokenizer (pretrained/captions.py)


@dataclasses.dataclass(frozen=True)
class Objective(abc.ABC):
  """What a model learns: its loss, the head that it needs, and the evaluators that make sense of it."""

  # What messages call it: 'classification'.
  title: ClassVar[str]
  # Evaluators (names of evaluation/base.py's registry) that go with it; (): all.
  evaluators: ClassVar[tuple[str, ...]] = ()
  # Whether the loss of an example depends on the others of the batch, which parts of it would change.
  compares_examples: ClassVar[bool] = False

  @abc.abstractmethod
  def loss_and_metrics(
    self, model: Model, batch: Batch, keys: jax.Array, data: DataConfig
  ) -> tuple[jax.Array, Metrics]:
    """The loss of a batch, and what is logged beside it.

    Args:
      model: with the parameters that are trained.
      batch: of `data.on_device.prepare_training`: 'image', float32 (B, H, W, C), and 'label', perhaps
        with 'weight', and of an objective with `texts` 'text'; where images are mixed also 'label_b' (with 'weight_b')
        and 'lam'; `extra_crops`; and what `annotated` and `taught` have added.
      keys: (B,) typed PRNG keys, one an example, of everything random in the model and the objective. An
        example's randomness must depend on its own key only.
      data: the run's data options.

    Returns:
      float32 scalar, the mean over the examples, and name -> scalar mean; 'accuracy' is shown while training.
    """

  @abc.abstractmethod
  def head_size(self, classes: int, data: DataConfig) -> int:
    """Outputs of the head, of which data.num_classes may ask for more than there are classes; UserError for less."""

  @property
  def learns_from_ema(self) -> bool:
    """Whether the teacher is the model's own moving average (config.ema), which `taught` asks in each step."""
    return False

  @property
  def counts_classes(self) -> bool:
    """Whether `with_counts` needs the number of images of each class, for which the labels of all are read."""
    return False

  def with_counts(self, classes: int, counts: np.ndarray | None) -> Self:
    """The objective with what follows from the data's classes and the images of each, (classes,), if known.

    Raises UserError for options that do not fit so many classes.
    """
    del classes, counts
    return self

  def frozen_models(self) -> tuple[FrozenModel, ...]:
    """The models that `annotated` asks; each has the head's size."""
    return ()

  def annotated(self, batch: Batch, predictors: Sequence[Predictor]) -> Batch:
    """A batch with what the frozen models say of it, for `loss_and_metrics`; nothing of it has a gradient.

    There is a predictor for each of `frozen_models`, which resizes and scales the images that the trained model sees.
    """
    return batch

  def extra_crops(self, data: DataConfig) -> tuple[ExtraCrops, ...]:
    """Crops of each image beside 'image' of a batch, which has them by their names."""
    return ()

  def own_flops(self, architecture: Architecture) -> int:
    """FLOPs of an example in a training step beside the passes of its crops; of the architecture's image size."""
    del architecture
    return 0

  def taught(self, batch: Batch, teacher: Model, progress: jax.Array) -> Batch:
    """As `annotated`, by the model's moving average; `progress` is the share of the run that is done, float32."""
    return batch

  def warning(self, values: Mapping[str, float], progress: float) -> str | None:
    """A sentence where logged values ('train/…') say that nothing more is learned; it is said once."""
    return None

  @property
  def texts(self) -> Texts | None:
    """What makes a text for each image, 'text' of a batch, the numbers of its tokens, int32 (B, N); None: no texts."""
    return None

  def class_scores(self) -> 'ClassificationObjective | None':
    """What evaluation and probes ask of logits and the data's classes; None: logits are not of classes."""
    return None

  @property
  def link(self) -> Literal['softmax', 'sigmoid']:
    """What turns logits into probabilities: of one class an image, or of each class by itself."""
    return 'softmax'

  def class_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the head's outputs, given those of the data's classes; (): they have none."""
    return names

  def check_classes(self, names: tuple[str, ...], title: str) -> None:  # noqa: B027 (all data suits most)
    """Raises UserError for training data, which messages call `title`, whose classes leave nothing to learn."""

  def check_run(self, model: ModelConfig, data: DataConfig) -> None:
    """Raises UserError for a model or data that the objective cannot train."""
    for options, name, objective in _HEADLESS:
      if isinstance(model, options):
        raise UserError(
          f'config.model.name is {name!r}, which has no head for classes; choose --config.objective.name={objective}.'
        )
    if not model.classifies_images:
      raise UserError(
        "config.model.pool is 'none', which gives an image no logits; choose token, gap or map."
      )


class Headless(Objective):
  """An objective of a network without a head for classes, whose features alone are evaluated."""

  evaluators: ClassVar[tuple[str, ...]] = ('fewshot',)

  def head_size(self, classes: int, data: DataConfig) -> int:
    return 0

  def class_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
    return ()


def requested_classes(classes: int, data: DataConfig) -> int:
  """data.num_classes, or else the classes of the data; UserError where it is less than those."""
  if data.num_classes is None:
    return classes
  if data.num_classes < classes:
    raise UserError(
      f'config.data.num_classes is {data.num_classes}, but {data.title} has {classes} classes; '
      f'leave it out or raise it.'
    )
  return data.num_classes


def views(batch: Batch) -> jax.Array:
  """float32 (2 B, H, W, C): 'image' and the crop 'second' of each image, one after the other, and so on its device."""
  images = jnp.stack([batch['image'], batch['second'][:, 0]], axis=1)
  return images.reshape(-1, *images.shape[2:])


def check_crops(name: str, data: DataConfig) -> None:
  """Raises UserError, which begins with `name`, for data options that do not go with several crops of an image."""
  wrong = {'mixup': data.mixup_alpha, 'cutmix': data.cutmix, 'num_classes': data.num_classes}
  wrong |= {'progressive_resizing': data.progressive_resizing}
  for option, value in wrong.items():
    if value:
      raise UserError(f'{name}, which cannot be with config.data.{option} {value}; leave it out.')


OBJECTIVES: Registry[Objective] = Registry(
  'objective',
  {
    'classification': 'vit_jax.objectives.classification:ClassificationObjective',
    'contrastive': 'vit_jax.objectives.contrastive:ContrastiveObjective',
    'contrastive_views': 'vit_jax.objectives.contrastive_views:ContrastiveViewsObjective',
    'distillation': 'vit_jax.objectives.distillation:DistillationObjective',
    'mae': 'vit_jax.objectives.mae:MaeObjective',
    'masked_patches': 'vit_jax.objectives.masked_patches:MaskedPatchesObjective',
    'self_distillation': 'vit_jax.objectives.self_distillation:SelfDistillationObjective',
  },
)
