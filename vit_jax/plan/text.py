"""Plans as text for people: one as a table, several as a ranking."""

from collections.abc import Mapping, Sequence

from vit_jax.plan.planner import GIB, Plan, Speed, ranking_key

_ONE_CORE_A_DEVICE = ('TPU v2', 'TPU v3', 'TPU7x')  # of other TPUs, a JAX device is a chip
_NOT_ESTIMATED = 'not known: there is no estimate for this kind of device or this program'
_DISCLAIMER = "Times are the compiler's estimate for a machine that is not here; nothing was measured."


def plan_text(plan: Plan) -> str:
  """A table of everything that a plan knows."""
  topology, settings = plan.topology, plan.settings
  rows = [
    ('devices', f'{topology["devices"]} × {topology["kind"]} ({topology["name"]})'),
    ('mesh', mesh_text(plan)),
    ('batch', f'{settings["batch_size"]:,} images, {settings["images_per_device"]:g} a device'),
    ('settings', settings_text(plan)),
    ('parameters', f'{plan.parameters:,}'),
    *_memory_rows(plan),
    *((kind, _collective_text(traffic)) for kind, traffic in plan.collectives.items()),
    ('model FLOPs a step', f'{plan.model_flops:.3e}'),
  ]
  if plan.compiler_flops is not None:
    flops = f'{plan.compiler_flops:.3e} a device, the body of a loop counted once'
    rows.append(("the compiler's FLOPs", flops))
  if plan.speed:
    rows += _speed_rows(plan, plan.speed)
  elif plan.memory.fits:
    rows.append(('predicted step', _NOT_ESTIMATED))
  rows.append(('compiled here in', f'{plan.compile_seconds:.0f} s'))
  width = max(len(name) for name, _ in rows)
  lines = [f'{plan.model} on {topology["name"]}']
  lines += [f'  {name:<{width}}  {value}'.rstrip() for name, value in rows]
  if plan.speed:
    lines.append(_DISCLAIMER)
  return '\n'.join(lines)


def _memory_rows(plan: Plan) -> list[tuple[str, str]]:
  memory = plan.memory
  rows = [
    ('bytes per device', ''),
    ('  parameters', _size(memory.params)),
    ('  optimizer state', _size(memory.opt_state)),
  ]
  if memory.ema:
    rows.append(('  EMA of the parameters', _size(memory.ema)))
  if memory.frozen:
    rows.append(("  frozen models' parameters", _size(memory.frozen)))
  rows.append(('  batch', _size(memory.batch)))
  if memory.temporaries is not None:
    rows.append(('  activations, gradients, temporaries', _size(memory.temporaries)))
  rows.append(('  together', f'{_used_text(plan)}: {fit_text(plan)}'))
  return rows


def _collective_text(traffic: Mapping[str, float]) -> str:
  count, size, seconds = (traffic[name] for name in ('count', 'bytes', 'seconds'))
  return f'{count:,.0f} a step, {_size(size)} a device, {seconds * 1e3:.1f} ms'


def _speed_rows(plan: Plan, speed: Speed) -> list[tuple[str, str]]:
  parts = f'{speed.compute_seconds * 1e3:.1f} ms computing, {speed.collective_seconds * 1e3:.1f} ms waiting'
  rows = [
    ('predicted step', f'{speed.step_seconds * 1e3:.1f} ms: {parts} for collectives'),
    ('predicted speed', f'{speed.images_per_second:,.0f} images/s, {speed.utilisation:.1%} of peak'),
    ('predicted run', f'{plan.steps:,} steps: {speed.hours:,.1f} h, {_device_days(plan, speed)}'),
  ]
  if speed.unknown_kernels:
    rows.append(('not estimated', f'{speed.unknown_kernels} custom kernels a step; their time is left out'))
  return rows


def fit_text(plan: Plan) -> str:
  """'fits, 10.21 GiB to spare': whether the program fits, and by how much."""
  memory = plan.memory
  if memory.available is None:
    return 'the memory of this device is not known'
  spare = memory.available - memory.total
  return f'fits, {_size(spare)} to spare' if spare >= 0 else f'does not fit, by {_size(-spare)}'


def mesh_text(plan: Plan) -> str:
  """'data 16 × fsdp 8': the axes along which there is more than one device."""
  return ' × '.join(f'{axis} {size}' for axis, size in plan.mesh.items() if size > 1) or 'one device'


def settings_text(plan: Plan) -> str:
  """'accumulation 1, dtype bfloat16, remat none, 224 × 224 px': options that decide memory and time."""
  settings = dict(plan.settings)
  del settings['batch_size'], settings['images_per_device']
  height, width = settings.pop('image_size')
  parts = [
    name if value is True else f'{name} {value}' for name, value in settings.items() if value is not False
  ]
  return ', '.join([*parts, f'{height} × {width} px'])


def ranking_text(plans: Sequence[Plan]) -> str:
  """A table with a line for each plan, the best first, those that do not fit last."""
  header = ('step', 'of peak', 'run', 'memory', 'mesh', 'settings')
  rows = [header, *(_ranking_cells(plan) for plan in sorted(plans, key=ranking_key))]
  widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
  lines = []
  for row in rows:
    cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
    lines.append('  '.join(cells).rstrip())
  return '\n'.join(lines)


def one_line(plan: Plan) -> str:
  """A plan's line of the ranking."""
  return '  '.join(_ranking_cells(plan))


def _ranking_cells(plan: Plan) -> tuple[str, ...]:
  speed = plan.speed
  if not plan.memory.fits:
    predicted = ('-', '-', 'does not fit')
  elif speed is None:
    predicted = ('-', '-', '-')
  else:
    step = f'{speed.step_seconds * 1e3:.1f} ms'
    predicted = (step, f'{speed.utilisation:.1%}', _device_days(plan, speed))
  return (*predicted, _used_text(plan), mesh_text(plan), settings_text(plan))


def _device_days(plan: Plan, speed: Speed) -> str:
  unit = 'core-days' if plan.topology['kind'] in _ONE_CORE_A_DEVICE else 'chip-days'
  return f'{speed.device_days:,.0f} {unit}'


def _used_text(plan: Plan) -> str:
  """'5.27 GiB of 15.48 GiB'."""
  available = plan.memory.available
  return f'{_size(plan.memory.total)} of {"?" if available is None else _size(available)}'


def _size(size: float) -> str:
  """'5.27 GiB', or '4.60 MiB' for less than a hundredth of a GiB."""
  return f'{size / GIB:.2f} GiB' if size >= GIB / 100 else f'{size / 2**20:.2f} MiB'
