"""The contract of a checkpoint format, what it reads and writes, and the registry of the formats that there are.

A newcomer writes one file with a class that is a `Format`, and adds one line to `FORMATS`.
"""

import abc
import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from vit_jax.adapters.lora import AdapterConfig
from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation import files, pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.foundation.registry import Registry
from vit_jax.models.base import Architecture, ModelConfig
from vit_jax.pretrained.config import Weights

if TYPE_CHECKING:
  from vit_jax.pretrained.zero_shot import Texts

# A note that `Format.write` returns where the format has no place for `Pretrained.link`.
SIGMOID_LOST = (
  'The format cannot say that the model was trained with the sigmoid loss: probabilities of what is loaded from '
  'it are by softmax.'
)
M = TypeVar('M', bound=ModelConfig)

Link = Literal['softmax', 'sigmoid']
# Options that change how a model is trained or computed, or follow from others, and that a folder need not hold.
FREE_OPTIONS = frozenset(
  {
    *('attention', 'attention_dropout', 'cut_images', 'dropout', 'dtype', 'head_bias', 'patch_dropout'),
    *('kernel_deviation', 'remat', 'rotary_moves', 'stochastic_depth', 'token_merging', 'unroll'),
  }
)
# Those, and how a model is called, begins and resizes positions: in these, models that are one may differ.
UNTOLD_OPTIONS = FREE_OPTIONS | {'variant', 'layer_scale', 'position_resize'}


class UnknownModelError(Exception):
  """A sound checkpoint holds a model that vit_jax does not have; the text is a clause that says how it differs."""


@dataclasses.dataclass(frozen=True)
class Adapted:
  """What fine-tuning with an adapter has learned, apart from the base that it belongs to."""

  adapter: AdapterConfig
  params: dict[str, Any]  # path -> array of the adapters and of the parameters that were trained themselves
  base: str  # where its base is


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """A model from a checkpoint of any format, in our terms."""

  # The network, its variant 'custom' and every size given, and the shapes of its input and output.
  architecture: Architecture
  # Nested dicts of NumPy arrays, with the paths of our parameters and the blocks stacked; a model's state, such as
  # running statistics, is among them.
  params: dict[str, Any]
  preprocess: Preprocess  # how images become its input
  class_names: tuple[str, ...] | None = None  # of the logits; None: the checkpoint does not name them
  notes: tuple[str, ...] = ()  # sentences for the person: what was dropped, what is all zeros
  link: Link = 'softmax'  # what turns its logits into probabilities
  adapted: Adapted | None = None  # likewise apart from its base, where `params` has it merged

  @property
  def num_parameters(self) -> int:
    """Parameters of the model, without its state."""
    state = self.architecture.state_paths()
    return sum(array.size for path, array in pytrees.flatten(self.params).items() if path not in state)

  def part(self, architecture: Architecture) -> 'Pretrained':
    """The same with the parameters that a network has which is a part of this one, such as its image tower."""
    shapes = architecture.shapes()
    own = {path: leaf for path, leaf in pytrees.flatten(self.params).items() if path in shapes}
    return dataclasses.replace(self, architecture=architecture, params=pytrees.unflatten(own))


@dataclasses.dataclass(frozen=True)
class ReadOptions:
  """What the caller knows of a checkpoint that its files may not tell."""

  # Height, width that it was trained with, where its tensors do not tell.
  image_size: tuple[int, int] | None = None
  # Options of its model that the caller sets, such as {'activation': 'gelu'}; a format that stores them refuses.
  told: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # Options of its model that are taken where the format stores none.
  assumed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # Parameters of a run that has both: as they were trained ('raw') or their EMA ('ema'); see InitConfig.
  weights: Weights | None = None
  # Whether what only pre-training has (the decoder of a masked autoencoder, a text tower) is read too, as the options
  # of its model then say.
  pretraining: bool = False


