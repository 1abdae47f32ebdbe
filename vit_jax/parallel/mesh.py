"""The mesh of devices, and how a batch lies on it.

Axes: `replica` and `data` (parts of the batch; `replica` is the first to run across slices), `fsdp` (parts
of the batch, and of the parameters and the optimizer's state) and `tensor` (parts of every layer).
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.errors import UserError
from vit_jax.options import Amount

AXES = ('replica', 'data', 'fsdp', 'tensor')
BATCH_AXES = ('replica', 'data', 'fsdp')


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices along each axis of the mesh; one may be -1, which takes the devices that are left."""

  # Parts of the batch, parameters copied; the first axis to run across slices (or hosts of GPUs).
  replica: int = 1
  # The same, within a slice as far as `replica` has as many parts as there are slices.
  data: int = -1
  # Parts of the batch; parameters and optimizer state are split too.
  fsdp: int = 1
  # Parts of every layer.
  tensor: int = 1
  # Parameters with fewer elements are copied rather than split.
  min_shard_size: Amount = 2**16

  def check(self, path: str) -> None:
    """Raises UserError for sizes that no mesh has."""
    axes = {axis: getattr(self, axis) for axis in AXES}
    if any(size < 1 and size != -1 for size in axes.values()) or list(axes.values()).count(-1) > 1:
      raise UserError(f'{path} is {axes}; each axis must be at least 1, and at most one may be -1.')


def make_mesh(mesh: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
  """The mesh of all `devices`, with the four axes in the order of `AXES`.

  The axes are of type Auto: the compiler spreads the shardings we give (`parallel/rules.py` and the
  activations' constraints) over the rest of the program.

  Slices are groups of devices with fast links among them and slow ones between them: those of a multi-slice
  TPU, or hosts of GPUs. `replica` and then `data` run across them, whose devices exchange the sum of the
  gradients once a step; between hosts of GPUs `fsdp` may too, where those two leave slices over. What is left
  of each axis lies within a slice, placed by JAX for the shape of its network.

  Args:
    mesh: devices along each axis; one may be -1, which takes the devices that are left.
    devices: by default all of all processes; a plan passes those of a machine that is not there.

  Raises:
    UserError: the axes do not multiply to the number of devices, or the wrong ones would cross slices.
  """
  devices = list(jax.devices() if devices is None else devices)
  shape = _shape(mesh, len(devices))
  slices = len({getattr(device, 'slice_index', 0) for device in devices})
  # Where no set of the network's axes has the size of one of ours, one of them may be split.
  split = {'devices': devices, 'allow_split_physical_axes': True}
  if slices > 1:
    across = _across_slices(shape, slices, AXES[:3] if devices[0].platform == 'gpu' else AXES[:2])
    within = [size // part for size, part in zip(shape, across, strict=True)]
    array = mesh_utils.create_hybrid_device_mesh(within, across, **split)
  else:
    array = mesh_utils.create_device_mesh(shape, **split)
  return Mesh(array, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _across_slices(shape: tuple[int, ...], slices: int, axes: tuple[str, ...]) -> list[int]:
  """Into how many parts, one a slice, each axis is cut: the first of `axes` into as many as it can be."""
  left, result = slices, [1] * len(AXES)
  for index, axis in enumerate(AXES):
    if axis in axes:
      result[index] = math.gcd(left, shape[index])
      left //= result[index]
  if left > 1:
    text = ', '.join(f'{axis} {size}' for axis, size in zip(AXES, shape, strict=True))
    raise UserError(
      f'config.mesh ({text}) would put {" or ".join(AXES[len(axes) :])} across the {slices} slices, between '
      f'which links are slow; make {" x ".join(axes)} a multiple of {slices}.'
    )
  return result


def _shape(mesh: MeshConfig, devices: int) -> tuple[int, ...]:
  """Devices along each axis, the -1 replaced."""
  sizes = [getattr(mesh, axis) for axis in AXES]
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
  """Sharding of an array whose first axis is the batch; its other axes are not split."""
  return NamedSharding(mesh, P(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
  """Sharding of an array of which every device has a copy."""
  return NamedSharding(mesh, P())


def batch_shards(mesh: Mesh) -> int:
  """How many parts a batch is split into."""
  return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def check_batch_divides(batch_size: int, parts: int, option: str) -> None:
  """Raises UserError, naming `option`, where a batch does not divide over the parts of the mesh."""
  if batch_size % parts:
    raise UserError(
      f'{option} {batch_size} does not divide by the {parts} parts that config.mesh makes of it; make it a '
      f'multiple of {parts}.'
    )


def check_batch_size(mesh: Mesh, batch_size: int, option: str = 'config.batch_size') -> None:
  """Raises UserError, naming `option` and the axes, where a batch does not divide over the mesh.

  With gradient accumulation, `batch_size` is that of one part.
  """
  if batch_size % batch_shards(mesh):
    axes = ' x '.join(f'{axis} {mesh.shape[axis]}' for axis in BATCH_AXES)
    raise UserError(
      f'{option} gives batches of {batch_size}, which do not divide over the {batch_shards(mesh)} parts of '
      f'config.mesh ({axes}); change one of them.'
    )
