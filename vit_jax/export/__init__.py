"""Models for elsewhere: `vit_jax export` writes them as ONNX or StableHLO, and `read` calls what it has written."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from vit_jax.export.exported import Exported, read

__all__ = ['Exported', 'read']


def __getattr__(name: str) -> Any:
  if name in __all__:  # late, so that the command tells a wrong flag before anything is loaded
    from vit_jax.export import exported

    return getattr(exported, name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
