"""How long a step of a compiled TPU program takes, by the compiler's own cycle counts.

The compiler leaves its estimate in cycles on nearly every instruction of a program. We walk through them in
the order in which they are scheduled, each loop's body as often as it runs. What the compiler does not
estimate is counted as bytes over a bandwidth: collectives by the links between the chips that they use,
copies by the memory's. What was started asynchronously costs what is left of it when its result is needed.
"""

import collections
import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from vit_jax.parallel.hardware import Hardware
from vit_jax.plan import hlo

_COLLECTIVES = ('all-gather', 'all-reduce', 'reduce-scatter', 'all-to-all', 'collective-permute')
_HOP_SECONDS = 1e-6  # latency from a chip to the next
# Take no time of their own: they name, group or begin what others do.
_FREE = (
  'parameter',
  'constant',
  'tuple',
  'get-tuple-element',
  'bitcast',
  'iota',
  'partition-id',
  'after-all',
)


@dataclasses.dataclass
class Traffic:
  """The collectives of one kind in one step.

  Attributes:
    count: how many.
    bytes: that each device gives or gets, summed over them.
    seconds: on the links, whether or not something else goes on meanwhile.
  """

  count: float = 0
  bytes: float = 0
  seconds: float = 0


@dataclasses.dataclass
class Estimate:
  """The time of one step.

  Attributes:
    compute: seconds by the compiler's cycles.
    memory: seconds of copies that have no cycle count.
    exposed: seconds in which the device waits for collectives.
    copies: seconds in which it waits for asynchronous copies between memories.
    unknown: instructions that do work but say nothing of it: kernels of our own.
    traffic: by kind of collective.
  """

  compute: float = 0
  memory: float = 0
  exposed: float = 0
  copies: float = 0
  unknown: float = 0
  traffic: dict[str, Traffic] = dataclasses.field(default_factory=lambda: collections.defaultdict(Traffic))

  @property
  def seconds(self) -> float:
    return self.compute + self.memory + self.exposed + self.copies

  def add(self, other: 'Estimate', times: int) -> None:
    for field in ('compute', 'memory', 'exposed', 'copies', 'unknown'):
      setattr(self, field, getattr(self, field) + times * getattr(other, field))
    for kind, traffic in other.traffic.items():
      mine = self.traffic[kind]
      for field in dataclasses.fields(Traffic):
        setattr(mine, field.name, getattr(mine, field.name) + times * getattr(traffic, field.name))


def estimate(module: hlo.Module, devices: Sequence[jax.Device], hardware: Hardware) -> Estimate:
  """The time of one run of a program.

  Args:
    module: compiled for TPUs, scheduled.
    devices: in the order of the program (`mesh.devices.flat`); where they lie decides what a
      collective costs.
    hardware: of each of them.
  """
  return _Walk(module, _Network(devices, hardware), hardware).computation(module.entry)


class _Walk:
  """Adds up the instructions of computations, each computation once."""

  def __init__(self, module: hlo.Module, network: '_Network', hardware: Hardware):
    self._module, self._network, self._hardware = module, network, hardware
    self._done: dict[str, Estimate] = {}

  def computation(self, name: str) -> Estimate:
    if name not in self._done:
      self._done[name] = self._walk(self._module.computations[name])
    return self._done[name]

  def _walk(self, instructions: Sequence[hlo.Instruction]) -> Estimate:
    total = Estimate()
    sizes = {i.name: i.bytes for i in instructions}
    free_at: dict[object, float] = collections.defaultdict(float)  # of a link or the memory's engine
    ready: dict[str, tuple[float, bool]] = {}  # of what was started: when, and whether a collective
    for i in map(self._unfused, instructions):
      kind = i.opcode.removesuffix('-start').removesuffix('-done')
      if i.opcode in _FREE:
        continue
      if i.opcode == 'while':
        total.add(self.computation(i.attribute('body')), self._module.trips(i))
      elif i.opcode in ('call', 'async-start') and i.attribute('(?:to_apply|calls)'):
        total.add(self.computation(i.attribute('(?:to_apply|calls)')), 1)
      elif i.opcode.endswith('-start'):
        collective = kind in _COLLECTIVES
        seconds, lane = (
          self._collective(total, i, kind)
          if collective
          else (hlo.payload(i.shape, start=True) / self._hardware.memory_bandwidth, 'memory')
        )
        free_at[lane] = max(total.seconds, free_at[lane]) + seconds
        ready[i.name] = free_at[lane], collective
      elif i.opcode.endswith('-done'):
        when, collective = ready.get(i.operands[0], (0.0, True))
        wait = max(0.0, when - total.seconds)
        if collective:
          total.exposed += wait
        else:
          total.copies += wait
      elif kind in _COLLECTIVES:
        total.exposed += self._collective(total, i, kind)[0]
      elif i.cycles is not None:
        total.compute += i.cycles / self._hardware.clock
      elif i.opcode == 'custom-call':
        total.unknown += 'tpu_custom_call' in i.attributes
      else:
        moved = self._moved(i, sizes)
        total.memory += moved / self._hardware.memory_bandwidth
    return total

  def _unfused(self, i: hlo.Instruction) -> hlo.Instruction:
    """The collective that a fusion without cycles is: a reduce-scatter, written as an all-reduce and a slice
    of it; or the start, or the end, of one that goes on while other fusions compute. Others as they are."""
    if i.opcode != 'fusion' or i.cycles is not None:
      return i
    inside = self._module.computations[i.attribute('calls')]
    inner = next((j for j in inside if j.opcode in _COLLECTIVES), None)
    if not inner:
      return i
    channel = inner.attribute('channel_id')
    targets = {j.attribute('custom_call_target') for j in inside}
    if 'AsyncCollectiveStart' in targets:
      return dataclasses.replace(i, name=channel, opcode=f'{inner.opcode}-start', attributes=inner.attributes)
    if 'AsyncCollectiveDone' in targets:
      return dataclasses.replace(i, opcode=f'{inner.opcode}-done', operands=(channel,))
    if inner.opcode == 'all-reduce':
      return dataclasses.replace(i, opcode='reduce-scatter', attributes=inner.attributes)
    return i

  def _moved(self, i: hlo.Instruction, sizes: dict[str, float]) -> float:
    """Bytes read and written by an instruction without a cycle count."""
    if i.opcode == 'dynamic-update-slice':  # in place
      return 2 * sizes.get(i.operands[1], 0)
    if i.opcode in ('slice', 'dynamic-slice', 'broadcast'):
      return 2 * i.bytes
    return i.bytes + sum(sizes.get(name, 0) for name in i.operands)

  def _collective(self, total: Estimate, i: hlo.Instruction, kind: str) -> tuple[float, object]:
    """Seconds on the links, and which direction of them it uses."""
    # The start of an all-reduce gives its result only; that of the others has their operands too.
    size = hlo.payload(i.shape, start=i.opcode.endswith('-start') and kind != 'all-reduce')
    if kind == 'collective-permute':
      messages = hlo.pairs(i)
      seconds, lane = self._network.permute(size, messages), messages[0][1] if messages else None
    else:
      seconds, lane = self._network.collective(kind, size, hlo.groups(i, self._network.size)), 'links'
    traffic = total.traffic[kind]
    traffic.count += 1
    traffic.bytes += size
    traffic.seconds += seconds
    return seconds, lane


