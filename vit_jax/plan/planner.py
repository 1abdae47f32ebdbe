"""A plan's sheet: what a run takes on devices that need not be here."""

import dataclasses
import re
import time
from typing import Any

import jax

from vit_jax import durations
from vit_jax.config import Config
from vit_jax.models import flops
from vit_jax.parallel import hardware
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.plan import hlo, timing
from vit_jax.plan.topology import Topology
from vit_jax.training.step import Program, make_train_step

GIB = 2**30
# libtpu's words for a program that needs more memory than there is; its arguments are among them.
_TOO_LARGE = re.compile(r'temporaries \(([\d.]+)([KMG])\) exceeds available HBM \(([\d.]+)([KMG])\)')
_UNITS = {'K': 2**10, 'M': 2**20, 'G': 2**30}


@dataclasses.dataclass(frozen=True)
class Size:
  """How large the data set is: what a plan knows of it.

  Attributes:
    examples: training images an epoch.
    classes: of the head.
  """

  examples: int
  classes: int


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes on each device.

  Attributes:
    params, opt_state, average: the training state.
    batch: the step's input.
    temporaries: activations kept for the backward pass, gradients, and what operations need meanwhile; None
      where the program does not fit, because then the compiler does not say.
    total: at its peak.
    available: to a program; None: not known.
  """

  params: int
  opt_state: int
  average: int
  batch: int
  temporaries: int | None
  total: int
  available: int | None

  @property
  def fits(self) -> bool:
    return self.available is None or self.total <= self.available


@dataclasses.dataclass(frozen=True)
class Speed:
  """By the compiler's estimate, not measured.

  Attributes:
    step_seconds: of one step.
    compute_seconds: of that, by the compiler's cycles.
    collective_seconds: of that, waiting for other devices.
    images_per_second: over all devices.
    utilisation: model FLOPs over the devices' bfloat16 peak.
    hours: of the whole run.
    device_days: hours times devices; for TPU v2 and v3, core-days.
    unknown_kernels: custom kernels a step, whose time the compiler does not estimate and is left out.
  """

  step_seconds: float
  compute_seconds: float
  collective_seconds: float
  images_per_second: float
  utilisation: float
  hours: float
  device_days: float
  unknown_kernels: int


@dataclasses.dataclass(frozen=True)
class Sheet:
  """The plan of one config on one topology.

  Attributes:
    model: variant.
    topology: name, kind and number of devices.
    mesh: axis -> devices.
    settings: what else decides memory and time.
    steps: of the run.
    parameters: how many.
    memory: on each device.
    collectives: kind -> count, bytes and seconds a step; empty where the program does not fit.
    model_flops: of a step, counted from the model's sizes; recomputation excluded.
    compiler_flops: of a step on one device, as the compiler counts: the body of a loop once.
    speed: None where the program does not fit, cannot be read, or the compiler has no estimate for this kind
      of device.
    compile_seconds: on this host.
  """

  model: str
  topology: dict[str, Any]
  mesh: dict[str, int]
  settings: dict[str, Any]
  steps: int
  parameters: int
  memory: Memory
  collectives: dict[str, dict[str, float]]
  model_flops: float
  compiler_flops: float | None
  speed: Speed | None
  compile_seconds: float

  def as_json(self) -> dict[str, Any]:
    return dataclasses.asdict(self) | {'fits': self.memory.fits}


def rank(sheet: Sheet) -> tuple[bool, float]:
  """Key to sort sheets by: those that fit by their time, then the others by how much they lack."""
  if not sheet.memory.fits or not sheet.speed:
    return not sheet.memory.fits, sheet.memory.total
  return False, sheet.speed.step_seconds


def make_sheet(config: Config, topology: Topology, size: Size) -> Sheet:
  """Compiles the very step that the trainer runs, for these devices, and reads the result.

  Raises:
    UserError: a config that does not go with the devices.
  """
  mesh = mesh_lib.make_mesh(config.mesh, topology.devices)
  program = make_train_step(config, mesh, num_classes=size.classes, examples=size.examples)
  begin = time.perf_counter()
  lowered = program.step.lower(program.state, program.batch)
  compiled, too_large = None, None
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    too_large = _TOO_LARGE.search(str(error))
    if not too_large:
      raise
  seconds = time.perf_counter() - begin
  steps = durations.steps(config.total, batch_size=config.batch_size, examples=size.examples)
  model_flops = _model_flops(config, size)
  known = hardware.of(topology.kind)
  text = _text(compiled) if compiled and known and known.clock else None
  estimate = timing.estimate(hlo.parse(text), list(mesh.devices.flat), known) if text else None
  return Sheet(
    model=config.model.variant,
    topology={'name': topology.name, 'kind': topology.kind, 'devices': len(topology.devices)},
    mesh=dict(mesh.shape),
    settings={
      'batch_size': config.batch_size,
      'images_per_device': config.batch_size / len(topology.devices),
      'accumulation': config.accumulation,
      'image_size': list(config.data.image_size),
      'dtype': config.model.dtype,
      'remat': config.model.remat,
      'unroll': config.model.unroll,
    },
    steps=steps,
    parameters=sum(leaf.size for leaf in jax.tree.leaves(program.state.params)),
    memory=_memory(program, compiled, too_large, known),
    collectives={k: dataclasses.asdict(v) for k, v in estimate.traffic.items()} if estimate else {},
    model_flops=model_flops,
    compiler_flops=_compiler_flops(compiled),
    speed=_speed(config, estimate, model_flops, steps, len(topology.devices), known) if estimate else None,
    compile_seconds=seconds,
  )


def _model_flops(config: Config, size: Size) -> float:
  forward = flops.forward_flops(
    config.model,
    image_size=config.data.image_size,
    channels=config.data.channels,
    num_classes=size.classes,
  )
  return float(flops.train_flops(forward) * config.batch_size)


def _text(compiled: Any) -> str | None:
  """The compiled program; None: XLA cannot read again what it has compiled (some programs for TPU v6e)."""
  try:
    return compiled.as_text()
  except jax.errors.JaxRuntimeError:
    return None


def _compiler_flops(compiled: Any) -> float | None:
  return (compiled.cost_analysis() or {}).get('flops') if compiled else None


def _memory(
  program: Program, compiled: Any, too_large: re.Match[str] | None, known: hardware.Hardware | None
) -> Memory:
  state = program.state
  parts = {
    'params': device_bytes(state.params),
    'opt_state': device_bytes(state.opt_state),
    'average': device_bytes(state.average),
    'batch': device_bytes(program.batch),
  }
  if too_large:
    used, used_unit, there, unit = too_large.groups()
    total, available = float(used) * _UNITS[used_unit], float(there) * _UNITS[unit]
    return Memory(**parts, temporaries=None, total=int(total), available=int(available))
  analysis = compiled.memory_analysis()
  # What the step gives takes the place of what it was given (donated), but for the metrics.
  outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
  temporaries = analysis.temp_size_in_bytes
  total = analysis.argument_size_in_bytes + outputs + temporaries
  return Memory(
    **parts, temporaries=temporaries, total=total, available=int(known.memory) or None if known else None
  )


def device_bytes(tree: Any) -> int:
  """Bytes of the largest part on one device, of ShapeDtypeStructs with shardings."""
  part = lambda leaf: jax.ShapeDtypeStruct(leaf.sharding.shard_shape(leaf.shape), leaf.dtype)
  return sum(part(leaf).size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _speed(
  config: Config,
  estimate: timing.Estimate,
  model_flops: float,
  steps: int,
  devices: int,
  known: hardware.Hardware,
) -> Speed:
  seconds = estimate.seconds
  return Speed(
    step_seconds=seconds,
    compute_seconds=estimate.compute + estimate.memory + estimate.copies,
    collective_seconds=estimate.exposed,
    images_per_second=config.batch_size / seconds,
    utilisation=model_flops / (seconds * devices * known.peak_flops),
    hours=steps * seconds / 3600,
    device_days=steps * seconds * devices / 86400,
    unknown_kernels=int(estimate.unknown),
  )
