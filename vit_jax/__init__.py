"""Vision Transformers in JAX: `vit_jax.load(source)` gives a model of any checkpoint."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from vit_jax.loading import LoadedModel, load

__all__ = ['LoadedModel', '__version__', 'load']

__version__: str


def __getattr__(name: str) -> Any:
  # Importing vit_jax must not import JAX: the commands tell a wrong flag before that.
  if name in ('LoadedModel', 'load'):
    from vit_jax import loading

    return getattr(loading, name)
  if name == '__version__':
    from importlib import metadata

    try:
      return metadata.version('vit_jax')
    except metadata.PackageNotFoundError:  # a clone that is on the path and not installed
      return '0+unknown'
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
