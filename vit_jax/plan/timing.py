"""How long a step of a compiled TPU program takes, by the compiler's own cycle counts.

The compiler leaves its estimate in cycles on nearly every instruction of a program. We walk through them in
the order in which they are scheduled, each loop's body as often as it runs. What has no estimate is counted
as bytes over a bandwidth: collectives by the links between chips that they use, what crosses slices by the network,
copies by the memory's. An asynchronous instruction costs the time that is left of it when its result is needed.
"""

import collections
import dataclasses
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from vit_jax.parallel.hardware import Hardware
from vit_jax.plan import hlo

_COLLECTIVES = ('all-gather', 'all-reduce', 'reduce-scatter', 'all-to-all', 'collective-permute')
# What crosses slices is given to a program of the hosts, libtpu's megascale runtime, and received from it.
_CROSSING = re.compile(r'_xla_host_transfer_rendezvous="([^"]+)".*_xla_megascale_transfer_type="(\w+)"')
_HOP_SECONDS = 1e-6  # latency from a chip to the next
# These take no time of their own: they name or group the results of others.
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
  """The collectives of one kind in a step."""

  count: float = 0  # how many
  bytes: float = 0  # that each device gives or gets, over all of them
  seconds: float = 0  # on the links, whether or not the device computes meanwhile

  def add(self, other: 'Traffic', times: float = 1) -> None:
    """Counts the other traffic, `times` times."""
    self.count += times * other.count
    self.bytes += times * other.bytes
    self.seconds += times * other.seconds


@dataclasses.dataclass
class Estimate:
  """The time of a step."""

  compute: float = 0  # seconds by the compiler's cycles
  kernels: float = 0  # seconds of custom kernels, by schedule (kernels.py), or to move their operands
  memory: float = 0  # seconds of operations without cycles, by the bytes that they read and write
  exposed: float = 0  # seconds in which the device waits for collectives
  copies: float = 0  # seconds in which it waits for asynchronous copies between memories
  unknown: float = 0  # custom kernels whose time is not known (kernels.py)
  # Kind of collective -> its traffic.
  traffic: dict[str, Traffic] = dataclasses.field(default_factory=lambda: collections.defaultdict(Traffic))

  @property
  def seconds(self) -> float:
    """Time of all of it."""
    return self.compute + self.kernels + self.memory + self.exposed + self.copies

  def add(self, other: 'Estimate', times: float) -> None:
    """Counts the other estimate, `times` times."""
    self.compute += times * other.compute
    self.kernels += times * other.kernels
    self.memory += times * other.memory
    self.exposed += times * other.exposed
    self.copies += times * other.copies
    self.unknown += times * other.unknown
    for kind, traffic in other.traffic.items():
      self.traffic[kind].add(traffic, times)

  def traffic_by_kind(self) -> dict[str, dict[str, float]]:
    """`traffic` as nested dicts: kind -> {'count': …, 'bytes': …, 'seconds': …}."""
    return {kind: dataclasses.asdict(traffic) for kind, traffic in self.traffic.items()}


def estimate(
  module: hlo.Module,
  devices: Sequence[jax.Device],  # pyright: ignore[reportInvalidTypeForm] (jaxlib is untyped)
  hardware: Hardware,
) -> Estimate:
  """The time of one run of a program that was compiled for TPUs, and scheduled.

  The devices are in the program's order (`mesh.devices.flat`): the cost of a collective depends on where they lie.
  """
  return _Program(module, _Network(devices, hardware), hardware).computation(module.entry)


class _Program:
  """Estimates the computations of a program, each of them once."""

  def __init__(self, module: hlo.Module, network: '_Network', hardware: Hardware):
    self.module, self.network, self.hardware = module, network, hardware
    self._done: dict[str, Estimate] = {}

  def computation(self, name: str) -> Estimate:
    """One run of a computation."""
    if name not in self._done:
      self._done[name] = _Schedule(self, self.module.computations[name]).run()
    return self._done[name]


class _Lane(NamedTuple):
  """A resource that asynchronous instructions use one after the other."""

  kind: str  # 'links', 'network', 'memory' or 'permute'
  # Of a permute, the device to which the first one sends: different directions do not share links.
  target: int | None = None


class _Started(NamedTuple):
  """An asynchronous instruction under way: when it ends, and whether it is a collective or a copy."""

  end: float
  collective: bool


