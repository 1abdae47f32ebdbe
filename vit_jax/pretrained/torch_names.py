"""Tables from our parameters to the tensors of other projects, mostly PyTorch's, read in both directions."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from vit_jax.data.preprocess import Preprocess
from vit_jax.models.base import Architecture
from vit_jax.pretrained.base import Link, UnknownModelError
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.tensor_names import some

Form = Literal['same', 'flat', 'into', 'out', 'conv']
# Ours of every head, which a model without classes does not write.
HEAD_PATHS = frozenset({'head/kernel', 'head/bias', 'distillation_head/kernel', 'distillation_head/bias'})


@dataclasses.dataclass(frozen=True)
class Rule:
  """One of our parameters, and the tensor it is in."""

  path: str  # ours; of blocks that are stacked where the name has a {}
  name: str  # theirs, {} being the number of the block
  # How their tensor is laid out: as ours ('same'); 'flat'; the weight of a Linear layer (outputs, inputs), with
  # the inputs in our first axis ('into') or the outputs in our last ('out'); or a convolution's (outputs, inputs,
  # height, width) ('conv').
  form: Form = 'same'
  part: tuple[int, int] = (0, 1)  # which of how many, for a tensor that holds several, first axis by first
  first: int = 0  # their number of our first block


def layer(path: str, name: str, form: Form = 'into') -> tuple[Rule, Rule]:
  """Kernel and bias of a layer."""
  return Rule(f'{path}/kernel', f'{name}.weight', form), Rule(f'{path}/bias', f'{name}.bias')


def norm(path: str, name: str) -> tuple[Rule, Rule]:
  """Scale and bias of a LayerNorm."""
  return Rule(f'{path}/scale', f'{name}.weight'), Rule(f'{path}/bias', f'{name}.bias')


def attention(path: str, name: str, part: tuple[int, int] = (0, 1)) -> tuple[Rule, Rule]:
  """Kernel (D, H, Dh) and bias (H, Dh) of queries, keys or values."""
  return (
    Rule(f'{path}/kernel', f'{name}.weight', 'into', part),
    Rule(f'{path}/bias', f'{name}.bias', 'flat', part),
  )


@dataclasses.dataclass(frozen=True)
class Tokens:
  """The names of class token, register tokens and position embedding, and which tokens have a position.

  A register of theirs that has a position becomes ours plus that position: the same sum.
  """

  position: str
  class_token: str | None
  registers: str | None = None  # or DeiT's distillation token
  positioned: int = 1  # tokens before the patches, that the position embedding covers: 0, 1 or all
  registers_path: str = 'register_tokens'  # ours of `registers`

  def expected(self, shapes: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the tensors."""
    _, length, width = shapes['position_embedding'].shape
    patches = length - (self.class_token is not None)
    result = {self.position: (1, patches + self.positioned, width)}
    if self.class_token is not None:
      result[self.class_token] = (1, 1, width)
    if self.registers is not None:
      result[self.registers] = tuple(shapes[self.registers_path].shape)
    return result

  def gather(self, read: Callable[[str], np.ndarray]) -> dict[str, np.ndarray]:
    """Our parameters by path."""
    position = read(self.position)
    own, position = position[:, : self.positioned], position[:, self.positioned :]
    params = {}
    if self.class_token is not None:
      params['class_token'] = read(self.class_token)
      first = own[:, :1] if self.positioned else np.zeros_like(params['class_token'])
      own, position = own[:, 1:], np.concatenate([first, position], axis=1)
    if self.registers is not None:
      registers = read(self.registers)
      params[self.registers_path] = registers + own if own.shape[1] else registers
    return params | {'position_embedding': position}

  def scatter(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Their tensors by name."""
    position = np.asarray(params['position_embedding'], np.float32)
    tensors = {}
    own = position[:, :0]
    if self.class_token is not None:
      own, position = position[:, :1], position[:, 1:]
      token = np.asarray(params['class_token'], np.float32)
      tensors[self.class_token] = token if self.positioned else token + own
    if self.registers is not None:
      registers = np.asarray(params[self.registers_path], np.float32)
      tensors[self.registers] = registers
      own = np.concatenate([own, np.zeros_like(registers)], axis=1)
    tensors[self.position] = np.concatenate([own[:, : self.positioned], position], axis=1)
    return tensors

  def paths(self) -> set[str]:
    """Those of our parameters that are in these tensors."""
    paths = {'position_embedding': self.position, 'class_token': self.class_token}
    paths[self.registers_path] = self.registers
    return {path for path, name in paths.items() if name is not None}


@dataclasses.dataclass(frozen=True)
class Layout:
  """What a folder holds, in our terms, and where."""

  architecture: Architecture  # the network
  rules: tuple[Rule, ...]  # which tensor each parameter is in
  tokens: Tokens | None  # likewise of class token, registers and positions; None: of a model without tokens
  preprocess: Preprocess  # how its images are prepared
  class_names: tuple[str, ...] | None  # of the logits; None: it does not name them
  zeros: frozenset[str] = frozenset()  # paths of ours that it lacks, and that are zero there
  ignored: frozenset[str] = frozenset()  # tensors that logits do not depend on
  notes: tuple[str, ...] = ()  # sentences for the person
  link: Link = 'softmax'  # what turns its logits into probabilities


@dataclasses.dataclass(frozen=True)
class Export:
  """What a folder is to hold."""

  rules: tuple[Rule, ...]  # which tensor each parameter becomes
  tokens: Tokens | None  # likewise of class token, registers and positions; None: of a model without tokens
  config: dict[str, Any]  # of config.json
  texts: dict[str, str] = dataclasses.field(default_factory=dict)  # of the files beside it, by name
  # Of ours by path, where they are others than the model's.
  params: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  constants: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # tensors that we do not have
  dropped: frozenset[str] = frozenset()  # paths of ours that are left out
  notes: tuple[str, ...] = ()  # sentences on what is not held as it was

  def with_notes(self, *notes: str) -> 'Export':
    """The same with more sentences."""
    return dataclasses.replace(self, notes=notes + self.notes)


def check_depth(files: TensorFiles, architecture: Architecture) -> None:
  """Raises UnknownModelError for more blocks than tensors, before anything is made for each of them."""
  if architecture.model.num_layers > len(files.shapes):
    raise UnknownModelError(
      f'its config.json calls for a model of {architecture.model.num_layers} blocks, and there are '
      f'{len(files.shapes)} tensors'
    )


def check(
  found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], ignored: Iterable[str]
) -> None:
  """Raises UnknownModelError where a tensor of the model is missing or of another shape, or there is another one."""
  missing = [name for name in expected if name not in found]
  if missing:
    raise UnknownModelError(f'it has no tensor {some(missing)}, which its sizes call for')
  for name, shape in expected.items():
    if found[name] != tuple(shape):
      raise UnknownModelError(
        f'it has {name} of shape {found[name]}, where its other sizes call for {tuple(shape)}'
      )
  extra = sorted(found.keys() - expected.keys() - set(ignored))
  if extra:
    raise UnknownModelError(f'it has a tensor {some(extra)} that no model of its kind has in vit_jax')


def expected(rules: Sequence[Rule], shapes: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
  """Name -> shape of the tensors that the rules read, `shapes` being those of our parameters by path."""
  return {
    name: _torch_shape(rule, shape)
    for rule in rules
    for name, shape in _places(rule, tuple(shapes[rule.path].shape))
  }


def gather(
  rules: Sequence[Rule], shapes: Mapping[str, Any], read: Callable[[str], np.ndarray]
) -> dict[str, np.ndarray]:
  """Our parameters by path, each allocated once, and filled block by block."""
  params = {}
  for rule in rules:
    shape = tuple(shapes[rule.path].shape)
    params[rule.path] = out = np.empty(shape, np.float32)
    stacked = '{}' in rule.name
    for i, (name, one) in enumerate(_places(rule, shape)):
      (out[i] if stacked else out)[...] = _to_ours(rule, read(name), one)
  return params


def scatter(rules: Sequence[Rule], params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Their tensors by name."""
  parts: dict[str, list[np.ndarray]] = {}
  for rule in sorted(rules, key=lambda rule: rule.part):
    array = np.asarray(params[rule.path], np.float32)
    stacked = '{}' in rule.name
    for i, (name, _) in enumerate(_places(rule, array.shape)):
      parts.setdefault(name, []).append(_to_torch(rule, array[i] if stacked else array))
  return {name: np.concatenate(items) if len(items) > 1 else items[0] for name, items in parts.items()}


def _places(rule: Rule, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
  """Name and our shape, without the leading axis of a stack, of each tensor of a rule."""
  if '{}' not in rule.name:
    return [(rule.name, shape)]
  return [(rule.name.format(rule.first + i), shape[1:]) for i in range(shape[0])]


def _form_shape(rule: Rule, shape: tuple[int, ...]) -> tuple[int, ...]:
  """Of the part of a tensor that is ours."""
  match rule.form:
    case 'same':
      return shape
    case 'flat':
      return (math.prod(shape),)
    case 'into':
      return math.prod(shape[1:]), shape[0]
    case 'out':
      return shape[-1], math.prod(shape[:-1])
    case 'conv':
      return shape[3], shape[2], shape[0], shape[1]


def _torch_shape(rule: Rule, shape: tuple[int, ...]) -> tuple[int, ...]:
  first, *others = _form_shape(rule, shape)
  return (first * rule.part[1], *others)


def _to_ours(rule: Rule, tensor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
  which, parts = rule.part
  size = len(tensor) // parts
  tensor = tensor[which * size : (which + 1) * size]
  if rule.form == 'conv':
    return tensor.transpose(2, 3, 1, 0)
  return (tensor.T if rule.form in ('into', 'out') else tensor).reshape(shape)


def _to_torch(rule: Rule, array: np.ndarray) -> np.ndarray:
  if rule.form == 'conv':
    return array.transpose(3, 2, 0, 1)
  shape = _form_shape(rule, array.shape)
  return array.reshape(shape[::-1]).T if rule.form in ('into', 'out') else array.reshape(shape)
