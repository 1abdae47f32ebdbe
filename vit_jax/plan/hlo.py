"""Reads the text of a program that was compiled for a TPU.

Only what an estimate of its time needs: the instructions of each computation in the order in which they are
scheduled, how often each loop runs, the compiler's own cycle counts, and which devices talk to each other.
"""

import dataclasses
import itertools
import math
import pathlib
import re
import tempfile
from collections.abc import Iterator

import jax
import numpy as np

from vit_jax.plan import kernels

# Bytes of an element.
_BYTES = {
  **{'pred': 1, 's4': 0.5, 'u4': 0.5, 's8': 1, 'u8': 1, 's16': 2, 'u16': 2, 'bf16': 2, 'f16': 2},
  **{'s32': 4, 'u32': 4, 'f32': 4, 's64': 8, 'u64': 8, 'f64': 8},
}
_ARRAY = re.compile(r'\b([a-z]+\d*)\[([\d,]*)\]')
# A kernel's description of itself, which takes lines of its own.
_KERNEL_METADATA = re.compile(r'kernel_metadata=\{\s*\n.*?\n\}(?=\})', re.DOTALL)
_COMPUTATION = re.compile(r'(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$')
_INSTRUCTION = re.compile(r'\s+(?:ROOT )?%?([\w.\-]+) = ')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_POSITIVE = re.compile(r'[1-9]\d*$')
# Devices as [shape]<=[shape] or [shape]<=[shape]T(axes).
_IOTA = re.compile(r'\[([\d,]+)\](?:T\(([\d,]+)\))?')
_IOTA_GROUPS = re.compile(rf'replica_groups=\[(?P<shape>[\d,]+)\]<=(?P<devices>{_IOTA.pattern})')
_LISTED_GROUPS = re.compile(r'replica_groups=\{(\{[\d,{} ]*\})\}')
# Axes with their sizes; the order of the devices, unless they are in order; the axes that make up a group.
_MESH_GROUPS = re.compile(
  r'replica_groups=mesh\[(?P<axes>[^\]]*)\]'
  r'(?:, device_ids=\((?P<order>(?:[^()]|\([^()]*\))*)\))? *'
  r'\{(?P<grouped>[^}]*)\}'
)
_AXIS = re.compile(r"'([^']+)'=(\d+)")
_GROUPED_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_PAIR = re.compile(r'\{(\d+),(\d+)\}')
# The loop in which jax.random draws from a gamma or beta distribution (mixup), until a draw is accepted.
_RANDOM_DRAW = re.compile(r'op_name="[^"]*jit\(_gamma\)')


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation."""

  name: str  # without its '%'
  shape: str  # of its result, as text
  opcode: str  # such as 'fusion' or 'all-gather'
  operands: tuple[str, ...]  # their names
  attributes: str  # the rest of the line; of a constant, its value

  @property
  def bytes(self) -> float:
    """Bytes of the result; of a tuple, of all its parts."""
    return shape_bytes(self.shape)

  @property
  def cycles(self) -> int | None:
    """The compiler's estimate of its time; None if it gives none."""
    found = _CYCLES.search(self.attributes)
    return int(found[1]) if found else None

  def attribute(self, name: str) -> str | None:
    """The value of an attribute that is a name or a number, such as 'body', a computation's name."""
    found = re.search(rf'\b{name}=[{{%"]*([\w.\-]+)', self.attributes)
    return found[1] if found else None

  @property
  def branches(self) -> list[str]:
    """The computations of which a 'conditional' runs one."""
    found = re.search(r'\bbranch_computations=\{([^}]*)\}', self.attributes)
    names = found[1].split(',') if found else map(self.attribute, ('true_computation', 'false_computation'))
    return [name.strip(' %') for name in names if name]