class _Schedule:
  """Runs through the instructions of one computation; the time so far is the estimate's."""

  def __init__(self, program: _Program, instructions: Sequence[hlo.Instruction]):
    self._program, self._instructions = program, instructions
    self._hardware = program.hardware
    self._sizes = {i.name: i.bytes for i in instructions}
    self._free_at: dict[_Lane, float] = collections.defaultdict(float)
    self._started: dict[str, _Started] = {}
    # 'async-start' without operands -> what it runs as soon as an 'async-update' brings them.
    self._prepared: dict[str, hlo.Instruction] = {}
    # Of what crosses slices: name of a send or recv -> the name that the two have in common.
    self._meetings: dict[str, str] = {}
    self._total = Estimate()

  def run(self) -> Estimate:
    """The time of all instructions."""
    for instruction in self._instructions:
      self._add(self._unfused(instruction))
    return self._total

  def _add(self, i: hlo.Instruction) -> None:
    if i.opcode in _FREE:
      return
    kind = i.opcode.removesuffix('-start').removesuffix('-done')
    if i.opcode == 'while':
      body = self._program.computation(i.attribute('body') or '')
      self._total.add(body, self._program.module.trip_count(i))
    elif i.opcode == 'call' and (callee := i.attribute('to_apply') or i.attribute('calls')):
      self._total.add(self._program.computation(callee), 1)
    elif i.opcode == 'conditional':  # of patch sizes, each of which is as likely
      for name in (branches := i.branches):
        self._total.add(self._program.computation(name), 1 / len(branches))
    elif i.opcode in ('async-start', 'async-update'):
      self._asynchronous(i)
    elif i.opcode in ('send', 'recv') and (crossing := _CROSSING.search(i.attributes)):
      self._cross(i, *crossing.groups())
    elif i.opcode.endswith('-start'):
      self._start(i, kind)
    elif i.opcode.endswith('-done'):
      self._finish(i)
    elif kind in _COLLECTIVES:
      seconds, _ = self._collective(i, kind)
      self._total.exposed += seconds
    else:
      self._compute(i)

  def _compute(self, i: hlo.Instruction) -> None:
    """An instruction that is neither control flow nor communication."""
    seconds = None if i.cycles is None else i.cycles / self._hardware.clock
    if 'tpu_custom_call' in i.attributes:
      if seconds is None:
        self._total.unknown += 1
      else:
        self._total.kernels += max(seconds, self._moved(i) / self._hardware.memory_bandwidth)
    elif seconds is not None:
      self._total.compute += seconds
    elif i.opcode != 'custom-call':
      self._total.memory += self._moved(i) / self._hardware.memory_bandwidth

  def _asynchronous(self, i: hlo.Instruction) -> None:
    """An 'async-start' of a computation, which begins now or with the 'async-update' that brings its operands."""
    if i.opcode == 'async-update':
      wrapped = self._prepared.pop(i.operands[0], None)
    elif wrapped := self._wrapped(i):
      if not any(i.operands):
        self._prepared[i.name] = wrapped
        return
    else:
      self._total.add(self._program.computation(i.attribute('calls') or ''), 1)
    if wrapped:
      self._start(dataclasses.replace(wrapped, name=i.name), wrapped.opcode.removesuffix('-start'))

  def _start(self, i: hlo.Instruction, kind: str) -> None:
    collective = kind in _COLLECTIVES
    if collective:
      seconds, lane = self._collective(i, kind)
    else:
      seconds = hlo.payload(i.shape, start=True) / self._hardware.memory_bandwidth
      lane = _Lane('memory')
    self._begin(i.name, lane, seconds, collective=collective)

  def _begin(self, name: str, lane: _Lane, seconds: float, *, collective: bool) -> None:
    """Starts what takes so long on a lane, once that is free."""
    self._free_at[lane] = max(self._total.seconds, self._free_at[lane]) + seconds
    self._started[name] = _Started(self._free_at[lane], collective)

  def _cross(self, i: hlo.Instruction, meeting: str, kind: str) -> None:
    """A 'send' of this slice's array to the others, which takes the time, or the 'recv' of what becomes of all arrays.

    `meeting` is the name that the two have in common, `kind` one of libtpu's, such as 'ALL_REDUCE'.
    """
    self._meetings[i.name] = meeting
    if i.opcode == 'recv':
      return
    size = hlo.payload(i.shape, start=True)
    seconds = self._program.network.between_slices(kind, size)
    self._begin(meeting, _Lane('network'), seconds, collective=True)
    name = f'{kind.lower().replace("_", "-")} between slices'
    self._total.traffic[name].add(Traffic(1, size, seconds))

  def _finish(self, i: hlo.Instruction) -> None:
    if i.opcode == 'send-done':  # frees the buffer; what is waited for is received
      return
    started = self._started.get(self._meetings.get(i.operands[0], i.operands[0]))
    if started is None:
      return
    wait = max(0.0, started.end - self._total.seconds)
    if started.collective:
      self._total.exposed += wait
    else:
      self._total.copies += wait

  def _unfused(self, i: hlo.Instruction) -> hlo.Instruction:
    """The collective in a fusion without cycles, or else the instruction as it is.

    Such a fusion is a reduce-scatter, written as an all-reduce and a slice of it, or the start or the end of
    a collective that goes on while other fusions compute.
    """
    if i.opcode != 'fusion' or i.cycles is not None:
      return i
    inside = self._program.module.called(i, 'calls')
    inner = next((j for j in inside if j.opcode in _COLLECTIVES), None)
    if not inner:
      return i
    # What started and what it ends have the channel in common.
    channel = inner.attribute('channel_id') or ''
    targets = {j.attribute('custom_call_target') for j in inside}
    if 'AsyncCollectiveStart' in targets:
      return dataclasses.replace(i, name=channel, opcode=f'{inner.opcode}-start', attributes=inner.attributes)
    if 'AsyncCollectiveDone' in targets:
      return dataclasses.replace(i, opcode=f'{inner.opcode}-done', operands=(channel,))
    if inner.opcode == 'all-reduce':
      return dataclasses.replace(i, opcode='reduce-scatter', attributes=inner.attributes)
    return i

  def _wrapped(self, i: hlo.Instruction) -> hlo.Instruction | None:
    """The one operation that an 'async-start' runs: a collective, or the start of a copy.

    None if it runs several. On TPU v6e and v7x the SparseCore has a custom call of the collective.
    """
    inside = self._program.module.called(i, 'calls')
    if inside and inside[-1].opcode == 'custom-call':
      inside = self._program.module.called(inside[-1], 'called_computations')
    operations = [self._unfused(j) for j in inside if j.opcode not in _FREE]
    if len(operations) != 1:
      return None
    inner = operations[0]
    if inner.opcode in _COLLECTIVES:
      return inner
    return dataclasses.replace(i, opcode=f'{inner.opcode}-start')

  def _moved(self, i: hlo.Instruction) -> float:
    """Bytes that an instruction without a cycle count reads and writes."""
    if i.opcode == 'dynamic-update-slice':  # in place
      return 2 * self._sizes.get(i.operands[1], 0)
    if i.opcode in ('slice', 'dynamic-slice', 'broadcast'):
      return 2 * i.bytes
    return i.bytes + sum(self._sizes.get(name, 0) for name in i.operands)

  def _collective(self, i: hlo.Instruction, kind: str) -> tuple[float, _Lane]:
    """Counts a collective; its seconds on the links, and which of them it uses."""
    network = self._program.network
    # The start of an all-reduce gives its result alone; the start of another one its operands too.
    size = hlo.payload(i.shape, start=i.opcode.endswith('-start') and kind != 'all-reduce')
    if kind == 'collective-permute':
      messages = hlo.pairs(i)
      seconds = network.permute(size, messages)
      lane = _Lane('permute', messages[0][1] if messages else None)
    else:
      seconds, lane = network.collective(kind, size, hlo.groups(i, network.size)), _Lane('links')
    self._total.traffic[kind].add(Traffic(1, size, seconds))
    return seconds, lane


