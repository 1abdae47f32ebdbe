"""The original project's files: a flat .npz, in the naming of 2020 or the later one of Linen.

The architecture is read off the names and shapes. What they do not tell is told by the caller, or is as in the
original's models: the tanh approximation of GELU and an epsilon of 1e-6 (ResNets: 1e-5).
"""

import dataclasses
import math
import os
import pathlib
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture, ModelConfig
from vit_jax.models.mixer import MixerConfig
from vit_jax.models.resnet import ResNetConfig
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained import npz_archive
from vit_jax.pretrained.base import (
  SIGMOID_LOST,
  Format,
  Pretrained,
  ReadOptions,
  UnknownModelError,
  with_told,
)
from vit_jax.pretrained.npz_archive import Archive
from vit_jax.pretrained.released_bit import BitNames
from vit_jax.pretrained.released_mixer import MixerNames
from vit_jax.pretrained.released_names import Naming, ReleasedNames, Tensors
from vit_jax.pretrained.released_vit import BIG_VISION, ViTNames
from vit_jax.pretrained.tensor_names import some
from vit_jax.pretrained.torch_names import HEAD_PATHS, Rule, check, expected, gather, scatter

# By the config of the model that they are of; the first that reads a file's tensors is the one.
_NAMES: dict[type[ModelConfig], ReleasedNames[Any]] = {
  ResNetConfig: BitNames(),
  MixerConfig: MixerNames(),
  ViTConfig: ViTNames(),
}

# What a training run of the original, LiT, PaliGemma or CapPa puts before the names, and what such a file may hold
# beside the model.
_PREFIXES = {
  'opt/target/': r'opt/state/.*|extra/.*',
  'params/img/': r'params/((txt|llm)/.*|t|b)',
  'params/encoder/': r'params/(decoder/.*|pos_embedding_decoder)',
  'params/': r'(opt|state|extra)/.*',
  'img/': r'(txt|llm)/.*|t|b',
  'encoder/': r'decoder/.*|pos_embedding_decoder',
  '': '',
}
# Where this lies beside an image tower, its head makes of every token what the language model reads (PaliGemma).
_READER = re.compile(r'(params/)?llm/')
_TOLD = ('activation', 'norm_epsilon', 'pool')  # what no tensor tells


class ReleasedFormat(Format):
  """A .npz of the original project, or one in its format."""

  title = 'a released .npz'
  tellable = frozenset(_TOLD)
  suffix = '.npz'

  def recognises(self, path: pathlib.Path) -> bool:
    """Any file but Hugging Face's: published ones are called as they like."""
    return not path.is_dir() and path.suffix != '.safetensors'

  def read(self, path: pathlib.Path, options: ReadOptions) -> Pretrained:
    with Archive(path) as archive:
      stored, notes = _stored(archive)
      names, architecture = _infer(archive, stored, options.image_size)
      usual_epsilon = architecture.model.norm_epsilon
      model = _with_told(path, architecture.model, options)
      architecture = dataclasses.replace(architecture, model=model)
      params = _read_params(archive, stored, names, architecture)
      if archive.dtypes != {'float32'}:
        stored_in = ', '.join(sorted(archive.dtypes))
        notes += (f'{path.name} is stored in {stored_in}, and read into float32.',)
    if model.norm_epsilon != usual_epsilon:
      notes += (
        f'{path.name} is read with norm_epsilon {model.norm_epsilon:g}, and the published ones have '
        f'{usual_epsilon:g}.',
      )
    head = params['head']
    if architecture.num_classes and not head['kernel'].any() and not head['bias'].any():
      notes += (
        f'The head of {path.name} is all zeros, so that every class gets the same logit; it is for '
        f'features, or to fine-tune with num_classes=….',
      )
    return Pretrained(architecture, params, _preprocess(architecture), notes=notes)

  def peek(self, path: pathlib.Path, options: ReadOptions) -> tuple[Architecture, Preprocess]:
    with Archive(path) as archive:
      _, architecture = _infer(archive, _stored(archive)[0], options.image_size)
      return architecture, _preprocess(architecture)

  def unfit(self, pretrained: Pretrained) -> str | None:
    model = pretrained.architecture.model
    names = _NAMES.get(type(model))
    if names is None:
      return f'it has no names for {model.title}'
    missing = names.unfit(model)
    if missing is not None:
      return f'it has no place for {missing}'
    flat = _without_empty(pretrained)
    nameless = sorted(path for path in flat if names.name(path, '2020') is None)
    if nameless:
      return f'it has no place for {some(nameless)}'
    # What a reader finds: a parameter that it would not look for has no place either.
    found, size = _as_read(pretrained, names), pretrained.architecture.image_size
    nameless = sorted(flat.keys() - found.shapes().keys())
    if nameless:
      return f'it has no place for {some(nameless)}'
    grids = [' x '.join(map(str, model.grid(side))) for side in (found.image_size, size)]
    oblong = size[0] != size[1] and grids[0] != grids[1]
    return f'it is read as one of {grids[0]} patches, a square, and this has {grids[1]}' if oblong else None

  def write(self, pretrained: Pretrained, destination: str | os.PathLike[str]) -> tuple[str, ...]:
    """Writes a file; one that is there is replaced once the new one is complete."""
    why = self.unfit(pretrained)
    if why is not None:
      raise self.refusal(why)
    names = _NAMES[type(pretrained.architecture.model)]
    npz_archive.write(destination, _tensors(pretrained, names))
    return _untold(pretrained, names)


