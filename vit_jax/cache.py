"""What can be had again, but at a cost, kept in a folder of the user's."""

import logging
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Mapping

import numpy as np


def directory() -> pathlib.Path:
  """~/.cache/vit_jax, or vit_jax in $XDG_CACHE_HOME.

  Raises:
    RuntimeError: there is no home directory.
  """
  return pathlib.Path(os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache') / 'vit_jax'


def load_arrays(name: str) -> dict[str, np.ndarray] | None:
  """What `save_arrays` kept under a name; None where there is nothing, or nothing sound."""
  try:
    with np.load(_path(name), allow_pickle=False) as file:
      return dict(file)
  except (OSError, RuntimeError, ValueError, EOFError, zipfile.BadZipFile):
    return None


def save_arrays(name: str, arrays: Mapping[str, np.ndarray]) -> None:
  """Keeps arrays under a name, such as 'folders/1234'; where that fails, a warning says so."""
  try:
    path = _path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
      np.savez(file, **arrays)
    os.replace(file.name, path)
  except (OSError, RuntimeError) as error:
    logging.warning('%s is not kept for the next run (%s), which will do its work again.', name, error)


def _path(name: str) -> pathlib.Path:
  return directory() / f'{name}.npz'
