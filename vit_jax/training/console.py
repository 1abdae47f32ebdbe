"""What a person sees while a run goes on: one process prints, a bar where there is a terminal."""

import math
import sys
from typing import Any

import jax
import tqdm

from vit_jax.training import optimizer
from vit_jax.training.step import Program

_MIB = 2**20


class Console:
  """Prints on process 0 only; the progress bar, if there is one, stays below the lines."""

  def __init__(self):
    self._first = jax.process_index() == 0
    self._bar: tqdm.tqdm | None = None

  def begin(self, first_step: int, total_steps: int) -> None:
    """Shows the bar, if this is a terminal. Its time begins now."""
    if self._first and sys.stderr.isatty():
      form = '{percentage:3.0f}% |{bar}| step {n_fmt}/{total_fmt} [{elapsed}{postfix}]'
      self._bar = tqdm.tqdm(total=total_steps, initial=first_step, bar_format=form, dynamic_ncols=True)

  def step(self) -> None:
    if self._bar is not None:
      self._bar.update()

  def say(self, text: str) -> None:
    if self._bar is not None:
      self._bar.write(text)
    elif self._first:
      print(text, flush=True)

  def training(self, step: int, total: int, values: dict[str, float]) -> None:
    """The numbers of a logged step: behind the bar, or as a line."""
    text = ', '.join(_training_texts(values))
    if self._bar is not None:
      self._bar.set_postfix_str(text)
    else:
      self.say(f'step {step}/{total}: {text}')

  def evaluation(self, step: int, values: dict[str, float]) -> None:
    self.say(f'step {step}: ' + ', '.join(f'{name} {_number(name, v)}' for name, v in sorted(values.items())))

  def close(self) -> None:
    if self._bar is not None:
      self._bar.close()


def _training_texts(values: dict[str, float]):
  yield f'loss {values["train/loss"]:.4f}'
  yield f'accuracy {values["train/accuracy"]:.1%}'
  if 'perf/images_per_second' in values:
    yield f'{values["perf/images_per_second"]:,.0f} images/s'
    if 'perf/mfu' in values:
      yield f'MFU {values["perf/mfu"]:.1%}'
    yield f'data wait {values["perf/data_wait"]:.1%}'
    yield f'{_time(values["perf/eta_s"])} left'


def _number(name: str, value: float) -> str:
  if name.endswith(('accuracy', 'precision')):
    return f'{value:.2%}'
  return f'{value:.4f}' if value % 1 else f'{value:.0f}'


def _time(seconds: float) -> str:
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours}:{minutes:02}:{seconds:02}' if hours else f'{minutes}:{seconds:02}'


def devices_text(mesh: jax.sharding.Mesh) -> str:
  devices = mesh.devices.flatten()
  axes = ', '.join(f'{axis} {size}' for axis, size in mesh.shape.items() if size > 1) or 'one device'
  processes = f', {jax.process_count()} processes' if jax.process_count() > 1 else ''
  return f'Devices: {devices.size} × {devices[0].device_kind}{processes}; mesh: {axes}'


def parameter_table(params: dict[str, Any]) -> str:
  """Path, shape, size and sharding of each parameter, and their sum.

  Args:
    params: arrays, or ShapeDtypeStructs with shardings.
  """
  leaves = jax.tree.leaves(params)
  rows = [('parameter', 'shape', 'MiB', 'split over')]
  for path, leaf in zip(optimizer.paths(params), leaves, strict=True):
    rows.append((path, ' × '.join(map(str, leaf.shape)), f'{_mib(leaf):.2f}', _spec_text(leaf.sharding.spec)))
  rows.append(
    ('total', f'{sum(math.prod(leaf.shape) for leaf in leaves):,}', f'{sum(map(_mib, leaves)):.2f}', '')
  )
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = [
    f'{path:<{widths[0]}}  {shape:<{widths[1]}}  {size:>{widths[2]}}  {spec}'.rstrip()
    for path, shape, size, spec in rows
  ]
  rule = '-' * max(map(len, lines))
  return '\n'.join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def _mib(leaf: Any) -> float:
  return math.prod(leaf.shape) * leaf.dtype.itemsize / _MIB


def _spec_text(spec: jax.sharding.PartitionSpec) -> str:
  return ', '.join(f'{axis} (axis {i})' for i, axis in enumerate(spec) if axis is not None) or '-'


def memory_text(program: Program, compiled: Any) -> str:
  """Estimated bytes a device needs for the training step, by the compiler."""
  local = lambda tree: sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)
  )
  params, state = local(program.state.params), local(program.state)
  temporary = compiled.memory_analysis().temp_size_in_bytes
  return (
    f'Memory per device, estimated: {params / _MIB:,.0f} MiB parameters, {(state - params) / _MIB:,.0f} MiB '
    f'optimizer state, {temporary / _MIB:,.0f} MiB activations and temporaries'
  )