def infer(
  file: object, shapes: dict[str, tuple[int, ...]], image_size: tuple[int, int] | None
) -> tuple[ReleasedNames[Any], Architecture]:
  """What calls tensors so (by the original's names, without prefix), and what they are of; UserError: we know none."""
  for names in _NAMES.values():
    if names.reads(shapes):
      return names, names.architecture(Tensors(file, shapes), image_size)
  first = ', '.join(sorted(shapes)[:3]) or 'nothing at all'
  raise UserError(f'{file} holds no Vision Transformer: its tensors are {first} …; choose another file.')


def _stored(archive: Archive) -> tuple[dict[str, str], tuple[str, ...]]:
  """The names of the format -> those in the file, without what lies beside the model; and a note on that."""
  names = list(archive.shapes)
  prefix = next(
    prefix for prefix in _PREFIXES if any(name.startswith(prefix) for name in names) or not prefix
  )
  beside = [name for name in names if _PREFIXES[prefix] and re.fullmatch(_PREFIXES[prefix], name)]
  notes = ()
  if beside:
    what = 'other tensors' if len(beside) > 1 else 'other tensor'
    notes = (f'{archive.path.name} holds {len(beside)} {what} beside the model ({some(beside)}), not read.',)
  model = [name for name in names if name not in set(beside)]
  others = [name for name in model if not name.startswith(prefix)]
  if others:
    raise UserError(
      f'{archive.path} has the tensor {some(others)} beside those of {prefix}; choose another file.'
    )
  return {name.removeprefix(prefix): name for name in model}, notes


def _infer(
  archive: Archive, stored: dict[str, str], image_size: tuple[int, int] | None
) -> tuple[ReleasedNames[Any], Architecture]:
  shapes = {key: archive.shapes[name] for key, name in stored.items()}
  names, architecture = infer(archive.path, shapes, image_size)
  if names.naming(shapes) in BIG_VISION and any(map(_READER.match, archive.shapes)):
    model = dataclasses.replace(architecture.model, pool='none')
    architecture = dataclasses.replace(architecture, model=model)
  return names, architecture


def _with_told(path: pathlib.Path, model: ModelConfig, options: ReadOptions) -> ModelConfig:
  """The model with what no tensor tells."""
  values = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}
  assumed = {name: value for name, value in options.assumed.items() if name in _TOLD and name in values}
  told = dict(options.told)
  if 'pool' in told and told['pool'] != values.get('pool') and 'class_token' in values:
    if told['pool'] == 'token':
      raise UserError("pool is 'token', but the file has no class token; leave pool out.")
    told['class_token'] = values['pool'] == 'token'
  return with_told(path, model, assumed | told)


