"""Reads the text of a program that was compiled for a TPU.

Only what an estimate of its time needs: the instructions of each computation in the order in which they are
scheduled, how often each loop runs, the compiler's own cycle counts, and which devices talk to which.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator

import numpy as np

_BYTES = {'pred': 1, 's4': 0.5, 'u4': 0.5, 's8': 1, 'u8': 1, 's16': 2, 'u16': 2, 'bf16': 2, 'f16': 2}
_BYTES |= {'s32': 4, 'u32': 4, 'f32': 4, 's64': 8, 'u64': 8, 'f64': 8}
_ARRAY = re.compile(r'\b([a-z]+\d*)\[([\d,]*)\]')
# What a kernel says of itself, in lines of its own.
_KERNEL_METADATA = re.compile(r'kernel_metadata=\{\s*\n.*?\n\}(?=\})', re.DOTALL)
_COMPUTATION = re.compile(r'(ENTRY )?%?([\w.\-]+) \(.*\{$')
_INSTRUCTION = re.compile(r'\s+(?:ROOT )?%?([\w.\-]+) = ')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_IOTA = r'\[([\d,]+)\](?:T\(([\d,]+)\))?'
# Axes with sizes, the devices' order if it is another one, the axes of a group.
_MESH = re.compile(
  r'replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(((?:[^()]|\([^()]*\))*)\))? *\{([^}]*)\}'
)
# Where jax.random draws from a gamma or a beta distribution, as mixup does: until what is drawn is accepted.
_DRAW = re.compile(r'op_name="[^"]*jit\(_gamma\)')
_PAIR = re.compile(r'\{(\d+),(\d+)\}')


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation.

  Attributes:
    name: without the '%'.
    shape: of its result, as text.
    opcode: such as 'fusion' or 'all-gather'.
    operands: their names.
    attributes: the rest of the line.
  """

  name: str
  shape: str
  opcode: str
  operands: tuple[str, ...]
  attributes: str

  @property
  def bytes(self) -> float:
    """Of the result; of a tuple, of all its parts."""
    return shape_bytes(self.shape)

  @property
  def cycles(self) -> int | None:
    """What the compiler thinks it takes; None: it does not say."""
    found = _CYCLES.search(self.attributes)
    return int(found[1]) if found else None

  def attribute(self, name: str) -> str | None:
    """A name or number among the attributes, such as the computation that is its 'body'."""
    found = re.search(rf'\b{name}=[%"]?([\w.\-]+)', self.attributes)
    return found[1] if found else None


