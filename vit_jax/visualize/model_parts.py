"""What a loaded model has to show, and why it has no picture of something."""

from collections.abc import Mapping

import numpy as np

from vit_jax.loaded_model import LoadedModel
from vit_jax.models.capabilities import Attends, Grid, HasTokens, Positioned
from vit_jax.visualize import measures

# The pictures, in the order in which they are shown.
OF_MODEL = ('filters', 'positions', 'distances', 'pca')
OF_IMAGE = ('patches', 'layers', 'heads', 'rollout')
TITLES = {
  'filters': 'Filters',
  'positions': 'Position embeddings',
  'distances': 'Attention distance',
  'pca': 'Foreground',
  'patches': 'Patches',
  'layers': 'Through the layers',
  'heads': 'Attention of each head',
  'rollout': 'Attention rollout',
  'steps': 'Through training',
  'animation': 'Through training, as an animation',
  'predictions': 'Predictions',
}


def absent(model: LoadedModel) -> dict[str, str]:
  """Picture -> why the model has none of it, a sentence; 'predictions' too."""
  reasons: dict[str, str] = {}
  title = model.config.title[0].upper() + model.config.title[1:]
  module = model.module
  if not isinstance(module, Attends):
    reason = f'{title} has no attention to show; choose a Vision Transformer or a hybrid.'
    reasons |= dict.fromkeys(('distances', 'heads', 'rollout'), reason)
  if _positions(model) is None:
    reasons['positions'] = (
      module.without_positions() if isinstance(module, Positioned) else f'{title} has no position embedding.'
    )
  if patch_grid(model) is None:
    reason = f'{title} does not cut its images into patches and has no tokens.'
    reasons |= dict.fromkeys(('patches', 'layers'), reason)
  if not model.num_classes:
    reasons['predictions'] = 'The checkpoint has no head and cannot classify.'
  elif not model.config.classifies_images:
    reasons['predictions'] = 'The checkpoint gives logits of every token, not of the image.'
  return reasons


def grouped(absent: Mapping[str, str]) -> list[tuple[str, str]]:
  """(titles of pictures, why the model has none of them): pictures with the same reason together."""
  groups: dict[str, list[str]] = {}
  for picture, reason in absent.items():
    groups.setdefault(reason, []).append(TITLES[picture])
  return [(', '.join(titles), reason) for reason, titles in groups.items()]


def _positions(model: LoadedModel) -> np.ndarray | None:
  """(N, D) of the model's own grid."""
  module = model.module
  positions = module.positions(model.preprocess.size) if isinstance(module, Positioned) else None
  return None if positions is None else np.asarray(positions, np.float32)[0]


def position_similarity(model: LoadedModel) -> np.ndarray:
  """(rows, columns, rows, columns): measures.position_similarity of a model that has an embedding."""
  positions, grid = _positions(model), patch_grid(model)
  if positions is None or grid is None:
    raise ValueError('the model has no position embedding')
  return measures.position_similarity(positions, grid)


def filters(model: LoadedModel) -> tuple[str, np.ndarray]:
  """The filters' name, and their kernel (height, width, C, D): those that meet the image's pixels."""
  return model.config.first_layer.name, np.asarray(model.first_kernel, np.float32)


def patch_grid(model: LoadedModel) -> Grid | None:
  """Rows and columns of patches; None: the model has no tokens."""
  return model.config.grid(model.preprocess.size) if isinstance(model.module, HasTokens) else None


def covered(model: LoadedModel) -> tuple[int, int]:
  """Height and width of the pixels in the model's patches: all that it is given, where it has none or cuts none."""
  size = model.preprocess.size
  return size if patch_grid(model) is None else model.config.covered(size)


def photograph(model: LoadedModel, prepared: np.ndarray) -> np.ndarray:
  """(H, W, C) as the model is given it -> (h, w, C) in 0 … 1: what its patches hold of it."""
  preprocess = model.preprocess
  height, width = covered(model)
  prepared = prepared[:height, :width]
  return np.clip(prepared * np.asarray(preprocess.std) + np.asarray(preprocess.mean), 0, 1)