def _read_params(
  archive: Archive, stored: dict[str, str], names: ReleasedNames[Any], architecture: Architecture
) -> dict[str, Any]:
  """The parameters, each read to its place; `stored` maps the format's names to those in the file."""
  found = {key: archive.shapes[name] for key, name in stored.items()}
  own = {key: _without_ones(shape, names.leading_ones(key)) for key, shape in found.items()}
  before = {key: tokens for key in found if (tokens := names.tokens_before(key, found))}
  fitting = own | {key: (1, own[key][1] + tokens, own[key][2]) for key, tokens in before.items()}
  try:
    shapes = architecture.shapes()
    absent = () if architecture.num_classes else HEAD_PATHS
    rules = _rules(names, shapes.keys() - absent, names.naming(found))
    check(fitting, expected(rules, shapes), ())
  except (UserError, UnknownModelError) as error:
    reason = str(error).rstrip('.')
    raise UserError(
      f'{archive.path} holds a model that vit_jax does not have: {reason}; choose another file.'
    ) from error
  params = {
    path: np.empty(leaf.shape, np.float32) for path, leaf in shapes.items() if not math.prod(leaf.shape)
  }

  def read(key: str) -> np.ndarray:
    array = archive.read(stored[key]).reshape(own[key])
    return np.pad(array, ((0, 0), (before[key], 0), (0, 0))) if key in before else array

  return pytrees.unflatten(params | gather(rules, shapes, read))


def _rules(names: ReleasedNames[Any], paths: Iterable[str], naming: Naming) -> list[Rule]:
  """Which tensor each parameter is in."""
  return [Rule(path, name) for path in sorted(paths) if (name := names.name(path, naming)) is not None]


def _without_ones(shape: tuple[int, ...], ones: int) -> tuple[int, ...]:
  """A shape without its first dimensions where these are so many ones."""
  return shape[ones:] if len(shape) > ones and shape[:ones] == (1,) * ones else shape


def _without_empty(pretrained: Pretrained) -> dict[str, np.ndarray]:
  """The parameters by path, without the head of a model that has none."""
  flat = {path: np.asarray(leaf) for path, leaf in pytrees.flatten(pretrained.params).items()}
  return {path: array for path, array in flat.items() if array.size}


def _tensors(pretrained: Pretrained, names: ReleasedNames[Any]) -> dict[str, np.ndarray]:
  """The tensors by their names of 2020, which the original's later code reads too, as views of the parameters."""
  flat = _without_empty(pretrained)
  tensors = scatter(_rules(names, flat, '2020'), flat)
  return {
    name: tensor.reshape((1,) * names.leading_ones(name) + tensor.shape) for name, tensor in tensors.items()
  }


def _as_read(pretrained: Pretrained, names: ReleasedNames[Any]) -> Architecture:
  """What a reader finds who is told nothing but an image size that is no square."""
  shapes = {name: array.shape for name, array in _tensors(pretrained, names).items()}
  height, width = pretrained.architecture.image_size
  return names.architecture(Tensors('the model', shapes), None if height == width else (height, width))


def _untold(pretrained: Pretrained, names: ReleasedNames[Any]) -> tuple[str, ...]:
  """What a reader of the file must be told."""
  architecture, found = pretrained.architecture, _as_read(pretrained, names)
  arguments = []
  for name in _TOLD:
    value = getattr(architecture.model, name, None)
    if value != getattr(found.model, name, None):
      arguments.append(f'{name}={value:g}' if isinstance(value, float) else f'{name}={value!r}')
  height, width = architecture.image_size
  if height != width or found.image_size != architecture.image_size:
    arguments.append(f'image_size={architecture.image_size}')
  notes = []
  if arguments:
    notes.append(f'The file cannot say how it is to be computed: load it with {", ".join(arguments)}.')
  if pretrained.preprocess != _preprocess(architecture):
    notes.append('The file does not tell how its images are prepared, which is not as in the original.')
  if pretrained.link == 'sigmoid':
    notes.append(SIGMOID_LOST)
  if pretrained.class_names:
    notes.append('The file does not hold the names of the classes.')
  return tuple(notes)


def _preprocess(architecture: Architecture) -> Preprocess:
  """As the original prepares images: squashed, in [-1, 1]."""
  return Preprocess.from_range(architecture.image_size, -1.0, 1.0, channels=architecture.channels)
