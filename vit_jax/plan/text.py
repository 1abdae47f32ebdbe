"""A sheet, and a ranking of several, as a person reads them."""

from collections.abc import Sequence

from vit_jax.plan.planner import GIB, Sheet, Speed, rank

_DAYS = {'TPU v2': 'core-days', 'TPU v3': 'core-days'}


def sheet_text(sheet: Sheet) -> str:
  """A table of everything a plan knows."""
  memory, settings = sheet.memory, sheet.settings
  topology = sheet.topology
  rows = [
    ('devices', f'{topology["devices"]} × {topology["kind"]} ({topology["name"]})'),
    ('mesh', mesh_text(sheet)),
    ('batch', f'{settings["batch_size"]:,} images, {settings["images_per_device"]:g} a device'),
    ('settings', settings_text(sheet)),
    ('parameters', f'{sheet.parameters:,}'),
    ('bytes per device', ''),
    ('  parameters', _gib(memory.params)),
    ('  optimizer state', _gib(memory.opt_state)),
    *([('  parameter average', _gib(memory.average))] if memory.average else []),
    ('  batch', _gib(memory.batch)),
  ]
  if memory.temporaries is not None:
    rows.append(('  activations, gradients, temporaries', _gib(memory.temporaries)))
  rows.append(('  together, of', f'{_gib(memory.total)} of {_of(memory.available)}: {fit_text(sheet)}'))
  for kind, traffic in sheet.collectives.items():
    text = (
      f'{traffic["count"]:,.0f} a step, {_gib(traffic["bytes"])} a device, {traffic["seconds"] * 1e3:.1f} ms'
    )
    rows.append((kind, text))
  rows.append(('model FLOPs a step', f'{sheet.model_flops:.3e}'))
  if sheet.compiler_flops is not None:
    text = f'{sheet.compiler_flops:.3e} a device, the body of a loop counted once'
    rows.append(("the compiler's FLOPs", text))
  if sheet.speed:
    rows += _speed_rows(sheet, sheet.speed)
  elif memory.fits:
    rows.append(('predicted step', 'not known: there is no estimate for this kind of device or this program'))
  rows.append(('compiled here in', f'{sheet.compile_seconds:.0f} s'))
  width = max(len(name) for name, _ in rows)
  lines = [f'{sheet.model} on {topology["name"]}']
  lines += [f'  {name:<{width}}  {value}'.rstrip() for name, value in rows]
  if sheet.speed:
    lines.append("Times are the compiler's estimate for a machine that is not here; nothing was measured.")
  return '\n'.join(lines)


def _speed_rows(sheet: Sheet, speed: Speed) -> list[tuple[str, str]]:
  parts = f'{speed.compute_seconds * 1e3:.1f} ms computing, {speed.collective_seconds * 1e3:.1f} ms waiting'
  rows = [
    ('predicted step', f'{speed.step_seconds * 1e3:.1f} ms: {parts} for collectives'),
    ('predicted speed', f'{speed.images_per_second:,.0f} images/s, {speed.utilisation:.1%} of peak'),
    ('predicted run', f'{sheet.steps:,} steps: {speed.hours:,.1f} h, {days_text(sheet)}'),
  ]
  if speed.unknown_kernels:
    rows.append(('not estimated', f'{speed.unknown_kernels} custom kernels a step; their time is left out'))
  return rows


def fit_text(sheet: Sheet) -> str:
  memory = sheet.memory
  if memory.available is None:
    return 'the memory of this device is not known'
  spare = memory.available - memory.total
  return f'fits, {_gib(spare)} to spare' if spare >= 0 else f'does not fit, by {_gib(-spare)}'


def mesh_text(sheet: Sheet) -> str:
  return ' × '.join(f'{axis} {size}' for axis, size in sheet.mesh.items() if size > 1) or 'one device'


def settings_text(sheet: Sheet) -> str:
  settings = sheet.settings
  unroll = ', unrolled' if settings['unroll'] else ''
  height, width = settings['image_size']
  return (
    f'remat {settings["remat"]}, accumulation {settings["accumulation"]}, {settings["dtype"]}{unroll}, '
    f'{height} × {width} px'
  )


def days_text(sheet: Sheet) -> str:
  return f'{sheet.speed.device_days:,.0f} {_DAYS.get(sheet.topology["kind"], "chip-days")}'


def ranking_text(sheets: Sequence[Sheet]) -> str:
  """One line a plan, the fastest first, those that do not fit last."""
  header = ('step', 'of peak', 'run', 'memory', 'mesh', 'settings')
  rows = [header]
  for sheet in sorted(sheets, key=rank):
    memory = f'{_gib(sheet.memory.total)} of {_of(sheet.memory.available)}'
    tail = (memory, mesh_text(sheet), settings_text(sheet))
    if sheet.speed and sheet.memory.fits:
      speed = sheet.speed
      head = (f'{speed.step_seconds * 1e3:.1f} ms', f'{speed.utilisation:.1%}', days_text(sheet))
    else:
      head = ('-', '-', 'does not fit' if not sheet.memory.fits else '-')
    rows.append((*head, *tail))
  widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
  return '\n'.join(
    '  '.join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
  )


def _gib(size: float) -> str:
  return f'{size / GIB:.2f} GiB' if size >= GIB / 100 else f'{size / 2**20:.2f} MiB'


def _of(available: int | None) -> str:
  return '?' if available is None else _gib(available)
