"""Vision Transformers in JAX: `vit_jax.load(source)` gives a model of any checkpoint."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from vit_jax.loading import LoadedModel, load

__all__ = ['LoadedModel', 'load']


def __getattr__(name: str) -> Any:
  # Importing vit_jax must not import JAX: the commands tell a wrong flag before that.
  if name in __all__:
    from vit_jax import loading

    return getattr(loading, name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
