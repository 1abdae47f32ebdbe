"""Vision Transformers in JAX: `vit_jax.load(source)` gives a model of any checkpoint."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from vit_jax.loading import load

__all__ = ['__version__', 'load']

__version__: str


def __getattr__(name: str) -> Any:
  # Only here: importing vit_jax must not start JAX, for the commands tell a wrong flag before that.
  if name == 'load':
    from vit_jax.loading import load

    return load
  if name == '__version__':
    from importlib import metadata

    try:
      return metadata.version('vit_jax')
    except metadata.PackageNotFoundError:  # a clone that is on the path and not installed
      return '0+unknown'
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