class _Network:
  """The cost of collectives on a torus of chips, and between slices.

  A ring over one dimension sends both ways at once, so that gathering V bytes takes V / (2 links) seconds,
  and less over several dimensions at once. Without the link that closes the ring there is only one way.
  Reducing is gathering backwards; an all-reduce is both. ('How to scale your model',
  jax-ml.github.io/scaling-book, section 3.)
  """

  def __init__(
    self,
    devices: Sequence[jax.Device],  # pyright: ignore[reportInvalidTypeForm] (jaxlib is untyped)
    hardware: Hardware,
  ):
    self._hardware = hardware
    self.size = len(devices)
    slices = [getattr(device, 'slice_index', None) or 0 for device in devices]
    # int (devices, 4): slice, x, y, z of the chip.
    self._places = np.array([(s, *d.coords) for s, d in zip(slices, devices, strict=True)])
    self._extent = self._places.max(axis=0) + 1
    self._cores = max(getattr(device, 'core_on_chip', 0) for device in devices) + 1

  def collective(self, kind: str, size: float, groups: np.ndarray) -> float:
    """Seconds of a collective such as 'all-gather', whose result has `size` bytes on each device of its groups."""
    group = groups[0]
    if len(group) < 2:
      return 0.0
    places = self._places[group]
    if kind == 'reduce-scatter':
      size *= len(group)  # of the whole, of which the result is a part
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

  def between_slices(self, kind: str, size: float) -> float:
    """Seconds in which each device sends and gets its part of what crosses the slices; it gives `size` bytes."""
    slices = self._extent[0]
    volume = 2 * size / slices if kind == 'ALL_REDUCE' else size
    return volume * (slices - 1) / self._hardware.network_bandwidth

  def _rate(self, axis: int) -> float:
    """Bytes/s into a chip along a dimension of the torus."""
    return (2 if self._closed(axis) else 1) * self._hardware.link_bandwidth

  def _closed(self, axis: int) -> bool:
    """Whether the chips along a dimension form a ring."""
    ring = self._hardware.ring
    return ring > 0 and bool(self._extent[axis] % ring == 0)

  def permute(self, size: float, messages: list[tuple[int, int]]) -> float:
    """Seconds until the (source, target) message with the longest way has arrived; each has `size` bytes."""
    if not messages:
      return 0.0
    source, target = np.array(messages).T
    way = np.abs(self._places[source] - self._places[target])
    if way[:, 0].any():
      return size / self._hardware.network_bandwidth
    closed = [self._closed(axis) for axis in (1, 2, 3)]
    around = np.where(closed, np.minimum(way[:, 1:], self._extent[1:] - way[:, 1:]), way[:, 1:])
    hops = int(around.sum(axis=1).max())
    if not hops:
      return size / self._hardware.memory_bandwidth
    return hops * (size / self._hardware.link_bandwidth + _HOP_SECONDS)
