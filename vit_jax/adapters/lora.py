"""LoRA and DoRA: what fine-tuning changes of a kernel W is a product of two thin matrices, and W itself stays.

LoRA (arXiv 2106.09685, section 4.1) computes x W + alpha / rank * x A B, with A (inputs, rank) and B (rank, outputs).
DoRA (arXiv 2402.09353, equation 5) learns the length m of each column beside: m (W + s A B) / |W + s A B|, where s is
alpha / rank. Both begin as PEFT does, at the base model: A is uniform, B zero, m the length of the columns of W.

A path is that of a kernel in the base; its weights lie beside it, 'blocks/attention/query/lora_a' beside
'blocks/attention/query/kernel', and are stacked as it is. Kernels are reshaped to matrices: of attention's (D, H, Dh)
the heads are outputs, of (H, Dh, D) inputs, and of a convolution's (h, w, C, outputs) all but the outputs.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import DType, Model, ShardingRules
from vit_jax.models.dropout import dropout, fold_in
from vit_jax.options import Amount, Positive, Rate, Regex

Params = dict[str, Any]
LORA_A, LORA_B, MAGNITUDE = NAMES = 'lora_a', 'lora_b', 'magnitude'
# They are small beside their kernels: every device has them whole.
SHARDING_RULES: ShardingRules = ((rf'.*/({LORA_A}|{LORA_B}|{MAGNITUDE})', ()),)
PLACE = 2**20  # number that is folded into keys for adapters; those below are the blocks' own


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
  """Fine-tuning of a few parameters beside the frozen model of init.checkpoint, which checkpoints do not hold."""

  # Rank of the change of each kernel. 0 for no adapter: all parameters are trained and saved.
  rank: Amount = 0
  # Alpha: the change is multiplied by alpha / rank.
  alpha: Positive = 16.0
  # Regex of the paths of the kernels that get an adapter; 'blocks/.*kernel' for all those of the blocks.
  targets: Regex = r'attention/(query|value)/kernel$'
  # Dropout rate of the adapters' inputs, for dense layers only.
  dropout: Rate = 0.0
  # Weight-decomposed adapters (DoRA), which learn the length of each column of a kernel too.
  dora: bool = False
  # Regexes of the other parameters that are trained and saved.
  trained: tuple[Regex, ...] = ('^head/', '^distillation_head/')
  # Number format of the frozen kernels; 'bfloat16' halves their memory.
  base_dtype: DType = 'float32'

  @property
  def scale(self) -> float:
    """The factor of A B."""
    return self.alpha / self.rank


def targets(model: Model, adapter: AdapterConfig) -> dict[str, tuple[int, int]]:
  """Path of a kernel that gets an adapter -> its leading axes of a stack, and its axes of inputs behind them.

  Raises UserError where the regex matches none, one that is trained itself, or dropout a convolution.
  """
  found = {}
  for path, layer in _layers(model):
    if re.search(adapter.targets, path):
      dense = isinstance(layer, nnx.Linear | nnx.LinearGeneral)
      if adapter.dropout and not dense:
        raise UserError(
          f'config.adapter.targets matches {path}, which is no dense layer, and config.adapter.dropout is for those; '
          'set it to 0, or match others.'
        )
      outputs = len(layer.out_features) if isinstance(layer, nnx.LinearGeneral) else 1
      inputs = len(layer.axis) if isinstance(layer, nnx.LinearGeneral) else 1 if dense else 3
      found[path] = layer.kernel.ndim - inputs - outputs, inputs
  if not found or any(is_trained(path, adapter) for path in found):
    raise UserError(
      f'config.adapter.targets {adapter.targets!r} matches '
      f'{"a kernel of config.adapter.trained" if found else "no kernel"}; the kernels are '
      f'{", ".join(path for path, _ in _layers(model))}.'
    )
  return found


def is_trained(path: str, adapter: AdapterConfig) -> bool:
  """Whether a parameter of the base is trained itself."""
  return any(re.search(pattern, path) for pattern in adapter.trained)


def frozen_shapes(shapes: Params, adapter: AdapterConfig) -> Params:
  """The shapes of the parameters that stay as they are, of all those of the base, in their number formats."""

  def stored(path: str, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    dtype = jnp.dtype(adapter.base_dtype) if path.endswith('kernel') else leaf.dtype
    return jax.ShapeDtypeStruct(leaf.shape, dtype)

  flat = pytrees.flatten(shapes).items()
  return pytrees.unflatten({path: stored(path, leaf) for path, leaf in flat if not is_trained(path, adapter)})


def initial(
  kernels: Mapping[str, tuple[int, int]], params: Params, adapter: AdapterConfig, key: jax.Array
) -> Params:
  """What is trained, given all `params` of the base: some of them, and the adapters of its `targets`.

  A is uniform within 1 / sqrt(inputs), as PEFT's kaiming_uniform_(a=sqrt(5)); magnitudes are ones (see `magnitudes`).
  """
  base = pytrees.flatten(params)
  flat = {path: leaf for path, leaf in base.items() if is_trained(path, adapter)}
  for number, (path, (stacked, axes)) in enumerate(sorted(kernels.items())):
    shape = base[path].shape
    stack, inputs = shape[:stacked], int(np.prod(shape[stacked : stacked + axes]))
    outputs, bound = int(np.prod(shape[stacked + axes :])), inputs**-0.5
    layer, own_key = path.removesuffix('kernel'), jax.random.fold_in(key, number)
    a_shape = (*stack, inputs, adapter.rank)
    flat[layer + LORA_A] = jax.random.uniform(own_key, a_shape, jnp.float32, -bound, bound)
    flat[layer + LORA_B] = jnp.zeros((*stack, adapter.rank, outputs))
    if adapter.dora:
      flat[layer + MAGNITUDE] = jnp.ones((*stack, outputs))
  return pytrees.unflatten(flat)


def magnitudes(base: Mapping[str, np.ndarray], params: Params) -> dict[str, np.ndarray]:
  """Path -> the magnitudes that DoRA begins with: the lengths of the columns of the base's kernels, given by path.

  `params`: what is trained, or its shapes, of which these are a part; without DoRA there are none.
  """
  found = {}
  for path, own in by_kernel(params).items():
    if MAGNITUDE in own:
      matrix = base[path].astype(np.float32).reshape(*own[LORA_A].shape[:-1], -1)
      found[path.removesuffix('kernel') + MAGNITUDE] = np.linalg.norm(matrix, axis=-2)
  return found


def beside(base: Params, params: Params) -> Params:
  """The frozen parameters and those that are trained themselves, without adapters."""
  own = {path: leaf for path, leaf in pytrees.flatten(params).items() if not path.endswith(NAMES)}
  return pytrees.unflatten(pytrees.flatten(base) | own)


def merged(base: Params, params: Params, scale: float) -> Params:
  """The whole model: the frozen parameters and the trained ones, each adapter added to its kernel, in float32."""
  whole, changed = pytrees.flatten(beside(base, params)), by_kernel(params)
  kernels = {path: whole[path] for path in changed}  # alone, so that no other array is copied
  return pytrees.unflatten(whole | _merge(kernels, changed, scale))


def by_kernel(params: Params) -> dict[str, Params]:
  """The path of each kernel that has an adapter, and the adapter's weights by name."""
  found: dict[str, Params] = {}
  for path, leaf in pytrees.flatten(params).items():
    layer, _, name = path.rpartition('/')
    if name in NAMES:
      found.setdefault(f'{layer}/kernel', {})[name] = leaf
  return found


