"""The mesh of devices, and how a batch is split over it.

Its axes are `replica` and `data`, which split the batch (`replica` is the first to run across slices),
`fsdp`, which splits the batch, the parameters and the optimizer state, and `tensor`, which splits every
layer.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.foundation.errors import UserError
from vit_jax.options import Amount

AXES = ('replica', 'data', 'fsdp', 'tensor')
BATCH_AXES = ('replica', 'data', 'fsdp')


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices along each axis of the mesh; one axis may be -1, which takes the devices that are left."""

  # Devices that split the batch, with copied parameters; the first axis to run across slices (or hosts with GPUs).
  replica: int = 1
  # Devices that split the batch likewise, within a slice if `replica` is a multiple of the number of slices.
  data: int = -1
  # Devices that split the batch, the parameters and the optimizer state. None for a number that fits the devices and
  # the model (training/auto.py); 1 on CPUs.
  fsdp: int | None = None
  # Devices that split every layer.
  tensor: int = 1
  # Number of elements below which a parameter is copied instead of split.
  min_shard_size: Amount = 65_536

  def check(self, path: str) -> None:
    """Raises UserError for sizes that no mesh can have."""
    sizes = self.sizes
    too_small = any(size < 1 and size != -1 for size in sizes)
    if too_small or sizes.count(-1) > 1:
      axes = dict(zip(AXES, sizes, strict=True))
      raise UserError(f'{path} is {axes}; each axis must be at least 1, and at most one may be -1.')

  @property
  def sizes(self) -> tuple[int, int, int, int]:
    """Devices along each of `AXES`."""
    return (self.replica, self.data, 1 if self.fsdp is None else self.fsdp, self.tensor)


def make_mesh(
  mesh: MeshConfig,
  devices: Sequence[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm] (jaxlib is untyped)
) -> Mesh:
  """The mesh of all `devices`, with the four axes in the order of `AXES`.

  The axes are of type Auto: the compiler derives the shardings of the whole program from the ones we give,
  which are those of the parameters (`parallel/sharding.py`) and the constraints on the activations.

  Slices are groups of devices with fast links inside and slow ones between them: the slices of a multi-slice
  TPU, or hosts with GPUs. `replica` and then `data` run across slices, because they exchange only the sum of
  the gradients, once per step. Between hosts with GPUs `fsdp` may run across slices too, if those two leave
  slices over. The rest of each axis lies within a slice, where JAX places the devices to suit the network's
  shape.

  The devices are by default those of all processes; a plan passes those of a machine that it does not have. Raises
  UserError where the axes do not multiply to their number, or the wrong ones would cross slices.
  """
  devices = list(jax.devices() if devices is None else devices)
  shape = shape_on(mesh, len(devices))
  slices = len({getattr(device, 'slice_index', 0) for device in devices})
  # An axis of ours may need a part of a network axis, where none of those has its size.
  options: dict[str, Any] = {'devices': devices, 'allow_split_physical_axes': True}
  if slices > 1:
    across = _across_slices(shape, slices, AXES[:3] if devices[0].platform == 'gpu' else AXES[:2])
    within = [size // part for size, part in zip(shape, across, strict=True)]
    array = mesh_utils.create_hybrid_device_mesh(within, across, **options)
  else:
    array = mesh_utils.create_device_mesh(shape, **options)
  return Mesh(array, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _across_slices(shape: tuple[int, ...], slices: int, axes: tuple[str, ...]) -> list[int]:
  """How many slices each axis runs across; the first of `axes` take as many as they can."""
  remaining, result = slices, [1] * len(AXES)
  for index, axis in enumerate(AXES):
    if axis in axes:
      result[index] = math.gcd(remaining, shape[index])
      remaining //= result[index]
  if remaining > 1:
    text = ', '.join(f'{axis} {size}' for axis, size in zip(AXES, shape, strict=True))
    raise UserError(
      f'config.mesh ({text}) would put {" or ".join(AXES[len(axes) :])} across the {slices} slices, between '
      f'which links are slow; make {" x ".join(axes)} a multiple of {slices}.'
    )
  return result


def shape_on(mesh: MeshConfig, devices: int) -> tuple[int, ...]:
  """Devices along each of `AXES`, with the -1 replaced; UserError where they do not multiply to `devices`."""
  sizes = list(mesh.sizes)
  asked = ', '.join(f'{axis} {size}' for axis, size in zip(AXES, sizes, strict=True))
  given = math.prod(size for size in sizes if size != -1)
  if -1 in sizes:
    if devices % given:
      raise UserError(
        f'config.mesh ({asked}) does not fit the {devices} devices here; the axes other than the one '
        f'that is -1 multiply to {given}, make that a divisor of {devices}.'
      )
    sizes[sizes.index(-1)] = devices // given
  elif given != devices:
    raise UserError(
      f'config.mesh ({asked}) is for {given} devices but there are {devices} here; change an axis, or '
      f'set one to -1 to let it take what is left.'
    )
  return tuple(sizes)


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """The sharding of an array whose first axis is the batch; its other axes are not split."""
  return NamedSharding(mesh, P(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
  """The sharding of an array that every device has a copy of."""
  return NamedSharding(mesh, P())


def batch_shards(mesh: Mesh) -> int:
  """How many parts a batch is split into."""
  return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def check_batch_size(mesh: Mesh, batch_size: int, option: str = 'config.batch_size') -> None:
  """Raises UserError, naming `option` and the axes, if a batch does not divide over the mesh.

  With gradient accumulation, `batch_size` is that of one part.
  """
  axes = ' x '.join(f'{axis} {mesh.shape[axis]}' for axis in BATCH_AXES)
  check_batch_divides(batch_size, batch_shards(mesh), option, f'config.mesh ({axes})')


def check_batch_divides(batch_size: int, parts: int, option: str, where: str = 'config.mesh') -> None:
  """Raises UserError, naming `option` and `where`, if `batch_size` is not a multiple of `parts`.

  For a caller that has only a batch's sharding, not the mesh; `parts` is the number of different pieces.
  """
  if batch_size % parts:
    raise UserError(
      f'{option} gives batches of {batch_size}, which do not divide over the {parts} parts of {where}; '
      f'change one of them.'
    )
