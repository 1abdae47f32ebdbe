"""The mesh of devices, and how a batch lies on it.

Axes: `replica` (copies of everything, across slices), `data` (parts of the batch), `fsdp` (parts of
the batch, and of the parameters and the optimizer's state) and `tensor` (parts of every layer).
"""

import math
from collections.abc import Sequence

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import config
from vit_jax.errors import UserError

AXES = ('replica', 'data', 'fsdp', 'tensor')
BATCH_AXES = ('replica', 'data', 'fsdp')


def make_mesh(mesh: config.Mesh, devices: Sequence[jax.Device] | None = None) -> Mesh:
  """The mesh of all `devices`, with the four axes in the order of `AXES`.

  The axes are of type Auto: the compiler spreads the shardings we give (`parallel/rules.py` and the
  activations' constraints) over the rest of the program.

  Args:
    mesh: devices along each axis; one may be -1, which takes the devices that are left.
    devices: by default all of all processes; a plan passes those of a machine that is not there.

  Raises:
    UserError: the axes do not multiply to the number of devices.
  """
  devices = list(jax.devices() if devices is None else devices)
  shape = _shape(mesh, len(devices))
  return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


def _shape(mesh: config.Mesh, devices: int) -> tuple[int, ...]:
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