class _Network:
  """What collectives cost on a torus of chips, and between slices.

  A ring over one dimension sends both ways at once, so gathering V bytes takes V / (2 links) seconds, less
  over several dimensions at once; without the link that closes the ring one way is all there is. Reducing
  is gathering backwards; an all-reduce is both. ('How to scale your model', jax-ml.github.io/scaling-book,
  section 3.)
  """

  def __init__(self, devices: Sequence[jax.Device], hardware: Hardware):
    self._hardware = hardware
    self.size = len(devices)
    slices = [getattr(device, 'slice_index', None) or 0 for device in devices]
    self._places = np.array(
      [(s, *d.coords) for s, d in zip(slices, devices, strict=True)]
    )  # (slice, x, y, z)
    self._extent = self._places.max(axis=0) + 1
    self._cores = max(getattr(device, 'core_on_chip', 0) for device in devices) + 1

  def collective(self, kind: str, size: float, groups: np.ndarray) -> float:
    """Seconds of a collective whose result, or for a reduce-scatter whose operand, has `size` bytes."""
    group = groups[0]
    if len(group) < 2:
      return 0.0
    places = self._places[group]
    if kind == 'reduce-scatter':
      size *= len(group)  # its shape is that of the part
    volume = {'all-reduce': 2 * size, 'all-to-all': size * len(group) / 4}.get(kind, size)
    chips = len(np.unique(places, axis=0))
    if chips == 1:
      return volume / self._hardware.memory_bandwidth
    # The cores of a chip that are in other groups send over the same links at the same time.
    volume *= self._cores * chips / len(group)
    slices = len(np.unique(places[:, 0]))
    seconds = 0.0
    if slices > 1:  # each chip sends its part of the whole over the network
      seconds += volume / (chips / slices) / (self._hardware.network_bandwidth * self._cores)
    spans = [len(np.unique(places[:, axis])) for axis in (1, 2, 3)]
    rates = [self._rate(axis) for axis, span in zip((1, 2, 3), spans, strict=True) if span > 1]
    if rates:
      seconds += volume / sum(rates) + _HOP_SECONDS * sum(span - 1 for span in spans) / 2
    return seconds

  def _rate(self, axis: int) -> float:
    """Bytes/s into a chip along a dimension of the torus."""
    ring = self._hardware.ring
    closed = ring and self._extent[axis] % ring == 0
    return (2 if closed else 1) * self._hardware.link_bandwidth

  def permute(self, size: float, messages: list[tuple[int, int]]) -> float:
    """Seconds until the message with the longest way has arrived."""
    if not messages:
      return 0.0
    source, target = np.array(messages).T
    way = np.abs(self._places[source] - self._places[target])
    if way[:, 0].any():
      return size / self._hardware.network_bandwidth
    closed = [self._rate(axis) > self._hardware.link_bandwidth for axis in (1, 2, 3)]
    around = np.where(closed, np.minimum(way[:, 1:], self._extent[1:] - way[:, 1:]), way[:, 1:])
    hops = int(around.sum(axis=1).max())
    if not hops:
      return size / self._hardware.memory_bandwidth
    return hops * (size / self._hardware.link_bandwidth + _HOP_SECONDS)
