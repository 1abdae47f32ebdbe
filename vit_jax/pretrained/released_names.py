"""The contract of an architecture in the released .npz files: what its tensors are called, and what they tell.

A newcomer writes one file with a class that is `ReleasedNames`, and adds one line to the table in released.py.
"""

import abc
import math
import re
from collections.abc import Mapping
from typing import ClassVar, Generic, Literal, TypeVar

from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture, ModelConfig

# How files call tensors: as the published ones of 2020, as Flax's Linen, as big_vision, or so with the blocks stacked.
Naming = Literal['2020', 'linen', 'big_vision', 'scan']
Shapes = Mapping[str, tuple[int, ...]]

M = TypeVar('M', bound=ModelConfig)

USUAL_SIZE = (224, 224)


class Tensors:
  """The shapes of a file's tensors, with an error for what is not there."""

  def __init__(self, name: object, shapes: Shapes):
    self.name = name  # of the file, for errors
    self.shapes = shapes  # by the names of the original, without prefix

  def shape(self, key: str, rank: int) -> tuple[int, ...]:
    """The shape of a tensor that must be there, with `rank` dimensions; UserError where it is not."""
    if key not in self.shapes:
      raise UserError(f'{self.name} has no tensor {key}; it holds a model that vit_jax does not have.')
    if len(self.shapes[key]) != rank:
      raise self.misfit(key, f'{rank} dimensions are expected')
    if 0 in self.shapes[key]:
      raise self.misfit(key, 'it has no elements')
    return self.shapes[key]

  def misfit(self, key: str, why: str) -> UserError:
    """The error of a tensor whose shape fits nothing."""
    return UserError(
      f'{self.name} has {key} of shape {self.shapes[key]}, which fits no architecture we know ({why}).'
    )

  def patches(self, key: str) -> tuple[int, int, int]:
    """Side, input channels and width of the kernel that embeds patches."""
    height, patch, channels, width = self.shape(key, 4)
    if height != patch:
      raise self.misfit(key, 'a patch is a square')
    return patch, channels, width

  def depth(self, prefix: str) -> int:
    """How many blocks there are, named prefix0, prefix1, …"""
    pattern = re.compile(re.escape(prefix) + r'(\d{1,9})/')
    depth = 1 + max((int(match[1]) for match in map(pattern.match, self.shapes) if match), default=-1)
    if depth == 0:
      raise UserError(f'{self.name} has no {prefix}0; it holds a model that vit_jax does not have.')
    return self._plausible(depth, 'blocks')

  def stages(self, prefix: str = '') -> tuple[int, ...]:
    """Bottlenecks in each stage of a ResNet."""
    pattern = re.compile(re.escape(prefix) + r'block(\d{1,9})/unit(\d{1,9})/')
    units: dict[int, int] = {}
    for match in map(pattern.match, self.shapes):
      if match:
        units[int(match[1])] = max(units.get(int(match[1]), 0), int(match[2]))
    stages = self._plausible(max(units, default=0), 'stages')
    self._plausible(sum(units.values()), 'units')
    return tuple(units.get(stage, 0) for stage in range(1, stages + 1))

  def _plausible(self, count: int, what: str) -> int:
    if count > len(self.shapes):
      raise UserError(
        f'{self.name} numbers {count} {what} and has {len(self.shapes)} tensors; check what the file holds.'
      )
    return count

  def square(self, tokens: int, pixels: int, told: tuple[int, int] | None) -> tuple[int, int]:
    """Height and width of images that give `tokens` patches of `pixels` × `pixels`: a square, or what is `told`.

    Raises UserError where it is neither.
    """
    side = math.isqrt(max(tokens, 0))
    if side * side == tokens and side:
      return side * pixels, side * pixels
    if told and told[0] * told[1] == tokens * pixels**2 and not any(side % pixels for side in told):
      return told
    what = f'image_size {tuple(told)} does not give' if told else 'are no square'
    raise UserError(
      f'{self.name} has positions for {tokens} patches of {pixels} pixels, which {what}; give the image_size (height, '
      'width) it was trained with, unless a class token is missing.'
    )

  def classes(self) -> int:
    """Outputs of the head; 0: there is none."""
    if not any(name.startswith('head/') for name in self.shapes):
      return 0
    return self.shape('head/kernel', 2)[1]


class ReleasedNames(abc.ABC, Generic[M]):
  """What the parameters of one architecture are called in the released files."""

  # Names that only this architecture's tensors begin with.
  marks: ClassVar[tuple[str, ...]]

  def reads(self, shapes: Shapes) -> bool:
    """Whether a file of such tensors is of this architecture."""
    return any(name.startswith(self.marks) for name in shapes)

  @abc.abstractmethod
  def architecture(self, tensors: Tensors, image_size: tuple[int, int] | None) -> Architecture:
    """The architecture of a file, with the defaults of the original where no tensor tells.

    `image_size` is what it was trained with, where no tensor tells; None: a square. UserError: no model that we know.
    """

  @abc.abstractmethod
  def name(self, path: str, naming: Naming) -> str | None:
    """Their name of a parameter of ours, with {} for the number of the block; None: there is none."""

  def naming(self, shapes: Shapes) -> Naming:
    """The naming of a file's tensors."""
    return '2020'

  def leading_ones(self, name: str) -> int:
    """Dimensions of 1 that a tensor of the naming of 2020 has before those of ours."""
    return 0

  def tokens_before(self, name: str, shapes: Shapes) -> int:
    """Tokens before those of a table of positions (1, N, D), that have none there and zeros in ours."""
    return 0

  def unfit(self, model: M) -> str | None:
    """What of a model the files have no place for, although it has no parameters; None: nothing."""
    return None


def renamed(path: str, names: Mapping[str, str], prefix: str = '') -> str | None:
  """A path whose first part is called as `names` has it, behind a prefix; None: it is not there."""
  for ours, theirs in names.items():
    if path == ours or path.startswith(ours + '/'):
      return prefix + theirs + path.removeprefix(ours)
  return None
