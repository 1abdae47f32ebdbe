"""What a config leaves open is chosen at the start: `mesh.fsdp`, `model.unroll`, `model.remat`, `accumulation`.

Each is chosen where it is None, by the devices, the model and the batch, anew at every start: a run that goes
on on other devices gets what suits these. On CPUs nothing is split or computed again. The rules are short, and
agree with the best plans of the paper's recipes (docs/scaling.md):

- `fsdp` is 16 on TPUs for models of 200 million parameters and more (L and H, which have 16 heads) and 8 from 50
  million on (B, for which 16 takes longer), where that divides the devices of a slice; elsewhere 8, or 1. It doubles as
  long as the optimizer's state takes more than a third of a device's memory.
- The blocks are unrolled on TPUs and GPUs, in runs that are long enough to earn the longer compilation: minutes on
  TPUs; on an H100 ten seconds, for steps of B/16 and L/16 that take 0.80 of a loop's time. On a single device they are
  so only with `remat` 'none': the TPU compiler keeps there what it should compute again, except in a loop.
  On CPUs they are so in small models, where a loop's copies of what the backward pass reads take long beside the
  products (benchmarks/RESULTS.md), in runs of some minutes, and always in models with feature maps: in a loop XLA's
  gradient by a kernel of 3 x 3 pixels takes some ninety times as long as that by its input.
- `remat` is the first of 'none', 'dots' and 'block' with which the step fits by `estimated_bytes`. On TPUs 'none' in
  the fewest parts that fit comes before computing anything again, as long as a part keeps a device busy: L/16 on 8
  cores of v3 takes 3,835 ms so, with 'block' 5,026.
- `accumulation` is else 1 if one of them fits, else the first power of two with which one does. If none does either, or
  parts would change what is learned (running statistics, losses that compare examples), it is 1.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.config import Config
from vit_jax.models.base import Architecture, Remat
from vit_jax.models.capabilities import TextTowerOptions
from vit_jax.parallel import hardware
from vit_jax.parallel import mesh as mesh_lib

_GIB = 2**30
_REMATS: tuple[Remat, ...] = ('none', 'dots', 'block')
_FSDP = ((200_000_000, 16), (50_000_000, 8))  # (parameters from which on, TPU devices to split them over)
_STATE_SHARE = 1 / 3  # of a device's memory, at most, for the parameters and the optimizer's state
_UNROLLED_FROM = {'tpu': 5_000, 'gpu': 1_000, 'cpu': 2_000}  # steps
_SMALL = 10_000_000  # parameters: models with fewer are unrolled on CPUs
# That keep a device busy: with 32 images L/16 and H/14 reach more than 60 % of a TPU v3's peak.
_PATCHES_OF_A_PART = 32 * 196
_USABLE = 0.95  # of a device's memory, for a step
# By the TPU compiler's own analyses, activations take about 1.2 times the bytes of the arrays saved: sides are padded
# to multiples of 8 and 128, and single operations need buffers.
_PADDING = 1.2
# Images of feature maps on a TPU: EfficientNet-L2 with one image a device takes 6.5 times what is saved.
_IMAGES_TILE = 8
# Of what 'none' saves: a block while it is computed again. L/16 on 8 cores of a TPU v3 takes 11.2 GiB, not 7.2.
_BLOCK_SHARE = 1 / 20
_VALUE_BYTES = 5  # of a value of the whole batch's images, whatever the parts: as a byte and in float32


class Choice(NamedTuple):
  """A config with nothing left open, and a line about what was chosen; empty where there was no choice."""

  config: Config
  text: str


def choose(config: Config, architecture: Architecture, steps: int, devices: Sequence[Any]) -> Choice:
  """The config with its open options chosen, for the architecture, the length in steps and the devices of a run.

  The devices of a plan need not be here. Raises UserError for a mesh that these devices do not make.
  """
  mesh, model = config.mesh, config.model
  has_open_options = None in (mesh.fsdp, model.remat, model.unroll)
  if not has_open_options and config.accumulation is not None:
    return Choice(config, '')
  if devices[0].platform == 'cpu':
    mesh = dataclasses.replace(mesh, fsdp=mesh.fsdp or 1)
    unrolled = model.unroll is None and (
      model.has_feature_maps or (steps >= _UNROLLED_FROM['cpu'] and _parameters(architecture) < _SMALL)
    )
    model = dataclasses.replace(model.with_unrolled_blocks(unrolled), remat=model.remat or 'none')
    config = dataclasses.replace(config, mesh=mesh, model=model, accumulation=config.batch_parts)
    return Choice(config, 'Chosen for these devices: blocks unrolled' if unrolled else '')

  memory = _memory(devices[0])
  parameters = _parameters(architecture)
  if mesh.fsdp is None:
    mesh = dataclasses.replace(mesh, fsdp=_fsdp(config, parameters, memory, devices))
  mesh_lib.shape_on(mesh, len(devices))  # here, since what follows divides the devices by its axes
  unrolled = steps >= _UNROLLED_FROM.get(devices[0].platform, math.inf)
  config = dataclasses.replace(config, mesh=mesh)
  config, needed = _fitting(config, architecture, parameters, memory, devices, unrolled)
  if not has_open_options and config.accumulation == 1:
    return Choice(config, '')
  blocks = ', blocks unrolled' if config.model.unroll else ''
  parts = f', accumulation {config.accumulation}' if config.batch_parts > 1 else ''
  room = f' of {memory / _GIB:.1f}' if memory else ''
  chosen = f'fsdp {config.mesh.fsdp}{blocks}, remat {config.model.remat}{parts}'
  return Choice(config, f'Chosen for these devices: {chosen}; about {needed / _GIB:.1f}{room} GiB')


def _parameters(architecture: Architecture) -> int:
  return sum(leaf.size for leaf in architecture.shapes().values())


def _fitting(
  config: Config,
  architecture: Architecture,
  parameters: int,
  memory: float | None,
  devices: Sequence[Any],
  unrolled: bool,  # whether these devices and the run's length suit unrolled blocks
) -> tuple[Config, float]:
  """The config with all but the mesh chosen, and about what a step then needs of a device."""
  remats = _REMATS if config.model.remat is None else (config.model.remat,)

  @functools.cache
  def saved(remat: Remat) -> float:
    model = dataclasses.replace(config.model, remat=remat)
    return saved_bytes(dataclasses.replace(architecture, model=model))

  def variant(remat: Remat, parts: int) -> Config:
    unroll = unrolled and (remat == 'none' or len(devices) > 1)
    model = dataclasses.replace(config.model, remat=remat).with_unrolled_blocks(unroll)
    return dataclasses.replace(config, model=model, accumulation=parts)

  def needed(remat: Remat, parts: int) -> float:
    recomputed = _BLOCK_SHARE * saved('none') if remat != 'none' else 0
    values = math.prod((*architecture.image_size, architecture.channels))
    return estimated_bytes(variant(remat, parts), parameters, saved(remat) + recomputed, values, devices)

  combinations: list[tuple[Remat, int]] = [
    (remat, parts) for parts in _parts(config, architecture, devices) for remat in remats
  ]
  combinations.sort(key=lambda choice: not _keeps_busy(*choice, config, architecture, devices))
  fitting = (choice for choice in combinations if memory is None or needed(*choice) <= _USABLE * memory)
  choice = next(fitting, (remats[-1], config.batch_parts))
  return variant(*choice), needed(*choice)


def _keeps_busy(
  remat: Remat, parts: int, config: Config, architecture: Architecture, devices: Sequence[Any]
) -> bool:
  """Whether nothing is computed again, and each of so many parts gives a TPU device enough patches."""
  images = config.batch_size * max(config.mesh.tensor, 1) / len(devices) / parts
  patches = images * math.prod(config.model.grid(architecture.image_size))
  return devices[0].platform == 'tpu' and remat == 'none' and patches >= _PATCHES_OF_A_PART


def _parts(config: Config, architecture: Architecture, devices: Sequence[Any]) -> Iterator[int]:
  """The numbers of parts that a batch may have, the fewest first."""
  yield config.batch_parts
  if config.accumulation is None and not config.learns_by_parts(architecture):
    parts, images = 2, config.batch_size // (len(devices) // max(config.mesh.tensor, 1))
    # No image is left of a batch smaller than the devices, which `check_batch_divides` refuses later.
    while images and images % parts == 0:
      yield parts
      parts *= 2


def estimated_bytes(
  config: Config, parameters: int, bytes_saved: float, values: int, devices: Sequence[Any]
) -> float:
  """About what a training step needs on a device, in bytes, where nothing of the config is left open.

  An image has so many values (height × width × channels), and for it the backward pass reads `bytes_saved`.
  """
  mesh = config.mesh
  split = max(mesh.fsdp or 1, 1) * max(mesh.tensor, 1)
  weights = parameters * jnp.dtype(config.model.dtype).itemsize
  whole_batch = config.batch_size / (len(devices) / max(mesh.tensor, 1))
  images = whole_batch / config.batch_parts
  if config.model.has_feature_maps and devices[0].platform == 'tpu':
    images = math.ceil(images / _IMAGES_TILE) * _IMAGES_TILE
  activations = _PADDING * bytes_saved * images / max(mesh.tensor, 1)
  return (
    _state_bytes(config, parameters) / split + weights + activations + _VALUE_BYTES * values * whole_batch
  )


def saved_bytes(architecture: Architecture) -> float:
  """Bytes of an image that the backward pass reads, as JAX saves them; nothing is computed."""

  def saved_of(images: int) -> int:
    graphdef, params = nnx.split(architecture.abstract())

    def backward(params: Any, x: jax.Array, key: jax.Array) -> Any:
      keys, model = jax.random.split(key, images), architecture.model

      def outputs(params: Any) -> Any:
        network: Any = nnx.merge(graphdef, params)
        of_images = network(x, keys=keys)
        if not isinstance(model, TextTowerOptions):
          return of_images
        return of_images, network.text_features(jnp.zeros((images, model.text_length), jnp.int32))

      return jax.vjp(outputs, params)[1]

    shape = (images, *architecture.image_size, architecture.channels)
    key = jax.eval_shape(lambda: jax.random.key(0, impl='threefry2x32'))
    saved = jax.eval_shape(backward, params, jax.ShapeDtypeStruct(shape, jnp.float32), key)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(saved))

  return (saved_of(4) - saved_of(2)) / 2


def _fsdp(config: Config, parameters: int, memory: float | None, devices: Sequence[Any]) -> int:
  """Over how many devices parameters and state are split."""
  mesh = config.mesh
  slices = len({getattr(device, 'slice_index', 0) for device in devices})
  most = max(len(devices) // slices // max(mesh.tensor, 1), 1)
  if mesh.data != -1:  # of the other axes nothing is left
    most = len(devices) // math.prod(size for size in (mesh.replica, mesh.data, mesh.tensor) if size > 0)
    return max(most, 1)
  if mesh.replica > 1:
    most = math.gcd(most, len(devices) // mesh.replica)
  state = _state_bytes(config, parameters)
  dividing = (parts for fewest, parts in _FSDP if parameters >= fewest and most % parts == 0)
  fsdp = next(dividing, 1) if devices[0].platform == 'tpu' else 1
  while memory is not None and state / fsdp > _STATE_SHARE * memory and most % (2 * fsdp) == 0:
    fsdp *= 2
  return fsdp


def _state_bytes(config: Config, parameters: int) -> int:
  """Of parameters, two moments, gradients, the EMA, and the values at which gradients are taken where these are others.

  In float32. With an adapter it is about those of its base alone.
  """
  if config.adapter.rank:
    return jnp.dtype(config.adapter.base_dtype).itemsize * parameters
  elsewhere = config.optimizer.averages or config.optimizer.sam_radius
  return 4 * parameters * (4 + bool(config.ema) + bool(elsewhere))


def _memory(device: Any) -> float | None:
  """Bytes that a program may use on a device; None: nobody knows."""
  known = hardware.of(device.device_kind)
  if known and known.memory:
    return known.memory
  stats = getattr(device, 'memory_stats', dict)()  # a described device has none
  return stats.get('bytes_limit') if stats else None
