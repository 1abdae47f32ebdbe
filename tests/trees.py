"""Trees of arrays, as checkpoints hold them: their shapes, and whether two have the same bits."""

from typing import Any

import jax
import numpy as np


def abstract(tree: Any) -> Any:
  """The shapes and dtypes of a tree, to ask for it."""
  return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def assert_same(ours: Any, expected: Any) -> None:
  """The same structure, shapes, dtypes and bits, those of NaN and of -0.0 included."""
  assert jax.tree.structure(ours) == jax.tree.structure(expected)
  for (path, one), two in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(expected), strict=True):
    assert (one.shape, one.dtype) == (two.shape, two.dtype), path
    assert np.asarray(one).tobytes() == np.asarray(two).tobytes(), path