@dataclasses.dataclass(frozen=True)
class Module:
  """A compiled program."""

  computations: dict[str, tuple[Instruction, ...]]  # name -> its instructions, as scheduled
  entry: str  # name of the computation that runs first

  def called(self, instruction: Instruction, attribute: str) -> tuple[Instruction, ...]:
    """The computation that an attribute of an instruction names; () if there is none."""
    return self.computations.get(instruction.attribute(attribute) or '', ())

  def trip_count(self, loop: Instruction) -> int:
    """How often a 'while' runs: its counter starts at 0 and stays below the constant in its condition.

    A scan's counter goes up by one. The compiler's own loops, which multiply matrices part by part while the
    next part is on its way, count by two. A random draw that is repeated until it is accepted counts as one:
    at least 19 of 20 are accepted at once, and they take microseconds.

    Raises:
      ValueError: a loop of another form.
    """
    if _RANDOM_DRAW.search(loop.attributes):
      return 1
    condition = {i.name: i for i in self.called(loop, 'condition')}
    compare = next((i for i in condition.values() if i.opcode == 'compare'), None)
    counter, bound = [condition.get(name) for name in compare.operands] if compare else (None, None)
    index, limit = counter and counter.attribute('index'), _positive_constant(bound)
    if not compare or 'direction=LT' not in compare.attributes or not index or not limit:
      raise ValueError(f'the condition of the loop {loop.name} is not "counter < constant"')
    step = self._counter_step(loop, int(index))
    if not step:
      raise ValueError(f'the loop {loop.name} adds no constant to its counter')
    return -(-limit // step)

  def _counter_step(self, loop: Instruction, index: int) -> int | None:
    """The constant that a loop adds to part `index` of its state; None if it does something else."""
    body = {i.name: i for i in self.called(loop, 'body')}
    *_, root = body.values()
    after = body.get(root.operands[index])
    while after and after.opcode in ('copy', 'bitcast'):
      after = body.get(after.operands[0])
    if not after or after.opcode != 'add':
      return None
    constants = [_positive_constant(body.get(name)) for name in after.operands]
    return next((constant for constant in constants if constant), None)


def _positive_constant(instruction: Instruction | None) -> int | None:
  """The value of a constant that is a positive integer; None for everything else."""
  if instruction is None or instruction.opcode != 'constant':
    return None
  found = _POSITIVE.match(instruction.attributes)
  return int(found[0]) if found else None


def compile_and_print(lowered: jax.stages.Lowered) -> tuple[jax.stages.Compiled, str | None]:
  """A program for TPUs, compiled, and its text as the compiler prints it; None where XLA has to print it and cannot.

  Kernels have their cycles in it, where `kernels.write_schedules` was called. `compiled.as_text()` has not, and XLA (of
  jax 0.10.2) cannot read again the programs that libtpu 0.0.51 and 0.0.52 write for TPU v6e and v7x.
  """
  kernels.forget_schedules()
  with tempfile.TemporaryDirectory() as folder:
    compiled = lowered.compile({'xla_dump_to': folder, 'xla_dump_hlo_as_text': True})
    printed = [file.read_text() for file in pathlib.Path(folder).glob('*.after_codegen.txt')]
  if printed:  # small programs that the compiler made on its way, too
    text = kernels.with_cycles(max(printed, key=len))
    kernels.forget_schedules()
    return compiled, text
  try:
    return compiled, compiled.as_text()
  except jax.errors.JaxRuntimeError:
    return compiled, None


def parse(text: str) -> Module:
  """The module of a compiled program's text."""
  computations: dict[str, list[Instruction]] = {}
  current: list[Instruction] | None = None
  entry = ''
  for line in _KERNEL_METADATA.sub('', text).splitlines():
    if line.startswith(' '):
      instruction = _instruction(line)
      if instruction and current is not None:
        current.append(instruction)
      continue
    head = _COMPUTATION.match(line)
    current = computations.setdefault(head['name'], []) if head else None
    if head and head['entry']:
      entry = head['name']
  return Module({name: tuple(lines) for name, lines in computations.items()}, entry)


def _instruction(line: str) -> Instruction | None:
  line = re.sub(r'/\*.*?\*/', '', line)
  start = _INSTRUCTION.match(line)
  if not start:
    return None
  shape_end = _closing(line, start.end()) if line[start.end()] == '(' else line.index(' ', start.end())
  opening = line.index('(', shape_end)
  end = _closing(line, opening)
  inside = line[opening + 1 : end - 1]
  opcode = line[shape_end:opening].strip()
  # Where others have their operands, a constant has its value.
  attributes = inside if opcode == 'constant' else line[end:]
  operands = tuple(name.strip().split(' ')[-1].lstrip('%') for name in inside.split(', '))
  return Instruction(start[1], line[start.end() : shape_end], opcode, operands, attributes)


def _closing(text: str, opening: int) -> int:
  """The position after the bracket that closes the one at `opening`."""
  depth = 0
  for position in range(opening, len(text)):
    if text[position] == '(':
      depth += 1
    elif text[position] == ')':
      depth -= 1
    if depth == 0:
      return position + 1
  raise ValueError(f'no closing bracket in {text[:80]!r}')


def shape_bytes(shape: str) -> float:
  """Bytes of an array such as 'bf16[8,128]{1,0}', or of a tuple of arrays."""
  return sum(size for _, size in _arrays(shape))


def _arrays(shape: str) -> Iterator[tuple[str, float]]:
  """(type of the elements, bytes) of each array in a shape."""
  for kind, dims in _ARRAY.findall(shape):
    if kind in _BYTES:
      elements = math.prod(_numbers(dims)) if dims else 1
      yield kind, elements * _BYTES[kind]


def payload(shape: str, *, start: bool) -> float:
  """Bytes that a collective gives, by the shape of its result.

  The start of an asynchronous one has a tuple of operands, results and flags, which are scalars.
  """
  if not start:
    return shape_bytes(shape)
  sizes = [size for kind, size in _arrays(shape) if size > _BYTES[kind]]
  return sum(sizes[len(sizes) // 2 :])


def groups(instruction: Instruction, devices: int) -> np.ndarray:
  """The groups of devices that work together in a collective: int (groups, devices of a group), by their place.

  They are written as a list, {{0,1},{2,3}}; as [2,2]<=[4], or transposed as [2,2]<=[2,2]T(1,0); or as axes of
  a mesh, mesh['a'=2,'b'=4] {'a'}. The devices of a mesh may be in another order, device_ids=(1,0,…) or
  ([4,2]T(1,0)), and a group may be a part of an axis: 'b':(2)2 is the second factor of 4 = 2 × 2 along 'b'.
  """
  text = instruction.attributes
  mesh = _MESH_GROUPS.search(text)
  if mesh:
    return _mesh_groups(mesh['axes'], mesh['order'], mesh['grouped'])
  iota = _IOTA_GROUPS.search(text)
  if iota:
    return _iota(iota['devices']).reshape(_numbers(iota['shape']))
  listed = _LISTED_GROUPS.search(text)
  if listed:
    return np.array([_numbers(group) for group in re.findall(r'\{([\d,]+)\}', listed[1])])
  return np.arange(devices)[None]


def _mesh_groups(axes: str, order: str | None, grouped: str) -> np.ndarray:
  """The groups of a mesh such as "'a'=2,'b'=4" along axes or factors of them, such as "'a'" or "'b':(2)2".

  The devices are in order where `order` is None, or as that list or iota says.
  """
  sizes = {name: int(size) for name, size in _AXIS.findall(axes)}
  # (axis, product of the factors before this one, this factor); a whole axis is its only factor.
  factors = [
    (name, int(before or 1), int(factor or sizes[name]))
    for name, before, factor in _GROUPED_AXIS.findall(grouped)
  ]
  # An axis of which factors are grouped becomes a dimension for each factor.
  shape: list[int] = []
  dimensions: dict[tuple[str, int], int] = {}  # (axis, product of the factors before) -> dimension of `shape`
  for axis, size in sizes.items():
    bounds = {1, size}
    for name, before, factor in factors:
      if name == axis:
        bounds |= {before, before * factor}
    for begin, end in itertools.pairwise(sorted(bounds)):
      dimensions[axis, begin] = len(shape)
      shape.append(end // begin)
  if order is None:
    devices = np.arange(math.prod(shape))
  else:
    devices = _iota(order) if order.startswith('[') else np.array(_numbers(order))
  chosen = [dimensions[name, before] for name, before, factor in factors if factor > 1]
  grid = np.moveaxis(devices.reshape(shape), chosen, range(-len(chosen), 0))
  return grid.reshape(-1, math.prod(grid.shape[grid.ndim - len(chosen) :]))


def _iota(text: str) -> np.ndarray:
  """'[2,4]T(1,0)': the numbers from 0 on in this shape, transposed, then flat."""
  found = _IOTA.fullmatch(text)
  if not found:
    raise ValueError(f'{text!r} is not an iota such as [2,4]T(1,0)')
  shape = _numbers(found[1])
  numbers = np.arange(math.prod(shape)).reshape(shape)
  return (numbers.transpose(_numbers(found[2])) if found[2] else numbers).ravel()


def _numbers(text: str) -> list[int]:
  """'2,4' -> [2, 4]."""
  return [int(number) for number in text.split(',')]


def pairs(instruction: Instruction) -> list[tuple[int, int]]:
  """(source, target) of each message of a collective-permute."""
  text = instruction.attributes.partition('source_target_pairs={')[2].partition('}}')[0] + '}'
  return [(int(source), int(target)) for source, target in _PAIR.findall(text)]