@jax.jit
def _merge(kernels: Params, weights: dict[str, Params], scale: float) -> Params:
  return {path: merged_kernel(kernel, weights[path], scale) for path, kernel in kernels.items()}


def merged_kernel(kernel: jax.typing.ArrayLike, weights: Params, scale: float | jax.Array) -> jax.Array:
  """m (W + s A B) / |W + s A B|, or without magnitudes W + s A B, in the shape of W and in float32."""
  a, b, magnitude = weights[LORA_A], weights[LORA_B], weights.get(MAGNITUDE)
  matrix = jnp.asarray(kernel, jnp.float32).reshape(*a.shape[:-1], b.shape[-1])
  matrix = matrix + scale * jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
  if magnitude is not None:
    matrix = matrix * (magnitude / _lengths(matrix))[..., None, :]
  return matrix.reshape(jnp.shape(kernel))


def _lengths(matrix: jax.Array) -> jax.Array:
  """(…, inputs, outputs) -> (…, outputs), without a gradient (DoRA, section 4.3)."""
  return jax.lax.stop_gradient(jnp.sqrt(jnp.square(matrix).sum(axis=-2)))


def attach(model: Model, params: Params, adapter: AdapterConfig, keys: jax.Array | None) -> None:
  """Gives the layers of a model their adapters, for one call of it with these keys, (B,), or None.

  A dense layer computes x A B beside x W, so that the backward pass makes no gradient of W. Other kernels, those of
  convolutions, are replaced by the merged ones.
  """
  weights = by_kernel(params)
  for number, (path, layer) in enumerate(_layers(model)):
    own = weights.get(path)
    if own is None:
      continue
    if not isinstance(layer, nnx.Linear | nnx.LinearGeneral):
      layer.kernel = nnx.Param(merged_kernel(layer.kernel[...], own, adapter.scale))
      continue
    own_keys = None
    if adapter.dropout and keys is not None:
      own_keys = fold_in(keys, PLACE + number)
      if own[LORA_A].ndim > 2:  # keys for each block of a stack
        own_keys = jax.vmap(fold_in, (None, 0))(own_keys, jnp.arange(len(own[LORA_A])))
    layer.dot_general = nnx.data(_Product(own, adapter, own_keys))


