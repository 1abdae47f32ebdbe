"""The mean of several fine-tunings of one model: 'Model soups' (arXiv 2203.05482)."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import ModelConfig
from vit_jax.pretrained.base import UNTOLD_OPTIONS, Link, Pretrained


def of(first: Pretrained, others: Iterable[Pretrained]) -> Pretrained:
  """The first model with the mean of all parameters, added up in float64.

  Raises UserError where another is of other shapes or classes, or computes something else by the same parameters.
  """
  arrays = {path: array.astype(np.float64) for path, array in pytrees.flatten(first.params).items()}
  count = 1
  for count, other in enumerate(others, 2):
    flat = pytrees.flatten(other.params)
    same_shapes = {p: a.shape for p, a in flat.items()} == {p: a.shape for p, a in arrays.items()}
    same = _function(first) == _function(other) and first.class_names == other.class_names
    if not (same and same_shapes):
      raise UserError(
        f'Checkpoint {count} is of another model than the first, or of other classes; average fine-tunings of one '
        'model on the same classes.'
      )
    for path, array in flat.items():
      arrays[path] += array
  params = pytrees.unflatten({path: (array / count).astype(np.float32) for path, array in arrays.items()})
  notes = [f'The mean of {count} checkpoints; preprocessing and names of classes are those of the first.']
  if any(path.endswith('/var') for path in arrays):
    notes.append(
      'Batch norms have the mean of the running statistics, which are not those of the mean parameters: evaluate it.'
    )
  return dataclasses.replace(first, params=params, adapted=None, notes=(*first.notes, *notes))


def _function(pretrained: Pretrained) -> tuple[type[ModelConfig], dict[str, Any], Link]:
  """What a model computes by its parameters: its kind, its options and its link, but how other sizes are resized."""
  model = pretrained.architecture.model.resolved()
  options = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}
  return type(model), {name: options[name] for name in options.keys() - UNTOLD_OPTIONS}, pretrained.link
