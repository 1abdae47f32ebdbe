"""The errors that callers catch; `vit_jax.foundation.errors` defines them."""

from vit_jax.foundation.errors import Preempted, UserError

__all__ = ['Preempted', 'UserError']