class _Product(nnx.Module):
  """The product of inputs and kernel with its adapter, as `dot_general` of NNX's dense layers."""

  def __init__(self, weights: Params, adapter: AdapterConfig, keys: jax.Array | None):
    self.weights = nnx.data({name: nnx.Param(value) for name, value in weights.items()})
    # As a parameter, though it is none: all others are the model's state, which the step keeps.
    self.keys = None if keys is None else nnx.Param(keys)
    self.adapter = adapter

  def __call__(self, x: jax.Array, kernel: jax.Array, dimensions: Any, **options: Any) -> jax.Array:
    """(…, inputs), (inputs, outputs) -> (…, outputs), the last axes of x being those that are contracted."""
    y = jax.lax.dot_general(x, kernel, dimensions, **options)
    a, b = (self.weights[name][...].astype(x.dtype) for name in (LORA_A, LORA_B))
    seen = x  # (B', …), perhaps several rows for each example, one after the other
    if self.keys is not None:
      keys = self.keys[...]  # (B,)
      seen = dropout(x.reshape(len(keys), -1, *x.shape[1:]), self.adapter.dropout, keys, 0).reshape(x.shape)
    flat = seen.reshape(*x.shape[: x.ndim - len(dimensions[0][0])], -1)
    change = (self.adapter.scale * (flat @ a @ b)).reshape(y.shape)
    if MAGNITUDE not in self.weights:
      return y + change
    matrix = kernel.astype(jnp.float32).reshape(len(a), -1)
    whole = matrix + self.adapter.scale * (self.weights[LORA_A][...] @ self.weights[LORA_B][...])
    factor = (self.weights[MAGNITUDE][...] / _lengths(whole)).astype(x.dtype)
    factor = factor.reshape(y.shape[flat.ndim - 1 :])
    if self.keys is None:
      return factor * (y + change)
    # As PEFT: what the magnitudes change sees the dropped inputs, too.
    return y + (factor - 1) * jax.lax.dot_general(seen, kernel, dimensions, **options) + factor * change


def _layers(model: Model) -> Iterator[tuple[str, Any]]:
  """The path of each kernel and the layer that has it, in one order; without those that see each channel by itself."""
  for keys, layer in nnx.iter_modules(model):
    kernel = getattr(layer, 'kernel', None)
    dense = isinstance(layer, nnx.Linear | nnx.LinearGeneral)
    if kernel is not None and (dense or 'depthwise' not in keys):
      yield '/'.join(map(str, (*keys, 'kernel'))), layer
