"""Tables from our parameters to the tensors of other projects, mostly PyTorch's, read in both directions."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from vit_jax.data.preprocess import Preprocess
from vit_jax.models.base import Architecture
from vit_jax.pretrained.base import Link, UnknownModelError
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.tensor_names import some

Form = Literal['same', 'flat', 'into', 'out', 'conv', 'conv_1x1', 'leading']
# Ours of what is often one layer elsewhere.
QKV = tuple(f'blocks/attention/{name}' for name in ('query', 'key', 'value'))
# Ours of every head, which a model without classes does not write.
HEAD_PATHS = frozenset({'head/kernel', 'head/bias', 'distillation_head/kernel', 'distillation_head/bias'})


@dataclasses.dataclass(frozen=True)
class Rule:
  """One of our parameters, and the tensor it is in."""

  path: str  # ours; of blocks that are stacked where the name has a {}
  name: str  # theirs, {} being the number of the block
  # How their tensor is laid out: as ours ('same'); 'flat'; the weight of a Linear layer (outputs, inputs), with
  # the inputs in our first axis ('into') or the outputs in our last ('out'); or a convolution's (outputs, inputs,
  # height, width) ('conv'), of a Linear layer of ours 'conv_1x1'; or with
  # two axes of length 1 before ours ('leading').
  form: Form = 'same'
  part: tuple[int, int] = (0, 1)  # which of how many, for a tensor that holds several, first axis by first
  # (first row, how many) of the tensor's first axis are ours, where parts are not of one size; and (…, of how many).
  rows: tuple[int, int, int] | None = None
  first: int = 0  # their number of our first block
  # Whether they rotate neighbouring channels of a head together, (0, 1), (2, 3), …, and we (0, Dh / 2), ….
  interleaved: bool = False


def layer(path: str, name: str, form: Form = 'into') -> tuple[Rule, Rule]:
  """Kernel and bias of a layer."""
  return Rule(f'{path}/kernel', f'{name}.weight', form), Rule(f'{path}/bias', f'{name}.bias')


def norm(path: str, name: str, kind: str = 'layer_norm', *, interleaved: bool = False) -> tuple[Rule, ...]:
  """Scale and bias of a norm, which is of the kind that config.model.norm names."""
  rules = Rule(f'{path}/scale', f'{name}.weight'), Rule(f'{path}/bias', f'{name}.bias')
  return tuple(replace(rule, interleaved=interleaved) for rule in rules[: 2 if kind == 'layer_norm' else 1])


def attention(
  path: str, name: str, part: tuple[int, int] = (0, 1), *, interleaved: bool = False
) -> tuple[Rule, Rule]:
  """Kernel (D, H, Dh) and bias (H, Dh) of queries, keys or values."""
  return (
    Rule(f'{path}/kernel', f'{name}.weight', 'into', part, interleaved=interleaved),
    Rule(f'{path}/bias', f'{name}.bias', 'flat', part, interleaved=interleaved),
  )


def fused(paths: Sequence[str], name: str, separator: str = '.') -> tuple[Rule, ...]:
  """Kernels and biases of layers that are one layer there, whose outputs follow one another."""
  leaves: tuple[tuple[str, str, Form], ...] = (('kernel', 'weight', 'into'), ('bias', 'bias', 'flat'))
  return tuple(
    Rule(f'{path}/{leaf}', f'{name}{separator}{theirs}', form, (part, len(paths)))
    for part, path in enumerate(paths)
    for leaf, theirs, form in leaves
  )


@dataclasses.dataclass(frozen=True)
class Tokens:
  """The names of class token, register tokens and position embedding, and which tokens have a position.

  A register of theirs that has a position becomes ours plus that position: the same sum.
  """

  position: str | None
  class_token: str | None
  registers: str | None = None  # or DeiT's distillation token
  positioned: int = 1  # tokens before the patches, that the position embedding covers; -1 in a table: all
  registers_path: str = 'register_tokens'  # ours of `registers`
  # Whether their class token is (D,) and their position embedding (N, D), without leading axes of length 1.
  flat: bool = False

  def prefixed(self, prefix: str) -> 'Tokens':
    """The same with longer names."""
    names = {
      name: prefix + getattr(self, name)
      for name in ('position', 'class_token', 'registers')
      if getattr(self, name) is not None
    }
    return replace(self, **names)

  def expected(self, shapes: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the tensors."""
    result = {}
    if self.position is not None:
      _, length, width = shapes['position_embedding'].shape
      patches = length - (self.class_token is not None)
      result[self.position] = (*self._leading(1), patches + self.positioned, width)
    if self.class_token is not None:
      result[self.class_token] = (*self._leading(2), shapes['class_token'].shape[-1])
    if self.registers is not None:
      result[self.registers] = tuple(shapes[self.registers_path].shape)
    return result

  def gather(self, read: Callable[[str], np.ndarray]) -> dict[str, np.ndarray]:
    """Our parameters by path."""
    params = {path: read(name) for path, name in self._named().items()}
    if self.class_token is not None:
      params['class_token'] = params['class_token'].reshape(1, 1, -1)
    if self.position is not None:
      position = read(self.position)
      position = position[None] if self.flat else position
      own, position = position[:, : self.positioned], position[:, self.positioned :]
      if self.class_token is not None:
        first = own[:, :1] if self.positioned else np.zeros_like(params['class_token'])
        own, position = own[:, 1:], np.concatenate([first, position], axis=1)
      if self.registers is not None and own.shape[1]:
        params[self.registers_path] = params[self.registers_path] + own
      params['position_embedding'] = position
    return params

  def scatter(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Their tensors by name."""
    tensors = {name: np.asarray(params[path], np.float32) for path, name in self._named().items()}
    if self.position is not None:
      position = np.asarray(params['position_embedding'], np.float32)
      own = position[:, :0]
      if self.class_token is not None:
        own, position = position[:, :1], position[:, 1:]
        if not self.positioned:
          tensors[self.class_token] = tensors[self.class_token] + own
      if self.registers is not None:
        own = np.concatenate([own, np.zeros_like(tensors[self.registers])], axis=1)
      position = np.concatenate([own[:, : self.positioned], position], axis=1)
      tensors[self.position] = position[0] if self.flat else position
    if self.class_token is not None and self.flat:
      tensors[self.class_token] = tensors[self.class_token].reshape(-1)
    return tensors

  def _leading(self, axes: int) -> tuple[int, ...]:
    return () if self.flat else (1,) * axes

  def paths(self) -> set[str]:
    """Those of our parameters that are in these tensors."""
    return {*self._named(), *(('position_embedding',) if self.position is not None else ())}

  def _named(self) -> dict[str, str]:
    """Our path -> their name, of the tokens."""
    names = {'class_token': self.class_token, self.registers_path: self.registers}
    return {path: name for path, name in names.items() if name is not None}


@dataclasses.dataclass(frozen=True)
class Derived:
  """A tensor that rules read and files do not have as it is."""

  shape: tuple[int, ...]
  sources: tuple[str, ...]  # names of the tensors that it is computed from
  compute: Callable[..., np.ndarray]  # of these

  def prefixed(self, prefix: str) -> 'Derived':
    """The same of tensors with longer names."""
    return replace(self, sources=tuple(prefix + name for name in self.sources))


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
  derived: Mapping[str, Derived] = dataclasses.field(default_factory=dict)  # by the names that rules know
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
  # Tensors with the blocks along their second axis, and the names that those of single blocks have in the rules.
  merged: dict[str, str] = dataclasses.field(default_factory=dict)
  dropped: frozenset[str] = frozenset()  # paths of ours that are left out
  notes: tuple[str, ...] = ()  # sentences on what is not held as it was

  def prefixed(self, prefix: str) -> 'Export':
    """The same with longer names of tensors."""
    return dataclasses.replace(
      self,
      rules=tuple(replace(rule, name=prefix + rule.name) for rule in self.rules),
      tokens=None if self.tokens is None else self.tokens.prefixed(prefix),
      constants={prefix + name: array for name, array in self.constants.items()},
    )

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
  for rule in sorted(rules, key=lambda rule: (rule.part, rule.rows or ())):
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
    case 'conv_1x1':
      return shape[1], shape[0], 1, 1
    case 'leading':
      return 1, 1, *shape


def _torch_shape(rule: Rule, shape: tuple[int, ...]) -> tuple[int, ...]:
  first, *others = _form_shape(rule, shape)
  return (first * rule.part[1] if rule.rows is None else rule.rows[2], *others)


def _to_ours(rule: Rule, tensor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
  if rule.rows is not None:
    first, size, _ = rule.rows
  else:
    size = len(tensor) // rule.part[1]
    first = rule.part[0] * size
  tensor = tensor[first : first + size]
  if rule.form == 'conv':
    return tensor.transpose(2, 3, 1, 0)
  array = (tensor.T if rule.form in ('into', 'out', 'conv_1x1') else tensor).reshape(shape)
  return np.concatenate([array[..., ::2], array[..., 1::2]], axis=-1) if rule.interleaved else array


def in_their_order(rule: Rule, array: np.ndarray) -> np.ndarray:
  """An array whose last axis is the channels of a head, (..., Dh), with these in the order of their file."""
  if not rule.interleaved:
    return array
  return np.stack(np.split(array, 2, axis=-1), axis=-1).reshape(array.shape)


def _to_torch(rule: Rule, array: np.ndarray) -> np.ndarray:
  if rule.form == 'conv':
    return array.transpose(3, 2, 0, 1)
  if rule.form == 'conv_1x1':
    return array.T[:, :, None, None]
  shape = _form_shape(rule, array.shape)
  array = in_their_order(rule, array)
  return array.reshape(shape[::-1]).T if rule.form in ('into', 'out') else array.reshape(shape)
