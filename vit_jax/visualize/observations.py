"""What a model does with an image, in numbers ready to be drawn."""

import dataclasses
from typing import Any

import numpy as np
from PIL import Image

from vit_jax.loaded_model import LoadedModel
from vit_jax.models.capabilities import Attends, Grid, leading_tokens
from vit_jax.visualize import measures, model_parts


@dataclasses.dataclass(frozen=True)
class Observation:
  """One image and what a model makes of it; None where it has no such thing (`Observer.absent` says why)."""

  name: str
  photograph: np.ndarray  # (H, W, C) in 0 … 1: cut and resized, as the model sees it
  predictions: tuple[tuple[str, float], ...]  # (class, probability) of the best three
  grid: Grid | None  # patches down and across
  attending: str  # whose attention `heads` and `rollout` show: 'the class token' or 'the mean of all patches'
  heads: np.ndarray | None  # (L, H, rows, columns): attention to each patch
  rollout: np.ndarray | None  # (rows, columns)
  distances: np.ndarray | None  # (L, H): mean attention distance in pixels
  layers: np.ndarray | None  # (L + 1, rows, columns, 3) in 0 … 1: the tokens before and after each block
  features: np.ndarray  # float32 (h, w, D): the patches (cells of a feature map) after the last norm


class Observer:
  """Looks at images through a model, one at a time: the attention of all blocks is in memory at once.

  Attributes:
    model: of `vit_jax.load`.
    class_names: of the logits; None: they are shown as numbers.
    absent: picture -> why the model has none of it.
    grid: rows and columns of patches; None: it has none.
    reads_class_token: whether the head reads a class token.
  """

  def __init__(self, model: LoadedModel, class_names: tuple[str, ...] | None = None):
    """Without `class_names` the logits have the model's own, or numbers."""
    self.model = model
    self.class_names = class_names or model.class_names
    self.absent = model_parts.absent(model)
    self.grid = model_parts.patch_grid(model)
    module = model.module
    self.reads_class_token = isinstance(module, Attends) and module.reads_class_token

  def look(self, image: Image.Image | np.ndarray, name: str = '') -> Observation:
    """Everything of one of Pillow's images, or uint8 pixels."""
    prepared = self.model.preprocess([image])
    weights = self._attention(prepared)
    found: dict[str, Any] = dict.fromkeys(('heads', 'rollout', 'distances'))
    if weights is not None and self.grid is not None:
      token = self.reads_class_token
      found['heads'] = np.asarray(measures.attention_from(weights, grid=self.grid, class_token=token))
      found['rollout'] = self._rollout(weights)
      found['distances'] = self._distances(weights)
    return Observation(
      name=name,
      photograph=model_parts.photograph(self.model, prepared[0]),
      predictions=self._best(prepared),
      grid=self.grid,
      attending='the class token' if self.reads_class_token else 'the mean of all patches',
      layers=_colours(self._tokens(prepared)),
      features=np.asarray(self.model.feature_maps(prepared)[0], np.float32),
      **found,
    )

  def distances(self, image: Image.Image | np.ndarray) -> np.ndarray:
    """(L, H): mean attention distance in one of Pillow's images, or uint8 pixels; the model has attention."""
    weights = self._attention(self.model.preprocess([image]))
    assert weights is not None
    return self._distances(weights)

  def rollout(self, prepared: np.ndarray) -> np.ndarray:
    """(1, H, W, C) of the model's preprocess -> (rows, columns): attention rollout; the model has attention."""
    return self._rollout(self._attention(prepared))

  def _rollout(self, weights: Any) -> np.ndarray:
    assert self.grid is not None
    rollout = np.asarray(measures.rollout(weights))
    return measures.attention_from(rollout, grid=self.grid, class_token=self.reads_class_token)

  def _attention(self, prepared: np.ndarray) -> Any:
    """(L, H, N, N) of one prepared image; None: the model has no attention."""
    weights = self.model.attention(prepared)
    return None if weights is None else weights[:, 0]

  def _distances(self, weights: Any) -> np.ndarray:
    assert self.grid is not None
    return np.asarray(measures.attention_distances(weights, self.grid, model_parts.covered(self.model)))

  def tokens(self, image: Image.Image | np.ndarray) -> np.ndarray | None:
    """float32 (L + 1, rows, columns, D): an image's patches before the first block and after each.

    None where the model has no tokens.
    """
    return self._tokens(self.model.preprocess([image]))

  def _tokens(self, prepared: np.ndarray) -> np.ndarray | None:
    """As `tokens`, of one prepared image."""
    states = self.model.hidden_states(prepared)
    if states is None or self.grid is None:
      return None
    patches = np.asarray(states[:, 0, leading_tokens(self.model.module) :], np.float32)
    return patches.reshape(len(patches), *self.grid, -1)

  def _best(self, prepared: np.ndarray, count: int = 3) -> tuple[tuple[str, float], ...]:
    """(class, probability) of the most probable classes."""
    if 'predictions' in self.absent:
      return ()
    probabilities = np.asarray(self.model.probabilities(self.model(prepared)))[0]
    best = np.argsort(-probabilities, kind='stable')[:count]
    names = self.class_names or tuple(f'class {number}' for number in range(len(probabilities)))
    return tuple((names[number], float(probabilities[number])) for number in best)


def _colours(layers: np.ndarray | None) -> np.ndarray | None:
  """(L + 1, rows, columns, D) -> (L + 1, rows, columns, 3): the tokens as colours."""
  if layers is None:
    return None
  result, before = [], None
  for tokens in layers:
    colours, before = measures.token_colours(tokens, before)
    result.append(colours)
  return np.stack(result)
