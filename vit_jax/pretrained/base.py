"""The contract of a checkpoint format, what it reads and writes, and the registry of the formats that there are.

A newcomer writes one file with a class that is a `Format`, and adds one line to `FORMATS`.
"""

import abc
import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any, ClassVar

from vit_jax.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.pretrained.preprocess import Preprocess
from vit_jax.registry import Registry


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """A model from a checkpoint of any format, in our terms.

  Attributes:
    architecture: the network, its variant 'custom' and every size given, and the shapes of its input and output.
    params: nested dicts of NumPy arrays, with the paths of our parameters and the blocks stacked.
    preprocess: how images become its input.
    class_names: of the logits; None: the checkpoint does not name them.
    notes: sentences for the person: what was dropped, what is all zeros.
  """

  architecture: Architecture
  params: dict[str, Any]
  preprocess: Preprocess
  class_names: tuple[str, ...] | None = None
  notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ReadOptions:
  """What the caller knows of a checkpoint that its files may not tell.

  Attributes:
    image_size: height, width that it was trained with, where its tensors do not tell.
    told: options of its model that the caller sets, such as {'gelu': 'erf'}; a format that stores them refuses.
    assumed: options of its model that are taken where the format stores none.
  """

  image_size: tuple[int, int] | None = None
  told: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  assumed: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Format(abc.ABC):
  """A checkpoint format: how its files are recognised, read and, where that is possible, written."""

  # What messages call it: 'a released .npz'.
  title: ClassVar[str]

  @abc.abstractmethod
  def recognises(self, path: pathlib.Path) -> bool:
    """Whether a file or folder that exists is to be read by this format; looks at names and heads of files only."""

  @abc.abstractmethod
  def read(self, path: pathlib.Path, options: ReadOptions) -> Pretrained:
    """The model of a checkpoint.

    Raises:
      UserError: it is damaged, or of a model that we do not have.
    """

  def architecture(self, path: pathlib.Path) -> Architecture:
    """The network of a checkpoint, without its numbers where that is possible; raises as `read`."""
    return self.read(path, ReadOptions()).architecture

  def write(self, pretrained: Pretrained, destination: str | os.PathLike[str]) -> tuple[str, ...]:
    """Writes a checkpoint.

    Args:
      pretrained: the model.
      destination: a file or a folder, as the format has it.

    Returns:
      Sentences on what the format does not hold as it was.

    Raises:
      UserError: the format cannot hold this model, or the destination cannot be written.
    """
    raise UserError(
      f'{self.title[0].upper()}{self.title[1:]} can be read, but not written; choose another format.'
    )


# The first that recognises a path reads it.
FORMATS: Registry[Format] = Registry(
  'checkpoint format',
  {
    'run': 'vit_jax.pretrained.runs:RunFormat',
    'bit': 'vit_jax.pretrained.transformers_bit:BitFormat',
    'vit': 'vit_jax.pretrained.transformers:ViTFormat',
    'deit': 'vit_jax.pretrained.transformers:DeiTFormat',
    'dinov2': 'vit_jax.pretrained.transformers:DinoV2Format',
    'timm': 'vit_jax.pretrained.timm:TimmFormat',
    'npz': 'vit_jax.pretrained.released:ReleasedFormat',
  },
)
