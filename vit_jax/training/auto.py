"""What a config leaves open is chosen at the start: `mesh.fsdp`, `model.unroll` and `model.remat`.

Each is chosen where it is None, by the devices, the model and the batch, anew at every start: a run that goes
on on other devices gets what suits these. On CPUs nothing is split, unrolled or computed again. The rules are
short, and agree with the best plans of the paper's recipes (docs/scaling.md):

- `fsdp` is 8 on TPUs for models of 50 million parameters and more, where 8 divides the devices of a slice;
  elsewhere 1. It doubles as long as the optimizer's state takes more than a third of a device's memory.
- The blocks are unrolled on TPUs, in runs that are long enough to earn the minutes of compilation.
- `remat` is the first of 'none', 'dots' and 'block' with which the step fits by `estimated_bytes`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.config import Config
from vit_jax.models.base import Architecture, Remat
from vit_jax.parallel import hardware

_GIB = 2**30
_REMATS: tuple[Remat, ...] = ('none', 'dots', 'block')
_SPLIT_FROM = 50_000_000  # parameters
_FSDP = 8
_STATE_SHARE = 1 / 3  # of the memory, for the state
_UNROLLED_FROM = 5_000  # steps
_USABLE = 0.95  # of the memory
# By the TPU compiler's own analyses, activations take about 1.2 times the bytes of the arrays saved: sides are padded
# to multiples of 8 and 128, and single operations need buffers.
_PADDING = 1.2
_IMAGES_TILE = (
  8  # of feature maps on a TPU: EfficientNet-L2 with one image a device takes 6.5 times what is saved
)


class Choice(NamedTuple):
  """A config with nothing left open, and a line about what was chosen; empty where there was no choice."""

  config: Config
  text: str


def choose(config: Config, architecture: Architecture, steps: int, devices: Sequence[Any]) -> Choice:
  """The config with its open options chosen.

  Args:
    config: the run's.
    architecture: its network.
    steps: of the run.
    devices: of the run; those of a plan need not be here.
  """
  mesh, model = config.mesh, config.model
  if mesh.fsdp is not None and model.remat is not None and model.with_unrolled_blocks(False) is model:
    return Choice(config, '')
  if devices[0].platform == 'cpu':
    mesh = dataclasses.replace(mesh, fsdp=mesh.fsdp or 1)
    model = dataclasses.replace(model.with_unrolled_blocks(False), remat=model.remat or 'none')
    return Choice(dataclasses.replace(config, mesh=mesh, model=model), '')

  memory = _memory(devices[0])
  parameters = sum(leaf.size for leaf in architecture.shapes().values())
  if mesh.fsdp is None:
    mesh = dataclasses.replace(mesh, fsdp=_fsdp(config, parameters, memory, devices))
  unrolled = devices[0].platform == 'tpu' and steps >= _UNROLLED_FROM
  model = model.with_unrolled_blocks(unrolled)
  config, needed = dataclasses.replace(config, mesh=mesh, model=model), 0.0
  for remat in _REMATS if model.remat is None else (model.remat,):
    config = dataclasses.replace(config, model=dataclasses.replace(model, remat=remat))
    needed = estimated_bytes(config, architecture, parameters, devices)
    if memory is None or needed <= _USABLE * memory:
      break
  blocks, room = ', blocks unrolled' if unrolled else '', f' of {memory / _GIB:.1f}' if memory else ''
  chosen = f'fsdp {config.mesh.fsdp}{blocks}, remat {config.model.remat}'
  return Choice(config, f'Chosen for these devices: {chosen}; about {needed / _GIB:.1f}{room} GiB')


def estimated_bytes(
  config: Config, architecture: Architecture, parameters: int, devices: Sequence[Any]
) -> float:
  """About what a training step needs on a device.

  Args:
    config: with nothing left open.
    architecture: its network.
    parameters: of it.
    devices: of the run.
  """
  mesh = config.mesh
  split = max(mesh.fsdp or 1, 1) * max(mesh.tensor, 1)
  weights = parameters * jnp.dtype(config.model.dtype).itemsize
  images = config.batch_size / config.accumulation / (len(devices) / max(mesh.tensor, 1))
  if config.model.has_feature_maps and devices[0].platform == 'tpu':
    images = math.ceil(images / _IMAGES_TILE) * _IMAGES_TILE
  activations = saved_bytes(dataclasses.replace(architecture, model=config.model)) * images
  return _state_bytes(config, parameters) / split + weights + _PADDING * activations / max(mesh.tensor, 1)


def saved_bytes(architecture: Architecture) -> float:
  """Bytes of an image that the backward pass reads, as JAX saves them; nothing is computed."""

  def of(images: int) -> int:
    graphdef, params = nnx.split(nnx.eval_shape(lambda: architecture.build(nnx.Rngs(0))))

    def backward(params: Any, x: jax.Array, key: jax.Array) -> Any:
      keys = jax.random.split(key, images)
      return jax.vjp(lambda params: nnx.merge(graphdef, params)(x, keys=keys), params)[1]

    shape = (images, *architecture.image_size, architecture.channels)
    key = jax.eval_shape(lambda: jax.random.key(0, impl='threefry2x32'))
    saved = jax.eval_shape(backward, params, jax.ShapeDtypeStruct(shape, jnp.float32), key)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(saved))

  return (of(4) - of(2)) / 2


def _fsdp(config: Config, parameters: int, memory: float | None, devices: Sequence[Any]) -> int:
  """Over how many devices parameters and state are split."""
  mesh = config.mesh
  slices = len({getattr(device, 'slice_index', 0) for device in devices})
  most = len(devices) // slices // max(mesh.tensor, 1)
  if mesh.data != -1:  # of the other axes nothing is left
    most = len(devices) // math.prod(size for size in (mesh.replica, mesh.data, mesh.tensor) if size > 0)
    return max(most, 1)
  if mesh.replica > 1:
    most = math.gcd(most, len(devices) // mesh.replica)
  large = devices[0].platform == 'tpu' and parameters >= _SPLIT_FROM
  fsdp = _FSDP if large and most % _FSDP == 0 else 1
  state = _state_bytes(config, parameters)
  while memory is not None and state / fsdp > _STATE_SHARE * memory and most % (2 * fsdp) == 0:
    fsdp *= 2
  return fsdp


def _state_bytes(config: Config, parameters: int) -> int:
  """Of parameters, two moments, gradients and the EMA, in float32."""
  return 4 * parameters * (4 + bool(config.ema))


def _memory(device: Any) -> float | None:
  """Bytes that a program may use on a device; None: nobody knows."""
  known = hardware.of(device.device_kind)
  if known and known.memory:
    return known.memory
  stats = getattr(device, 'memory_stats', dict)()  # a described device has none
  return stats.get('bytes_limit') if stats else None