@dataclasses.dataclass(frozen=True)
class Module:
  """A compiled program: computations by name, and the name of the first."""

  computations: dict[str, tuple[Instruction, ...]]
  entry: str

  def trips(self, loop: Instruction) -> int:
    """How often a 'while' runs: its counter begins at 0 and stays below the number in its condition.

    The counter of a scan goes up by one; that of the compiler's own loops, which multiply matrices part by
    part while the next part is on its way, by two. A draw that is repeated until it is accepted counts once:
    of jax.random's, at least 19 of 20 are accepted at once, and they take microseconds.

    Raises:
      ValueError: the loop is of another form.
    """
    if _DRAW.search(loop.attributes):
      return 1
    condition = {i.name: i for i in self.computations[loop.attribute('condition')]}
    compare = next((i for i in condition.values() if i.opcode == 'compare'), None)
    counter, bound = [condition.get(name) for name in compare.operands] if compare else (None, None)
    index = counter and re.search(r'\bindex=(\d+)', counter.attributes)
    if not index or not _whole(bound) or 'direction=LT' not in compare.attributes:
      raise ValueError(f'the loop {loop.name} has a condition that is not "counter < constant"')
    body = {i.name: i for i in self.computations[loop.attribute('body')]}
    *_, root = body.values()
    after = body.get(root.operands[int(index[1])])
    while after and after.opcode in ('copy', 'bitcast'):
      after = body.get(after.operands[0])
    steps = [_whole(body.get(name)) for name in after.operands] if after and after.opcode == 'add' else []
    step = next(filter(None, steps), None)
    if not step:
      raise ValueError(f'the loop {loop.name} has a counter to which no constant is added')
    return -(-_whole(bound) // step)


def _whole(instruction: Instruction | None) -> int | None:
  """The value of a constant that is a positive whole number."""
  constant = instruction and instruction.opcode == 'constant'
  found = constant and re.match(r'[1-9]\d*$', instruction.attributes)
  return int(found[0]) if found else None


def parse(text: str) -> Module:
  """The module of `compiled.as_text()`."""
  computations: dict[str, list[Instruction]] = {}
  current, entry = None, ''
  for line in _KERNEL_METADATA.sub('', text).splitlines():
    if not line.startswith(' '):
      head = _COMPUTATION.match(line)
      current = computations.setdefault(head[2], []) if head else None
      if head and head[1]:
        entry = head[2]
    elif current is not None:
      instruction = _instruction(line)
      if instruction:
        current.append(instruction)
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
  # A constant has its value where others have their operands.
  rest = inside if opcode == 'constant' else line[end:]
  operands = tuple(name.strip().split(' ')[-1].lstrip('%') for name in inside.split(', '))
  return Instruction(start[1], line[start.end() : shape_end], opcode, operands, rest)


def _closing(text: str, opening: int) -> int:
  """The position after the bracket that closes the one at `opening`."""
  depth = 0
  for position in range(opening, len(text)):
    depth += (text[position] == '(') - (text[position] == ')')
    if not depth:
      return position + 1
  raise ValueError(f'no closing bracket in {text[:80]!r}')


def shape_bytes(shape: str) -> float:
  """Bytes of an array 'bf16[8,128]{1,0}', or of a tuple of them."""
  return sum(size for _, size in _arrays(shape))


def _arrays(shape: str) -> Iterator[tuple[str, float]]:
  for kind, dims in _ARRAY.findall(shape):
    if kind in _BYTES:
      yield kind, math.prod(map(int, dims.split(','))) * _BYTES[kind] if dims else _BYTES[kind]


def payload(shape: str, *, start: bool) -> float:
  """Bytes that a collective gives; of its asynchronous start, whose tuple also holds operands and
  flags, the second half of the arrays that are no flags."""
  if not start:
    return shape_bytes(shape)
  sizes = [size for kind, size in _arrays(shape) if size > _BYTES[kind]]
  return sum(sizes[len(sizes) // 2 :])


def groups(instruction: Instruction, devices: int) -> np.ndarray:
  """int (groups, devices of a group): which of the program's devices work together in a collective.

  Written as {{0,1},{2,3}}, as [2,2]<=[4], with a transposition as [2,2]<=[2,2]T(1,0), or as axes of a mesh,
  mesh['a'=2,'b'=4] {'a'}, whose devices may be in another order, device_ids=(1,0,…) or ([2,4]T(1,0)), and
  of which 'b':(2)2 is a part: of 4 = 2 × 2 devices along 'b' the second factor.
  """
  text = instruction.attributes
  mesh = _MESH.search(text)
  if mesh:
    return _mesh_groups(*mesh.groups())
  iota = re.search(rf'replica_groups=\[([\d,]+)\]<=({_IOTA})', text)
  if iota:
    return _iota(iota[2]).reshape(_numbers(iota[1]))
  listed = re.search(r'replica_groups=\{(\{[\d,{} ]*\})\}', text)
  if listed:
    return np.array([_numbers(group) for group in re.findall(r'\{([\d,]+)\}', listed[1])])
  return np.arange(devices)[None]


def _mesh_groups(mesh: str, ids: str | None, chosen: str) -> np.ndarray:
  sizes = [(name, int(size)) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh)]
  parts = re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen)
  # An axis of which parts are chosen becomes several.
  shape, starts = [], []
  for name, size in sizes:
    own = [(int(before), int(part)) for axis, before, part in parts if axis == name and before]
    cuts = sorted({1, size, *(before for before, _ in own), *(before * part for before, part in own)})
    shape += [end // begin for begin, end in itertools.pairwise(cuts)]
    starts += [(name, begin) for begin in cuts[:-1]]
  axes = [starts.index((name, int(before or 1))) for name, before, _ in parts if (name, 1) not in sizes]
  if ids is None:
    order = np.arange(math.prod(shape))
  else:
    order = _iota(ids) if ids.startswith('[') else np.array(_numbers(ids))
  grid = np.moveaxis(order.reshape(shape), axes, range(-len(axes), 0))
  return grid.reshape(-1, math.prod(grid.shape[grid.ndim - len(axes) :]))


def _iota(text: str) -> np.ndarray:
  """'[2,4]T(1,0)': the numbers from 0 in this shape, transposed, then flat."""
  shape, axes = re.fullmatch(_IOTA, text).groups()
  numbers = np.arange(math.prod(_numbers(shape))).reshape(_numbers(shape))
  return (numbers.transpose(_numbers(axes)) if axes else numbers).ravel()


def _numbers(text: str) -> list[int]:
  return [int(number) for number in text.split(',')]


def pairs(instruction: Instruction) -> list[tuple[int, int]]:
  """(source, target) of each message of a collective-permute."""
  text = instruction.attributes.partition('source_target_pairs={')[2].partition('}}')[0] + '}'
  return [(int(source), int(target)) for source, target in _PAIR.findall(text)]
