"""What a model is and has to show, whichever it is; and why it has no picture of something."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.errors import UserError
from vit_jax.models.variants import grid, resolve
from vit_jax.visualize import measures

# The pictures, in the order in which they are shown.
OF_MODEL = ('filters', 'positions', 'distances')
OF_IMAGE = ('patches', 'layers', 'heads', 'rollout')
TITLES = {
  'filters': 'Filters',
  'positions': 'Position embeddings',
  'distances': 'Attention distance',
  'patches': 'Patches',
  'layers': 'Through the layers',
  'heads': 'Attention of each head',
  'rollout': 'Attention rollout',
  'predictions': 'Predictions',
}


def absent(model: nnx.Module) -> dict[str, str]:
  """picture -> why the model has none of it, a sentence; 'predictions' too."""
  reasons = {}
  size, channels = model.preprocess.size, model.preprocess.channels
  try:
    jax.eval_shape(model.attention, jax.ShapeDtypeStruct((1, *size, channels), jnp.float32))
  except UserError as error:
    reasons |= dict.fromkeys(('distances', 'heads', 'rollout'), str(error))
  if _positions(model) is None:
    reasons['positions'] = _no_positions(model)
  if not hasattr(model, 'patch_embedding'):
    reason = 'A ResNet does not cut its images into patches and has no tokens.'
    reasons |= dict.fromkeys(('patches', 'layers'), reason)
  if not model.head.kernel.shape[-1]:
    reasons['predictions'] = 'The checkpoint has no head and cannot classify.'
  elif model.config.pool == 'none':
    reasons['predictions'] = 'The checkpoint gives logits of every token, not of the image.'
  return reasons


def grouped(absent: Mapping[str, str]) -> list[tuple[str, str]]:
  """(titles of pictures, why the model has none of them), what has the same reason together."""
  groups: dict[str, list[str]] = {}
  for picture, reason in absent.items():
    groups.setdefault(reason, []).append(TITLES[picture])
  return [(', '.join(titles), reason) for reason, titles in groups.items()]


def _no_positions(model: nnx.Module) -> str:
  match getattr(model.config, 'position', None):
    case _ if model.config.tokens_mlp_dim is not None:
      return 'An MLP-Mixer has no position embedding: its MLPs over the tokens have weights for each place.'
    case _ if not hasattr(model, 'patch_embedding'):
      return 'A ResNet has no position embedding.'
    case 'none':
      return "The model knows nothing of positions: its config.model.position is 'none'."
    case other:
      return f'Nothing is added to the tokens: attention itself knows of positions ({other!r}).'


def _positions(model: nnx.Module) -> np.ndarray | None:
  """(N, D) of the model's own grid."""
  positions = getattr(model, 'positions', lambda size: None)(model.preprocess.size)
  return None if positions is None else np.asarray(positions, np.float32)[0]


def position_similarity(model: nnx.Module) -> np.ndarray:
  """(rows, columns, rows, columns): measures.position_similarity of a model that has an embedding."""
  return measures.position_similarity(_positions(model), patch_grid(model))


def filters(model: nnx.Module) -> tuple[str, np.ndarray]:
  """What the filters are called, and (height, width, C, D): those that meet the image's pixels.

  Of a hybrid and of a ResNet these are the root's: a patch of theirs is one of feature maps.
  """
  root = getattr(model, 'stem', None)
  if root is None and hasattr(model, 'patch_embedding'):
    kernel = model.patch_embedding.kernel[...]
    return 'patch embedding', np.asarray(kernel, np.float32)
  return "ResNet's first convolution", np.asarray((root or model).root.kernel[...], np.float32)


def patch_grid(model: nnx.Module) -> measures.Grid | None:
  """Rows and columns of patches; None: the model has none."""
  if not hasattr(model, 'patch_embedding'):
    return None
  return grid(resolve(model.config), model.preprocess.size)


def reads_class_token(model: nnx.Module) -> bool:
  """Whether the head reads a class token (perhaps beside others): then its attention is what one looks at."""
  return getattr(model, 'class_token', None) is not None and model.config.pool not in ('gap', 'map')


def has_other_tokens(model: nnx.Module) -> bool:
  """Whether there are tokens that are no patches: a class token, registers."""
  return any(getattr(model, name, None) is not None for name in ('class_token', 'register_tokens'))


def photograph(model: nnx.Module, prepared: np.ndarray) -> np.ndarray:
  """(H, W, C) as the model is given it -> (H, W, C) in 0 … 1."""
  preprocess = model.preprocess
  return np.clip(prepared * np.asarray(preprocess.std) + np.asarray(preprocess.mean), 0, 1)


def describe(model: nnx.Module) -> str:
  """'Vision Transformer, 12 blocks of width 768, 12 heads, pool 'token''."""
  sizes = resolve(model.config)
  if not hasattr(model, 'patch_embedding'):
    units = ' + '.join(map(str, sizes.resnet_blocks))
    return f'ResNet of {units} bottlenecks behind a root of {sizes.width} channels'
  kind = 'Vision Transformer'
  if sizes.tokens_mlp_dim is not None:
    kind = 'MLP-Mixer'
  elif sizes.stem_blocks is not None:
    kind = 'Hybrid: a ResNet, and a Vision Transformer'
  parts = [kind, f'{sizes.depth} blocks of width {sizes.width}']
  if sizes.heads is not None:
    parts.append(f'{sizes.heads} heads')
  return ', '.join([*parts, f'pool {model.config.pool!r}'])
