"""MLPs of encoder blocks, by the names that config.model.mlp has.

An MLP is made as `MLPS[name](width, hidden, activation=…, sub_norm=…, dropout=…, dtype=…, sharding=…, rngs=…)` and
called with the tokens (B, N, D), the keys of its dropout and the grid of the patches. It has the sharding rules of its
parameters and says how many multiplications it takes.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import initializers
from flax.typing import Initializer
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.foundation.registry import Registry
from vit_jax.models import depthwise_convolution, flops
from vit_jax.models.base import ShardingRules
from vit_jax.models.dense_product import Dense
from vit_jax.models.dropout import Place, dropout
from vit_jax.models.layers import XAVIER
from vit_jax.models.parts import activations
from vit_jax.models.scanned_blocks import constrain_examples, named_products
from vit_jax.models.token_weights import Places

MLPS: Registry[Any] = Registry(
  'MLP',
  {
    'dense': 'vit_jax.models.parts.mlps:Mlp',
    'local': 'vit_jax.models.parts.mlps:LocalMlp',
    'swiglu': 'vit_jax.models.parts.mlps:SwiGlu',
  },
)

_NEAR_ZERO = initializers.normal(1e-6)
# The layers that meet the tokens.
_FIRST = nnx.Any(nnx.PathContains('dense_in'), nnx.PathContains('dense_gate'))


class Mlp(nnx.Module):
  """Two dense layers with an activation between them (paper, section 3.1)."""

  needs_grid: ClassVar[bool] = False  # whether it needs every patch in its place on the grid
  sharding_rules: ClassVar[ShardingRules] = (
    (r'dense_in/kernel', ('fsdp', 'tensor')),  # (D, M)
    (r'dense_in/bias', ('tensor',)),  # (M,)
    (r'dense_out/kernel', ('fsdp', None), ('tensor', 'fsdp')),  # (M, D)
    (r'dense_out/bias', ()),
  )

  # Ten parameters: the sizes, what stands between the layers, and what every layer takes (dtype, sharding, rngs).
  def __init__(
    self,
    width: int,
    hidden: int,
    *,
    activation: str = 'gelu_tanh',
    sub_norm: Callable[[int], nnx.Module] | None = None,
    kernel_init: Initializer = XAVIER,
    bias_init: Initializer = _NEAR_ZERO,
    dropout: float = 0.0,
    dtype: jnp.dtype | type = jnp.float32,
    sharding: NamedSharding | None = None,
    rngs: nnx.Rngs,
  ):
    """
    Args:
      width, hidden: D and M.
      activation: a name in `activations.ACTIVATIONS`.
      sub_norm: makes the norm of the hidden units before the last layer; or None.
      kernel_init, bias_init: of both layers.
      dropout: of hidden units and outputs.
    """
    options = {
      'kernel_init': kernel_init,
      'bias_init': bias_init,
      'dtype': dtype,
      'sharding': sharding,
      'rngs': rngs,
    }

    def linear(inputs: int, outputs: int) -> Dense:
      return Dense((inputs,), (outputs,), **options)

    self.make_layers(linear, width, hidden)
    self.dense_out = linear(hidden, width)
    self.sub_norm: Any = sub_norm and sub_norm(hidden)
    self.activation = activation
    self.dropout = dropout
    self.sharding = sharding

  @staticmethod
  def multiplications(tokens: int, patches: int, width: int, hidden: int) -> int:
    """Multiplications for one image (models/flops.py), `patches` of whose `tokens` are on the grid."""
    return flops.mlp(tokens, width, hidden)

  def __call__(self, x: jax.Array, *, keys: jax.Array | None = None, grid: Places | None = None) -> jax.Array:
    """(B, N, D) -> (B, N, D), the patches last, whose `grid` only some MLPs need; `keys` are (B,) of the dropout."""
    graphdef, first, params = nnx.split(self, _FIRST, ...)

    # Of the arrays with M hidden units, only the activation's input and a convolution's result are saved for the
    # backward pass.
    @functools.partial(jax.checkpoint, prevent_cse=False, policy=named_products)
    def activate_and_project(params: nnx.State, hidden: Any, keys: jax.Array | None) -> jax.Array:
      mlp = nnx.merge(graphdef, first, params)
      x = dropout(mlp.activate(hidden, grid), mlp.dropout, keys, Place.MLP_HIDDEN)
      return mlp.dense_out(x if mlp.sub_norm is None else mlp.sub_norm(x))

    hidden = jax.tree.map(lambda y: constrain_examples(y, self.sharding), self.enter(x))
    x = activate_and_project(params, hidden, keys)
    return dropout(x, self.dropout, keys, Place.MLP_OUT)

  def make_layers(self, linear: Callable[[int, int], Dense], width: int, hidden: int) -> None:
    """The layers that meet the tokens."""
    self.dense_in = linear(width, hidden)

  def enter(self, x: jax.Array) -> Any:
    """(B, N, D) -> (B, N, M), or several such: what `activate` gets."""
    return self.dense_in(x)

  def activate(self, hidden: Any, grid: Places | None) -> jax.Array:
    """(B, N, M) -> (B, N, M): what stands between the layers."""
    return activations.activate(self.activation, hidden, self.sharding)


class SwiGlu(Mlp):
  """Two layers side by side, of which the activated one, the gate, multiplies the other (arXiv 2002.05202)."""

  sharding_rules: ClassVar[ShardingRules] = (
    *Mlp.sharding_rules,
    (r'dense_gate/kernel', ('fsdp', 'tensor')),  # (D, M)
    (r'dense_gate/bias', ('tensor',)),  # (M,)
  )

  @staticmethod
  def multiplications(tokens: int, patches: int, width: int, hidden: int) -> int:
    return flops.mlp(tokens, width, hidden) * 3 // 2

  def make_layers(self, linear: Callable[[int, int], Dense], width: int, hidden: int) -> None:
    super().make_layers(linear, width, hidden)
    self.dense_gate = linear(width, hidden)

  def enter(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return self.dense_gate(x), self.dense_in(x)

  def activate(self, hidden: tuple[jax.Array, jax.Array], grid: Places | None) -> jax.Array:
    gate, value = hidden
    return activations.activate(self.activation, gate, self.sharding) * value


class LocalMlp(Mlp):
  """GELU, a depthwise convolution of the patches and GELU: LocalViT (arXiv 2104.05707, equation 5).

  With GELU as its nonlinearity and without batch normalisation. Tokens that are no patches skip the convolution.
  """

  needs_grid = True
  sharding_rules: ClassVar[ShardingRules] = (
    *Mlp.sharding_rules,
    (r'depthwise/(kernel|bias)', ('tensor',)),  # (3, 3, M), (M,)
  )

  def __init__(self, width: int, hidden: int, *, dtype: Any = jnp.float32, rngs: nnx.Rngs, **options: Any):
    """As `Mlp`."""
    super().__init__(width, hidden, dtype=dtype, rngs=rngs, **options)
    self.depthwise = Depthwise(hidden, dtype=dtype, sharding=self.sharding, rngs=rngs)

  @staticmethod
  def multiplications(tokens: int, patches: int, width: int, hidden: int) -> int:
    return flops.mlp(tokens, width, hidden) + patches * 3**2 * hidden

  def activate(self, hidden: jax.Array, grid: Places | None) -> jax.Array:
    assert isinstance(grid, tuple), 'an MLP with locality is given the grid of its patches'
    activation = functools.partial(activations.activate, self.activation, sharding=self.sharding)
    others, patches = jnp.split(activation(hidden), [hidden.shape[1] - math.prod(grid)], axis=1)
    return jnp.concatenate([others, activation(self.depthwise(patches, grid))], axis=1)


class Depthwise(nnx.Module):
  """A 3 x 3 convolution of each channel by itself on the grid of patches, padded with zeros."""

  def __init__(self, channels: int, *, dtype: jnp.dtype, sharding: NamedSharding | None, rngs: nnx.Rngs):
    """`sharding` is that of the tokens, whose examples and hidden units stay where they are."""
    shape = (3, 3, channels)
    self.kernel = nnx.Param(initializers.lecun_normal()(rngs.params(), shape, jnp.float32))  # of nine inputs
    self.bias = nnx.Param(jnp.zeros(channels))
    self.dtype = dtype
    self.sharding = None if sharding is None else _of_hidden_units(sharding, channels)

  def __call__(self, x: jax.Array, grid: tuple[int, int]) -> jax.Array:
    """(B, N, C) -> (B, N, C), N being the rows times the columns of `grid`, row by row."""
    kernel = self.kernel[...].astype(self.dtype)
    out = depthwise_convolution.convolve(
      x.reshape(x.shape[0], *grid, -1), kernel, padding=((1, 1), (1, 1)), sharding=self.sharding
    )
    return out.reshape(x.shape) + self.bias[...].astype(self.dtype)


def _of_hidden_units(tokens: NamedSharding, units: int) -> NamedSharding:
  """The sharding of (B, rows, columns, units), given that of the tokens (B, N, D)."""
  splits = units % tokens.mesh.shape.get('tensor', 1) == 0
  return NamedSharding(tokens.mesh, PartitionSpec(tokens.spec[0], None, None, 'tensor' if splits else None))
