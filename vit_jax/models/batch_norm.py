"""Batch normalisation (arXiv 1502.03167), whose running statistics are the model's state and no parameters.

scale, bias (C,): nnx.Param          mean, var (C,): nnx.BatchStat
"""

from collections.abc import Collection

import jax
import jax.numpy as jnp
from flax import nnx


class BatchNorm(nnx.Module):
  """Normalises each channel over the batch and all positions, in float32.

  In training by the statistics of the whole global batch, on however many devices it lies: there the partitioner
  sums over all of them. Otherwise by the running statistics.
  """

  def __init__(self, features: int, *, momentum: float, epsilon: float, learns: bool = True):
    """
    Args:
      features: C.
      momentum: the share of the running statistics that a step keeps; PyTorch's is 1 minus this.
      epsilon: what is added to variances.
      learns: whether there are a scale and a bias.
    """
    self.scale = nnx.Param(jnp.ones(features, jnp.float32)) if learns else None
    self.bias = nnx.Param(jnp.zeros(features, jnp.float32)) if learns else None
    self.mean = nnx.BatchStat(jnp.zeros(features, jnp.float32))
    self.var = nnx.BatchStat(jnp.ones(features, jnp.float32))
    self.momentum = momentum
    self.epsilon = epsilon
    self.frozen = False

  def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
    """(B, H, W, C) -> (B, H, W, C), of the same dtype.

    With `train` it normalises by the batch, and moves the running statistics towards it: its mean, and its variance
    with Bessel's correction, as TensorFlow and PyTorch do. One that is `frozen` does neither, as Keras's.
    """
    mean, var = self.mean[...], self.var[...]
    if train and not self.frozen:
      count = x.size // x.shape[-1]
      batch_mean = x.astype(jnp.float32).mean(axis=(0, 1, 2))
      batch_var = _variance(x, batch_mean)
      self.mean.set_value(self._moved(mean, batch_mean))
      self.var.set_value(self._moved(var, batch_var * (count / max(count - 1, 1))))
      mean, var = batch_mean, batch_var
    scale = jnp.ones_like(mean) if self.scale is None else self.scale[...]
    bias = jnp.zeros_like(mean) if self.bias is None else self.bias[...]
    return _normalise(x, mean, var + self.epsilon, scale, bias)

  def _moved(self, running: jax.Array, batch: jax.Array) -> jax.Array:
    return self.momentum * running + (1 - self.momentum) * jax.lax.stop_gradient(batch)


def freeze(model: nnx.Module, trained: Collection[str]) -> None:
  """Freezes the norms of a network whose scale is not among the paths of the parameters that are `trained`."""
  for path, module in nnx.iter_modules(model):
    if isinstance(module, BatchNorm) and module.scale is not None:
      module.frozen = '/'.join(map(str, (*path, 'scale'))) not in trained


# Of both functions only the arguments are saved for the backward pass, and no float32 copy of x.


@jax.checkpoint
def _variance(x: jax.Array, mean: jax.Array) -> jax.Array:
  """float32 (C,): the mean square of x (B, H, W, C) around `mean`."""
  return jnp.square(x.astype(jnp.float32) - mean).mean(axis=(0, 1, 2))


@jax.checkpoint
def _normalise(x: jax.Array, mean: jax.Array, var: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
  y = (x.astype(jnp.float32) - mean) * jax.lax.rsqrt(var)
  return (y * scale + bias).astype(x.dtype)
