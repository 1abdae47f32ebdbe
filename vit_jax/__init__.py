"""Vision Transformers in JAX: `vit_jax.load(source)` gives a model of any checkpoint."""

from typing import Any

__all__ = ['load']


def __getattr__(name: str) -> Any:
  # Only here: importing vit_jax must not start JAX, for the commands tell a wrong flag before that.
  if name == 'load':
    from vit_jax.loading import load

    return load
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