class Format(abc.ABC):
  """A checkpoint format: how its files are recognised, read and, where that is possible, written."""

  # What messages call a checkpoint of it, with its article: 'a released .npz'.
  title: ClassVar[str]
  # Options of the model that `ReadOptions.told` may set, since the files do not tell them or may be wrong.
  tellable: ClassVar[frozenset[str]] = frozenset()
  # What `ReadOptions.weights` may ask for.
  weights: ClassVar[tuple[Weights, ...]] = ('raw',)
  # A name that stands for several formats when one is to be written: the first of them that fits.
  group: ClassVar[str | None] = None
  # How a destination of this format ends, so that it need not be named: '.npz'.
  suffix: ClassVar[str | None] = None

  @abc.abstractmethod
  def recognises(self, path: pathlib.Path) -> bool:
    """Whether a file or folder that exists is to be read by this format; looks at names and heads of files only."""

  @abc.abstractmethod
  def read(self, path: pathlib.Path, options: ReadOptions) -> Pretrained:
    """The model of a checkpoint.

    Args:
      path: what `recognises` has recognised.
      options: which `check_options` has checked.

    Raises:
      UserError: it is damaged, or of a model that we do not have.
    """

  def contents(self, path: pathlib.Path) -> str:
    """A digest of what `read` takes now, so that two results can be told to be of one checkpoint or of two."""
    found = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.is_file())
    return files.digest(found)

  def peek(self, path: pathlib.Path, options: ReadOptions) -> tuple[Architecture, Preprocess]:
    """The network of a checkpoint and how its images are prepared, without its numbers if possible; raises as read."""
    pretrained = self.read(path, options)
    return pretrained.architecture, pretrained.preprocess

  def texts(self, path: pathlib.Path, texts: Sequence[str], pretrained: Pretrained) -> 'Texts':
    """Texts as the head of a checkpoint's model (pretrained/zero_shot.py), `pretrained` being what `read` gave of it.

    Raises UserError where it has no text tower.
    """
    raise UserError(
      f'{path} is {self.title}, which has no text tower, so that names of classes make no head of it; take a folder of '
      'CLIP or SigLIP.'
    )

  def check_options(self, path: pathlib.Path, options: ReadOptions) -> None:
    """Raises UserError where the caller tells what the checkpoint itself knows, or asks for what it has not."""
    for name in options.told:
      if name not in self.tellable:
        raise UserError(f'{path} is {self.title}, which knows its {name}; leave {name} out.')
    if options.weights is not None and options.weights not in self.weights:
      raise UserError(
        f'{path} is {self.title}, which has one set of parameters; only a training run may have '
        f'weights {options.weights!r} too.'
      )

  def unfit(self, pretrained: Pretrained) -> str | None:
    """Why the format cannot hold a model, as a clause: 'it has no place for register_tokens'; None: it can."""
    return 'it can be read, but not written'

  def write(self, pretrained: Pretrained, destination: str | os.PathLike[str]) -> tuple[str, ...]:
    """Writes a checkpoint.

    Args:
      pretrained: the model.
      destination: a file or a folder, as the format has it.

    Returns:
      Sentences about what the format cannot hold unchanged.

    Raises:
      UserError: the format cannot hold this model, or the destination cannot be written.
    """
    raise self.refusal(self.unfit(pretrained) or 'it can be read, but not written')

  def refusal(self, why: str, others: Sequence[str] = ('run',)) -> UserError:
    """The error of a model that the format cannot hold, and which `others` can."""
    title = self.title[0].upper() + self.title[1:]
    return UserError(f'{title} cannot hold this model: {why}; choose another format ({", ".join(others)}).')


def no_teacher(checkpoint: str) -> UserError:
  """The error of a checkpoint without a head that is asked to teach."""
  return UserError(f'{checkpoint} has no head, so it cannot teach; fine-tune it first (configs/finetune.py).')


def with_told(path: pathlib.Path | str, model: M, told: Mapping[str, Any]) -> M:
  """A checkpoint's model with the options that the caller tells; UserError where it has no such option."""
  options = {field.name for field in dataclasses.fields(model)}
  for name in told:
    if name not in options:
      raise UserError(f'{path} holds {model.title}, which has no {name}; leave {name} out.')
  return dataclasses.replace(model, **told)


# The first that recognises a path reads it; of a group, the first that fits a model writes it.
FORMATS: Registry[Format] = Registry(
  'checkpoint format',
  {
    'run': 'vit_jax.pretrained.runs:RunFormat',
    'peft': 'vit_jax.pretrained.peft:PeftFormat',
    'bit': 'vit_jax.pretrained.transformers_bit:BitFormat',
    'vit': 'vit_jax.pretrained.transformers_vit:ViTFormat',
    'deit': 'vit_jax.pretrained.transformers_vit:DeiTFormat',
    'dinov2': 'vit_jax.pretrained.transformers_dinov2:DinoV2Format',
    'dinov3': 'vit_jax.pretrained.transformers_dinov2:DinoV3Format',
    'clip': 'vit_jax.pretrained.transformers_clip:ClipFormat',
    'beit': 'vit_jax.pretrained.transformers_beit:BeitFormat',
    'aimv2': 'vit_jax.pretrained.transformers_aimv2:Aimv2Format',
    'pixio': 'vit_jax.pretrained.transformers_pixio:PixioFormat',
    'mae': 'vit_jax.pretrained.transformers_mae:MaeFormat',
    'msn': 'vit_jax.pretrained.transformers_vit:MsnFormat',
    'efficientnet': 'vit_jax.pretrained.transformers_efficientnet:EfficientNetFormat',
    'open_clip': 'vit_jax.pretrained.open_clip:OpenClipFormat',
    'original': 'vit_jax.pretrained.original_names:OriginalFormat',
    'torchvision': 'vit_jax.pretrained.original_names:TorchvisionFormat',
    'timm_efficientnet': 'vit_jax.pretrained.timm_efficientnet:TimmEfficientNetFormat',
    'timm_mixer': 'vit_jax.pretrained.timm_mixer:TimmMixerFormat',
    'timm_bit': 'vit_jax.pretrained.timm_bit:TimmBitFormat',
    'timm': 'vit_jax.pretrained.timm:TimmFormat',
    # Behind timm, since any model that reads the mean of its patches fits these two.
    'siglip': 'vit_jax.pretrained.transformers_clip:SiglipFormat',
    'ijepa': 'vit_jax.pretrained.transformers_vit:IJepaFormat',
    'npz': 'vit_jax.pretrained.released:ReleasedFormat',
  },
)
