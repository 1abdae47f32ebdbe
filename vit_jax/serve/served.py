"""What the service asks of a model, and the models that give it."""

from collections.abc import Sequence
from typing import Protocol

import jax
import numpy as np

from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation.errors import UserError
from vit_jax.loaded_model import LoadedModel
from vit_jax.loading import load
from vit_jax.pretrained import class_names as class_names_lib
from vit_jax.pretrained.config import Weights
from vit_jax.visualize import model_parts
from vit_jax.visualize.observations import Observer


class Served(Protocol):
  """A model behind the service; threads may call it at the same time.

  Attributes:
    name: what people call it.
    description: its architecture, a line.
    preprocess: makes its input of pixels.
    num_classes: K; 0: it gives no classes.
    class_names: of the classes; None: they have numbers only.
    absent: 'predictions' or 'attention' -> why the model has none, a sentence.
    batch_size: images at a time that are enough where nobody says.
  """

  name: str
  description: str
  preprocess: Preprocess
  num_classes: int
  class_names: tuple[str, ...] | None
  absent: dict[str, str]
  batch_size: int

  def probabilities(self, images: np.ndarray) -> np.ndarray:
    """float32 (B, H, W, C) of `preprocess` -> float32 (B, K)."""
    ...

  def embeddings(self, images: np.ndarray) -> np.ndarray:
    """float32 (B, H, W, C) of `preprocess` -> float32 (B, D)."""
    ...

  def attention(self, image: np.ndarray) -> np.ndarray:
    """float32 (H, W, C) of `preprocess` -> uint8 (H, W, C): the photo, bright where the model looks."""
    ...


def load_checkpoint(
  place: str, weights: Weights | None, classes: Sequence[str] | None, class_names: str | None
) -> Served:
  """The model of a checkpoint.

  Args:
    place: what `vit_jax.load` takes.
    weights: as of `vit_jax.load`.
    classes: texts of which CLIP's or SigLIP's text tower makes the head.
    class_names: a file with a name a line, for a checkpoint that has none.

  Raises:
    UserError: there is no such checkpoint, or it does not fit what is asked for.
  """
  model = load(place, weights=weights, classes=classes)
  names = None if class_names is None else class_names_lib.read(class_names, model.num_classes)
  return _Checkpoint(place, model, names)


class _Checkpoint:
  """A `LoadedModel`, as `Served`."""

  def __init__(self, place: str, model: LoadedModel, class_names: tuple[str, ...] | None):
    self._model = model
    self.name = place.rstrip('/').rpartition('/')[2]  # where it lies is nobody's business
    self.description = model.config.describe()
    self.preprocess = model.preprocess
    self.class_names = class_names or model.class_names
    self.absent: dict[str, str] = {}
    try:
      model.check_classifies(self.name)
    except UserError as error:
      self.absent['predictions'] = f'{str(error).rstrip(".")}, or ask /embed for its embeddings.'
    self.num_classes = 0 if self.absent else model.num_classes
    # A processor computes eight images as fast, each, as more of them; an accelerator does not.
    self.batch_size = 8 if jax.default_backend() == 'cpu' else 64
    self._observer = Observer(model)
    if 'rollout' in self._observer.absent:
      self.absent['attention'] = self._observer.absent['rollout']

  def probabilities(self, images: np.ndarray) -> np.ndarray:
    return np.asarray(self._model.probabilities(self._model(images)))

  def embeddings(self, images: np.ndarray) -> np.ndarray:
    return np.asarray(self._model.embeddings(images))

  def attention(self, image: np.ndarray) -> np.ndarray:
    from vit_jax.visualize import figures  # matplotlib takes half a second

    lit = figures.lit(model_parts.photograph(self._model, image), self._observer.rollout(image[None]))
    return np.rint(255 * lit).astype(np.uint8)
