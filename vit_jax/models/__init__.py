"""The models: `build` makes one from a config."""

from vit_jax.models.vit import build

__all__ = ['build']
