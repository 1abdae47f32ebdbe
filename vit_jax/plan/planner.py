"""Plans a run on devices that need not be here: compiles its training step and reads the result."""

import dataclasses
import re
import time
from typing import Any

import jax

from vit_jax.config import Config
from vit_jax.foundation.errors import UserError
from vit_jax.parallel import hardware
from vit_jax.parallel.hardware import Hardware
from vit_jax.parallel.sharding import device_bytes
from vit_jax.plan import hlo, timing
from vit_jax.plan.topology import Topology
from vit_jax.training.run import Dataset, Run

GIB = 2**30
_UNITS = {'K': 2**10, 'M': 2**20, 'G': 2**30}
# libtpu's error for a program that needs more memory than there is. Its temporaries include the arguments.
_TOO_LARGE = re.compile(
  r'temporaries \((?P<needed>[\d.]+)(?P<needed_unit>[KMG])\) '
  r'exceeds available HBM \((?P<available>[\d.]+)(?P<available_unit>[KMG])\)'
)


class NotCompiled(UserError):
  """The compiler refuses a program for another reason than memory; the text ends with the first line of its error."""


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes on each device."""

  params: int  # parameters, and the model's state
  opt_state: int  # the optimizer's state
  ema: int  # the parameters' exponential moving average
  batch: int  # the input of a step
  # Activations kept for the backward pass, gradients and buffers of single operations. None if the program does not
  # fit: the compiler then reports nothing but the total.
  temporaries: int | None
  total: int  # at the peak of a step
  available: int | None  # to a program; None if not known
  frozen: int = 0  # parameters that are not trained, such as teachers' and those of an adapter's base

  @property
  def fits(self) -> bool:
    """Whether the program fits; taken to be so where the available memory is not known."""
    return self.available is None or self.total <= self.available


@dataclasses.dataclass(frozen=True)
class Speed:
  """How fast a run is by the compiler's estimate; nothing is measured."""

  step_seconds: float  # time of a step
  compute_seconds: float  # the part of it in which the device computes
  collective_seconds: float  # the part of it in which the device waits for others
  images_per_second: float  # over all devices
  utilisation: float  # model FLOPs over the devices' peak in bfloat16
  hours: float  # time of the whole run
  device_days: float  # hours times devices; core-days on TPU v2 and v3
  unknown_kernels: int  # custom kernels in a step whose time is not known (kernels.py), and left out


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a config takes on a topology."""

  model: str  # variant
  topology: dict[str, Any]  # name, kind and number of devices
  mesh: dict[str, int]  # axis -> devices along it
  settings: dict[str, Any]  # the options that decide memory and time
  steps: int  # steps of the run
  parameters: int  # number of the model's parameters
  memory: Memory  # on each device
  # Kind -> count, bytes and seconds in a step; empty without an estimate of the time.
  collectives: dict[str, dict[str, float]]
  model_flops: float  # FLOPs of a step, counted from the model's sizes, without recomputation
  # FLOPs of a step on one device as the compiler counts them, which takes the body of a loop once. None if the
  # program does not fit.
  compiler_flops: float | None
  speed: Speed | None  # None if the program does not fit or there is no estimate for it
  compile_seconds: float  # time that compiling took on this host

  def as_json(self) -> dict[str, Any]:
    """The plan as nested dicts of JSON's types."""
    return dataclasses.asdict(self) | {'fits': self.memory.fits}


def ranking_key(plan: Plan) -> tuple[bool, float]:
  """Sorts the best plan first: those that fit by their time, or by their memory where no time is known; then
  those that do not fit, by their memory.
  """
  if plan.memory.fits and plan.speed:
    return False, plan.speed.step_seconds
  return not plan.memory.fits, plan.memory.total


