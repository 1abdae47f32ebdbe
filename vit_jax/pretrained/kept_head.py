"""A checkpoint's head for the classes of a run's data: its rows in their order, matched by name."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from vit_jax.foundation import class_matching, pytrees
from vit_jax.foundation.class_matching import NEW, By
from vit_jax.pretrained.base import Pretrained

HEADS = ('head/', 'distillation_head/')  # the last axis of their arrays is that of the classes


def matched(
  pretrained: Pretrained,
  class_names: Sequence[str],
  outputs: int,
  *,
  what: str,
  remedy: str,
  by: By = 'name',
  complete: bool = True,
) -> Pretrained:
  """The checkpoint with the rows of its head where the classes of the data stand; a note says what was moved.

  Outputs beyond the classes (data.num_classes) get the rows that no class has, in their order.

  Args:
    pretrained: has a head.
    class_names: of the data.
    outputs: of the head that is wanted.
    what, remedy, by, complete: see `class_matching.rows`.

  Returns:
    Where `complete` is False, arrays of the head may be masked: what is masked begins anew.

  Raises:
    UserError: the classes do not agree.
  """
  there = pretrained.architecture.num_classes
  names = pretrained.class_names or ()
  rows, notes = class_matching.rows(
    names, class_names, outputs=there, what=what, remedy=remedy, by=by, complete=complete, wanted=outputs
  )
  rest = np.setdiff1d(np.arange(there), rows)[: outputs - len(rows)]
  order = np.concatenate([rows, rest, np.full(outputs - len(rows) - len(rest), NEW)])
  pretrained = dataclasses.replace(pretrained, notes=(*pretrained.notes, *notes))
  if np.array_equal(order, np.arange(there)):
    return pretrained
  params = pytrees.flatten(pretrained.params)
  for path in params:
    if path.startswith(HEADS):
      params[path] = _ordered(params[path], order)
  architecture = dataclasses.replace(pretrained.architecture, num_classes=outputs)
  return dataclasses.replace(
    pretrained, architecture=architecture, params=pytrees.unflatten(params), class_names=None
  )


def _ordered(array: np.ndarray, order: np.ndarray) -> np.ndarray:
  """(…, K) -> (…, outputs): rows in an order; those that are NEW are zeros, and masked."""
  new = np.broadcast_to(order == NEW, (*array.shape[:-1], len(order)))
  rows = np.where(new, 0, array[..., order]).astype(array.dtype)
  return np.ma.MaskedArray(rows, new) if new.any() else rows
