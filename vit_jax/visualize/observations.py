"""What a model does with an image, in numbers ready to be drawn."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.models import stack
from vit_jax.models.vit import ViT
from vit_jax.visualize import measures, model_parts


@dataclasses.dataclass(frozen=True)
class Seen:
  """One image, and what a model makes of it; None where it has no such thing (`absent` says why)."""

  name: str
  photograph: np.ndarray  # (H, W, C) in 0 … 1: cut and resized, as the model is given it
  predictions: tuple[tuple[str, float], ...]  # (class, probability) of the best three
  grid: measures.Grid | None  # patches down and across
  by: str  # who asks in `heads` and `rollout`: 'the class token', or 'the mean of all patches'
  heads: np.ndarray | None  # (L, H, rows, columns): attention to each patch
  rollout: np.ndarray | None  # (rows, columns)
  distances: np.ndarray | None  # (L, H): mean attention distance in pixels
  layers: np.ndarray | None  # (L + 1, rows, columns, 3) in 0 … 1: the tokens before, and behind each block


class Observer:
  """A model with its programs compiled: one for attention and logits, one for tokens. An image at a time,
  since the attention of all blocks is in memory at once."""

  def __init__(self, model: nnx.Module, class_names: tuple[str, ...] | None = None):
    """Args:
    model: of `vit_jax.load`.
    class_names: of the logits; None: the model's own, or numbers.
    """
    self.model = model
    self.class_names = class_names or model.class_names
    self.absent = model_parts.absent(model)
    self.grid = model_parts.patch_grid(model)
    self.reads_class_token = model_parts.reads_class_token(model)
    self._graphdef, self._params = nnx.split(model)
    self._attention = jax.jit(self._attend)
    self._tokens = jax.jit(self._pass_through)

  def look(self, image: Any, name: str = '') -> Seen:
    """Everything of one of Pillow's images, or uint8 pixels."""
    prepared = self.model.preprocess([image])
    found = jax.tree.map(np.asarray, self._attention(self._params, prepared))
    layers = None
    if 'layers' not in self.absent:
      layers = _colours(np.asarray(self._tokens(self._params, prepared), np.float32))
    return Seen(
      name=name,
      photograph=model_parts.photograph(self.model, prepared[0]),
      predictions=self._best(found['logits']),
      grid=self.grid,
      by='the class token' if self.reads_class_token else 'the mean of all patches',
      heads=found.get('heads'),
      rollout=found.get('rollout'),
      distances=found.get('distances'),
      layers=layers,
    )

  def distances(self, image: Any) -> np.ndarray:
    """(L, H): mean attention distance in one of Pillow's images, or uint8 pixels."""
    return np.asarray(self._attention(self._params, self.model.preprocess([image]))['distances'])

  def _attend(self, params: nnx.State, images: jax.Array) -> dict[str, jax.Array]:
    model = nnx.merge(self._graphdef, params)
    result = {'logits': model(images)[0]}
    if 'heads' not in self.absent:
      weights = model.attention(images)[:, 0]
      asked = functools.partial(measures.asked, grid=self.grid, class_token=self.reads_class_token)
      result['heads'] = asked(weights)
      result['rollout'] = asked(measures.rollout(weights))
      result['distances'] = measures.attention_distances(weights, self.grid, images.shape[1:3])
    return result

  def _pass_through(self, params: nnx.State, images: jax.Array) -> jax.Array:
    """(L + 1, rows, columns, D), of one image."""
    model = nnx.merge(self._graphdef, params)
    last, inputs = stack.apply(
      model.blocks,
      model.embed(images),
      None,
      model=model.config,
      depth=model.depth,
      shared=(self.grid,) if isinstance(model, ViT) else (),
      observe=lambda block, tokens: tokens,
    )
    rows, columns = self.grid
    return jnp.concatenate([inputs, last[None]])[:, 0, -rows * columns :].reshape(
      -1, rows, columns, last.shape[-1]
    )

  def _best(self, logits: np.ndarray, count: int = 3) -> tuple[tuple[str, float], ...]:
    if 'predictions' in self.absent:
      return ()
    shares = np.exp(logits.astype(np.float64) - logits.max())
    shares /= shares.sum()
    best = np.argsort(-shares, kind='stable')[:count]
    names = self.class_names or tuple(f'class {number}' for number in range(len(shares)))
    return tuple((names[number], float(shares[number])) for number in best)


def _colours(layers: np.ndarray) -> np.ndarray:
  """(L + 1, rows, columns, D) -> (L + 1, rows, columns, 3)."""
  result, before = [], None
  for tokens in layers:
    colours, before = measures.token_colours(tokens, before)
    result.append(colours)
  return np.stack(result)
