"""Devices that need not be here: a TPU slice by its name, or this host's own."""

import contextlib
import dataclasses
import math
import os
import re
import sys
from collections.abc import Iterator

import jax
from jax.experimental import topologies

from vit_jax.errors import UserError
from vit_jax.parallel import distributed

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
  shapes: dict[int, str]
  cores: int  # of a chip, as counted in a name such as 'v3-512'
  options: dict[str, object] = dataclasses.field(default_factory=dict)  # libtpu's


_GENERATIONS = {
  'v2': _Generation(_SHAPES_2D, 2),
  'v3': _Generation(_SHAPES_2D, 2),
  'v4': _Generation(_SHAPES_3D, 2, {'chip_config_name': 'megacore'}),
  'v5e': _Generation(_SHAPES_2D, 1),
  'v5p': _Generation(_SHAPES_3D, 2),
  'v6e': _Generation(_SHAPES_2D, 1),
}
_ALIASES = {'v5litepod': 'v5e'}
_FORM = re.compile(r'(v\w+?)(?::(\d+(?:x\d+)+)|-(\d+))(?:\*([1-9]\d*))?')
_EXAMPLES = "'v3:16x16' or 'v3-512' (TPUs, by chips or cores), 'v5e:16x16*2' (two slices), 'cpu:8' or 'local'"


@dataclasses.dataclass(frozen=True)
class Topology:
  """Devices to plan for.

  Attributes:
    name: as asked for.
    devices: those of a described machine, or of this host.
  """

  name: str
  devices: tuple[jax.Device, ...]

  @property
  def kind(self) -> str:
    return self.devices[0].device_kind

  @property
  def is_tpu(self) -> bool:
    return self.devices[0].platform == 'tpu'


def describe(name: str) -> Topology:
  """The devices of a topology. Call it before JAX is used: it may choose JAX's platform.

  Args:
    name: 'v3:16x16', chips along each side; 'v3-512', as Google Cloud counts; '*2' behind either for two
      slices; 'cpu:8' for so many CPU devices; 'local' for what is here.

  Raises:
    UserError: no such name, or libtpu is missing.
  """
  if name == 'local':
    distributed.skip_absent_tpu()
    return Topology(name, tuple(jax.devices()))
  jax.config.update('jax_platforms', 'cpu')
  if re.fullmatch(r'cpu:[1-9]\d*', name):
    jax.config.update('jax_num_cpu_devices', int(name[4:]))
    return Topology(name, tuple(jax.devices()))
  found = _FORM.fullmatch(name)
  generation = found and _GENERATIONS.get(_ALIASES.get(found[1], found[1]))
  if not generation:
    raise UserError(f'--topology={name} is none that is known; write {_EXAMPLES}.')
  shape = found[2] or _shape(name, generation, int(found[3]))
  return Topology(name, _describe(name, _ALIASES.get(found[1], found[1]), shape, int(found[4] or 1)))


def _shape(name: str, generation: _Generation, size: int) -> str:
  chips = size // generation.cores
  if chips * generation.cores != size or chips not in generation.shapes:
    sizes = ', '.join(str(generation.cores * chips) for chips in generation.shapes)
    raise UserError(f'--topology={name}: there are sizes {sizes}; or write the shape, as v3:16x16.')
  return generation.shapes[chips]


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
  """libtpu writes to the process's stderr that this is no TPU host, which we know."""
  sys.stderr.flush()
  kept = os.dup(2)
  with open(os.devnull, 'w') as nowhere:
    os.dup2(nowhere.fileno(), 2)
  try:
    yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)


def _describe(name: str, generation: str, shape: str, slices: int) -> tuple[jax.Device, ...]:
  # Nothing of a TPU is here: no metadata to ask for, and other plans may be made at the same time.
  os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
  os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
  options = dict(_GENERATIONS[generation].options)
  sides = [int(side) for side in shape.split('x')]
  if math.prod(sides) == 1:
    options['chips_per_host_bounds'] = (1, 1, 1)
  if slices > 1:
    options['num_slices'] = slices
  try:
    with _quiet_stderr():
      return tuple(
        topologies.get_topology_desc(platform='tpu', topology_name=f'{generation}:{shape}', **options).devices
      )
  except Exception as error:
    text = ' '.join(str(error).split())
    if 'not installed' in text:
      raise UserError(
        f"--topology={name} needs the TPU compiler, which is not installed; get the extra 'tpu', "
        f"pip install -e '.[tpu]' (any Linux host will do, with or without a TPU)."
      ) from None
    raise UserError(f'--topology={name} cannot be described: {text[:300]}') from None
