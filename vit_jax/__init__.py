"""Vision Transformers in JAX: `vit_jax.load(source)` gives a model of any checkpoint, `list_models()` names some."""

import gc
import os.path
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from vit_jax.loaded_model import LoadedModel
  from vit_jax.loading import load
  from vit_jax.pretrained.published_models import list_models

__all__ = ['LoadedModel', '__version__', 'list_models', 'load']

__version__: str


def __getattr__(name: str) -> Any:
  # Importing vit_jax must not import JAX: the commands tell a wrong flag before that.
  if name in ('LoadedModel', 'load'):
    from vit_jax import loading

    return getattr(loading, name)
  if name == 'list_models':
    from vit_jax.pretrained.published_models import list_models

    return list_models
  if name == '__version__':
    from importlib import metadata

    try:
      return metadata.version('vit_jax')
    except metadata.PackageNotFoundError:  # a clone that is on the path and not installed
      return '0+unknown'
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return sorted(__all__)


def _begins_a_command() -> bool:
  """Whether this import is the first that `python -m vit_jax…`, or the script `vit_jax`, does."""
  if sys.argv[:1] == ['-m']:  # what Python writes there until it has found the module
    return any(word.removeprefix('-m').partition('.')[0] == __name__ for word in sys.orig_argv)
  return bool(sys.argv) and os.path.basename(sys.argv[0]) == __name__


if _begins_a_command():
  from vit_jax.foundation import allocator, signals

  # By its default of 700 objects, a sixth of the time of imports and of tracing is spent on looking for no garbage.
  gc.set_threshold(50_000)
  allocator.keep_freed_memory()  # before the first thread, which NumPy starts
  signals.end_at_interrupt().start()  # Ctrl-C may come while the other modules are imported