def make_plan(config: Config, topology: Topology, dataset: Dataset) -> Plan:
  """Compiles the trainer's own step for a topology, and reads memory, collectives and time off the result.

  Raises NotCompiled where the compiler refuses the program, and not because it needs too much memory.
  """
  run = Run(config, dataset, topology.devices)
  program, devices = run.program, len(topology.devices)
  known = hardware.of(topology.kind)
  begin = time.perf_counter()
  lowered = program.step.lower(program.state, program.batch, run.frozen_shapes)
  compiled = text = None
  try:
    compiled, text = hlo.compile_and_print(lowered)
    memory = _memory(run, compiled, known)
  except jax.errors.JaxRuntimeError as error:
    memory = _memory_by_error(run, str(error))
    if memory is None:
      said = next(iter(str(error).splitlines()), type(error).__name__)
      raise NotCompiled(
        f'The compiler for {topology.name} refuses this program; choose another config.mesh or other options of '
        f'config.model (it says: {said}).'
      ) from error
  seconds = time.perf_counter() - begin
  model_flops = run.step_flops(config.data.input_size)
  estimate = _estimate(text, run, known)
  return Plan(
    model=config.model.variant,
    topology={'name': topology.name, 'kind': topology.kind, 'devices': devices},
    mesh=dict(run.mesh.shape),
    settings={
      'batch_size': config.batch_size,
      'images_per_device': config.batch_size / devices,
      'accumulation': run.config.batch_parts,
      'image_size': list(config.data.image_size),
      'dtype': run.config.model.dtype,
      'remat': run.config.model.remat,
      'unroll': run.config.model.unroll,
    },
    steps=run.timeline.total,
    parameters=sum(leaf.size for leaf in jax.tree.leaves((program.state.params, program.base))),
    memory=memory,
    collectives=estimate.traffic_by_kind() if estimate else {},
    model_flops=model_flops,
    compiler_flops=(compiled.cost_analysis() or {}).get('flops') if compiled else None,
    speed=_speed(run, estimate, model_flops, known) if estimate and known else None,
    compile_seconds=seconds,
  )


def needed_and_available(error: str) -> tuple[int, int] | None:
  """Bytes that a program needs and those of a device, by the compiler's error; None if it is another error."""
  found = _TOO_LARGE.search(error)
  if not found:
    return None
  needed, available = (
    int(float(found[name]) * _UNITS[found[f'{name}_unit']]) for name in ('needed', 'available')
  )
  return needed, available


def _memory(run: Run, compiled: Any, known: Hardware | None) -> Memory:
  """The memory of a program that was compiled."""
  analysis = compiled.memory_analysis()
  # The new state takes the place of the old one, which is donated: only the metrics need memory of their own.
  outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
  temporaries = analysis.temp_size_in_bytes
  return Memory(
    **_argument_bytes(run),
    temporaries=temporaries,
    total=analysis.argument_size_in_bytes + outputs + temporaries,
    available=int(known.memory) if known and known.memory else None,
  )


def _memory_by_error(run: Run, error: str) -> Memory | None:
  """The memory of a program that does not fit, by the compiler's error; None if it is another error."""
  found = needed_and_available(error)
  if not found:
    return None
  total, available = found
  return Memory(**_argument_bytes(run), temporaries=None, total=total, available=available)


def _argument_bytes(run: Run) -> dict[str, int]:
  """Bytes on each device of what a step is given, as fields of `Memory`."""
  program = run.program
  return {
    'params': device_bytes(program.state.variables),
    'opt_state': device_bytes(program.state.opt_state),
    'ema': device_bytes(program.state.ema),
    'batch': device_bytes(program.batch),
    'frozen': device_bytes(run.frozen_shapes),
  }


def _estimate(text: str | None, run: Run, known: Hardware | None) -> timing.Estimate | None:
  """The time of a step by its program's text; None if there is none, or no estimate for this device."""
  if not text or known is None or not known.clock:
    return None
  return timing.estimate(hlo.parse(text), list(run.mesh.devices.flat), known)


def _speed(run: Run, estimate: timing.Estimate, model_flops: float, known: Hardware) -> Speed:
  seconds, devices = estimate.seconds, run.mesh.size
  whole = seconds * run.training_flops() / model_flops  # steps of smaller images take less
  return Speed(
    step_seconds=seconds,
    compute_seconds=estimate.seconds - estimate.exposed,
    collective_seconds=estimate.exposed,
    images_per_second=run.config.batch_size / seconds,
    utilisation=model_flops / (seconds * devices * known.peak_flops),
    hours=whole / 3600,
    device_days=whole * devices / 86400,
    unknown_kernels=int(estimate.unknown),
  )
