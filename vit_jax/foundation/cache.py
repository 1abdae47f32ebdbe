"""The user's cache folder: things that can be made again, at a cost."""

import hashlib
import logging
import os
import pathlib
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

_log = logging.getLogger(__name__)


def directory() -> pathlib.Path:
  """The cache folder: ~/.cache/vit_jax, or vit_jax in $XDG_CACHE_HOME; RuntimeError without a home directory."""
  return pathlib.Path(os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache') / 'vit_jax'


def folder_of(kind: str, address: str) -> pathlib.Path:
  """The folder for what belongs to an address, below one for its kind, such as 'runs'; nothing is made."""
  return directory() / kind / hashlib.sha256(address.encode(errors='surrogatepass')).hexdigest()[:32]


def load_arrays(name: str) -> dict[str, np.ndarray] | None:
  """The arrays that `save_arrays` kept under a name; None if there are none, or they are damaged."""
  try:
    with np.load(_path(name), allow_pickle=False) as file:
      return dict(file)
  except (OSError, RuntimeError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error):
    return None


def save_arrays(name: str, arrays: Mapping[str, np.ndarray]) -> None:
  """Keeps arrays under a name such as 'folders/1234'. If that fails, it logs a warning."""
  try:
    path = _path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
      try:
        np.savez(file, **cast(dict[str, Any], arrays))
        file.flush()
        os.replace(file.name, path)
      except BaseException:
        os.unlink(file.name)
        raise
  except (OSError, RuntimeError) as error:
    _log.warning('%s is not kept for the next run (%s), which will do its work again.', name, error)


def _path(name: str) -> pathlib.Path:
  return directory() / f'{name}.npz'
