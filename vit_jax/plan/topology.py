"""Devices that need not be here: a TPU slice by its name, or this host's own."""

import contextlib
import dataclasses
import math
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import topologies

from vit_jax.foundation.errors import UserError
from vit_jax.parallel import distributed
from vit_jax.plan import kernels

# Chips -> shape, for names that count cores ('v3-512') or chips ('v5litepod-16'), as Google Cloud has them.
_SHAPES_2D = {
  1: '1x1', 4: '2x2', 8: '2x4', 16: '4x4', 32: '4x8', 64: '8x8', 128: '8x16', 256: '16x16',
  512: '16x32', 1024: '32x32',
}  # fmt: skip
_SHAPES_3D = {
  4: '2x2x1', 8: '2x2x2', 16: '2x2x4', 32: '2x4x4', 64: '4x4x4', 128: '4x4x8', 256: '4x8x8', 512: '8x8x8',
  1024: '8x8x16', 2048: '8x16x16', 4096: '16x16x16',
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Generation:
  """A generation of TPUs."""

  shapes: dict[int, str]  # chips -> shape of the slice
  cores: int  # cores of a chip, as far as names such as 'v3-512' count them
  options: dict[str, Any] = dataclasses.field(default_factory=dict)  # libtpu's, to describe its slices


_GENERATIONS = {
  'v2': _Generation(_SHAPES_2D, 2),
  'v3': _Generation(_SHAPES_2D, 2),
  'v4': _Generation(_SHAPES_3D, 2, {'chip_config_name': 'megacore'}),
  'v5e': _Generation(_SHAPES_2D, 1),
  'v5p': _Generation(_SHAPES_3D, 2),
  'v6e': _Generation(_SHAPES_2D, 1),
  'tpu7x': _Generation(_SHAPES_3D, 2),
}
_ALIASES = {'v5litepod': 'v5e', 'v7x': 'tpu7x'}
_NAME = re.compile(
  r'(?P<generation>(v|tpu)\w+?)(:(?P<shape>\d+(x\d+)+)|-(?P<size>\d+))(\*(?P<slices>[1-9]\d*))?'
)
_CPUS = re.compile(r'cpu:([1-9]\d*)')
_EXAMPLES = "'v3:16x16' or 'v3-512' (TPUs, by chips or cores), 'v5e:16x16*2' (two slices), 'cpu:8' or 'local'"


@dataclasses.dataclass(frozen=True)
class Topology:
  """Devices to plan for."""

  name: str  # as asked for
  # Those of a machine that need not be here, or of this host.
  devices: tuple[jax.Device, ...]  # pyright: ignore[reportInvalidTypeForm] (jaxlib is untyped)

  @property
  def kind(self) -> str:
    """What JAX calls the devices, such as 'TPU v3'."""
    return self.devices[0].device_kind


def describe(name: str | None) -> Topology:
  """The devices of a topology. Call it before JAX is used: it may choose JAX's platform.

  It is 'v3:16x16', chips along each side; 'v3-512', as Google Cloud counts; '*2' behind either for two slices; 'cpu:8'
  for so many CPU devices; 'local' for the devices of this host; None for its accelerators. Raises UserError where there
  is no such topology, libtpu is missing, or this host has no accelerators.
  """
  if name is None or name == 'local':
    return _local(accelerators_only=name is None)
  jax.config.update('jax_platforms', 'cpu')
  cpus = _CPUS.fullmatch(name)
  if cpus:
    jax.config.update('jax_num_cpu_devices', int(cpus[1]))
    return Topology(name, tuple(jax.devices()))
  found = _NAME.fullmatch(name)
  label = _ALIASES.get(found['generation'], found['generation']) if found else None
  if not found or label not in _GENERATIONS:
    raise UserError(f'--topology={name} is not a topology; write {_EXAMPLES}.')
  shape = found['shape'] or _shape(name, label, int(found['size']))
  return _tpus(name, label, shape, slices=int(found['slices'] or 1))


def _local(*, accelerators_only: bool) -> Topology:
  distributed.skip_absent_tpu()
  devices = tuple(jax.devices())
  if accelerators_only and devices[0].platform == 'cpu':
    raise UserError(
      '--topology is missing, and this host has no accelerator to plan for; name the machine, such as '
      '--topology=v3-128, --topology=v5e:4x4 or --topology=cpu:8.'
    )
  return Topology('local', devices)


def _shape(name: str, label: str, size: int) -> str:
  """The shape of a slice of `size` cores (or chips, where a chip counts as one)."""
  generation = _GENERATIONS[label]
  chips, rest = divmod(size, generation.cores)
  if rest or chips not in generation.shapes:
    sizes = ', '.join(str(generation.cores * chips) for chips in generation.shapes)
    raise UserError(
      f'--topology={name}: {label} comes in the sizes {sizes}; choose one, or write the shape, as v3:16x16.'
    )
  return generation.shapes[chips]


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
  """Silences libtpu, which writes to the process's stderr that this is no TPU host."""
  sys.stderr.flush()
  kept = os.dup(2)
  with open(os.devnull, 'w', encoding='utf-8') as nowhere:
    os.dup2(nowhere.fileno(), 2)
  try:
    yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)


def _tpus(name: str, label: str, shape: str, *, slices: int) -> Topology:
  """TPU slices that are not here, as libtpu describes them."""
  # No metadata server is here to ask, and other plans may be made at the same time.
  os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
  os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
  kernels.write_schedules()
  options = dict(_GENERATIONS[label].options)
  if math.prod(int(side) for side in shape.split('x')) == 1:
    options['chips_per_host_bounds'] = (1, 1, 1)
  if slices > 1:
    options['num_slices'] = slices
  try:
    with _quiet_stderr():
      described = topologies.get_topology_desc(platform='tpu', topology_name=f'{label}:{shape}', **options)
      return Topology(name, tuple(described.devices))
  except Exception as error:  # libtpu's errors have no type of their own
    reason = ' '.join(str(error).split())
    if 'not installed' in reason:
      raise UserError(
        f"--topology={name} needs the TPU compiler, which is not installed; install the extra 'tpu', "
        f"pip install -e '.[tpu]' (any Linux host will do, with or without a TPU)."
      ) from None
    raise UserError(f'--topology={name} cannot be described: {reason[:300]}') from None
