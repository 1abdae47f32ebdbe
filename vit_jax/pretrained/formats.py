"""Checkpoints of any format, wherever they are: a path, an address or a published name."""

import dataclasses
import difflib
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation import hub, pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.pretrained import adapt, catalogue, download, foreign, hub_files, huggingface
from vit_jax.pretrained.base import FORMATS, Format, Pretrained, ReadOptions
from vit_jax.pretrained.config import InitConfig, Weights


def read(
  source: str | os.PathLike[str],
  *,
  image_size: tuple[int, int] | None = None,
  told: Mapping[str, Any] | None = None,
  assumed: Mapping[str, Any] | None = None,
  weights: Weights | None = None,
  pretraining: bool = False,
) -> Pretrained:
  """The model of a checkpoint.

  Args:
    source: a path, an https://, gs:// or s3:// address, a repository of the Hub ('hf:org/name'), or a published file's
      short name such as 'imagenet21k/ViT-B_16'. Downloads are kept in ~/.cache/vit_jax, or the Hub's cache.
    image_size: height, width it was trained with, where its tensors do not tell.
    told: options of its model that its files do not tell; see `ReadOptions`.
    assumed: likewise, taken only where the format stores none.
    weights: of a training run: 'raw' or 'ema'; see InitConfig.
    pretraining: whether what only pre-training has is read too, where files of another project have it.

  Raises:
    UserError: there is no such checkpoint, it is damaged, or of a model that we do not have.
  """
  path = located(source)
  found, options = format_of(path), ReadOptions(image_size, told or {}, assumed or {}, weights, pretraining)
  found.check_options(path, options)
  return found.read(path, options)


def with_texts(
  source: str | os.PathLike[str],
  pretrained: Pretrained,
  classes: Sequence[str],
  prompts: Sequence[str] = ('{}',),
) -> Pretrained:
  """What `read` gave of a source, with a head that its text tower makes of the names of classes.

  A class is the mean of the prompts, in which {} stands for its name. UserError: there is no text tower, or no class.
  """
  from vit_jax.pretrained import zero_shot  # here: few checkpoints have a text tower

  if not classes or not prompts:
    raise UserError(f'There are no {"prompts" if classes else "classes"}; name at least one.')
  path = located(source)
  texts = format_of(path).texts(path, zero_shot.prompted(classes, prompts), pretrained)
  return zero_shot.with_head(pretrained, texts, classes)


def architecture(source: str | os.PathLike[str]) -> Architecture:
  """The network of a checkpoint, without its numbers where that is possible; raises as `read`."""
  path = located(source)
  return format_of(path).peek(path, ReadOptions())[0]


def preprocess(source: str | os.PathLike[str], *, image_size: tuple[int, int]) -> Preprocess:
  """How the images of a checkpoint are prepared; arguments and errors as of `read`."""
  path = located(source)
  return format_of(path).peek(path, ReadOptions(image_size))[1]


def contents(source: str | os.PathLike[str]) -> str:
  """A digest of what a checkpoint holds now, of a run of the step that is read; raises as `read`."""
  path = located(source)
  return format_of(path).contents(path)


def format_of(path: pathlib.Path) -> Format:
  """The format that reads a path; UserError where none does."""
  if not path.is_dir():
    if not path.is_file():  # a device or a pipe, which may have no end
      raise UserError(f'{path} is not a regular file; check the path.')
    foreign.refuse(path)
  for name in FORMATS.names():
    candidate = FORMATS[name]()
    if candidate.recognises(path):
      return candidate
  raise _unknown(path)


def to_write(name: str, pretrained: Pretrained) -> Pretrained:
  """The model as a format holds it: of patches of several sizes all in a run, and `patch` alone in other files."""
  architecture, model = pretrained.architecture, pretrained.architecture.model.with_one_patch_size()
  if name == 'run' or model == architecture.model:
    return pretrained
  architecture = dataclasses.replace(architecture, model=model)
  arrays, _ = adapt.adapt(pretrained, architecture, InitConfig(reinitialise=(), ignore=()))
  note = f'Of patches of several sizes, those of {model.patch_pixels} pixels are written.'
  return dataclasses.replace(
    pretrained,
    architecture=architecture,
    params=pytrees.unflatten(arrays),
    notes=(*pretrained.notes, note),
  )


def written_by(name: str, pretrained: Pretrained) -> tuple[Format, tuple[str, ...]]:
  """The format that is to write a model; of a group the first that can, and a sentence on why not the very first.

  Raises:
    UserError: it cannot hold the model.
  """
  reasons = []
  for candidate in [other for other in FORMATS.names() if FORMATS[other].group == name] or [name]:
    chosen = FORMATS[candidate]()
    why = chosen.unfit(pretrained)
    if why is None:
      note = '; '.join([f'Of {name}, the kind {candidate!r} is written', *reasons[:1]])
      return chosen, () if candidate == name else (f'{note}.',)
    if candidate == name:
      others = [other for other in FORMATS.names() if FORMATS[other]().unfit(pretrained) is None]
      raise chosen.refusal(why, others)
    reasons.append(f'not {candidate!r}, since {why}')
  raise UserError(
    f'No kind of {name} can hold this model: {"; ".join(reasons)}; choose another format, such as a run.'
  )


def names_to_write() -> list[str]:
  """What `written_by` knows: the formats, and the groups of them."""
  groups = {FORMATS[name].group: None for name in FORMATS.names()}
  return [*FORMATS.names(), *(group for group in groups if group is not None)]


def of_suffix(destination: str) -> str | None:
  """The format of which a destination's name ends as its files do; None: it can be any."""
  for name in FORMATS.names():
    suffix = FORMATS[name].suffix
    if suffix is not None and destination.endswith(suffix):
      return name
  return None


def _unknown(path: pathlib.Path) -> UserError:
  """The error of a path that no format recognises."""
  values = huggingface.config_of(path)
  if values is not None:
    return UserError(
      f'{path} holds {huggingface.described(values)}, which vit_jax does not have; of folders it reads '
      f'{", ".join(FORMATS.names())} (docs/checkpoints.md).'
    )
  if path.suffix == '.safetensors' and not path.is_dir():
    return UserError(
      f'{path} has no config.json beside it, and its tensors are not called as by a project of which they tell enough '
      '(timm, OpenCLIP, torchvision, DINO, MAE); get the config.json of its folder too.'
    )
  if not path.is_dir():
    return UserError(
      f'{path} is not a checkpoint of a known format; vit_jax reads {", ".join(FORMATS.names())}.'
    )
  if any(path.glob('*.safetensors')):
    return UserError(
      f'{path} has no config.json; get it from where the tensors are from, or name the .safetensors file '
      'itself if its tensors have the names of timm, OpenCLIP, torchvision or DINO.'
    )
  runs = sorted(str(folder.parent) for folder in path.glob('*/checkpoints'))
  if runs:
    return UserError(f'{path} is a folder of runs; did you mean {" or ".join(runs[:3])}?')
  foreign.refuse_folder(path)
  return UserError(
    f'{path} is neither a training run (it has no checkpoints/) nor a Hugging Face folder (it has no '
    f'config.json); check the path.'
  )


def located(source: str | os.PathLike[str]) -> pathlib.Path:
  """The path of a source; what is on the network is downloaded. UserError where there is none, or it does not come."""
  source = os.fspath(source)
  path = pathlib.Path(source).expanduser()
  if address := hub.address_of(source):
    return hub_files.local_copy(address)
  if download.is_address(source):
    foreign.refuse(source)  # before it is downloaded
    return download.local_file(source)
  if path.exists():
    return path
  if catalogue.is_name(source):
    return download.local_file(source)
  organization, slash, _ = source.partition('/')
  guess = hub.guessed(source)
  if guess is None or (slash and os.path.exists(organization)):
    raise _nothing_there(source, path, f' (On the Hub: {guess}.)' if guess else '')
  try:
    return hub_files.local_copy(guess)
  except hub.UnknownError as error:
    raise _nothing_there(source, path, f' {error}') from error


def _nothing_there(source: str, path: pathlib.Path, of_hub: str = '') -> UserError:
  """The error for a name that is no path and not published, with those most like it; behind it what the Hub says."""
  beside = {other.name: str(other) for other in path.parent.iterdir()} if path.parent.is_dir() else {}
  near = [beside[name] for name in difflib.get_close_matches(path.name, beside, n=2, cutoff=0.7)]
  if path.name.isdecimal():  # a step of a run
    near = sorted(
      (other for name, other in beside.items() if name.isdecimal()),
      key=lambda step: -int(pathlib.Path(step).name),
    )
  is_timm = re.fullmatch(r'[a-z]\w+_patch\d+\w*(\.\w+)?', source)  # as timm calls its models
  if not path.is_absolute() and not is_timm:
    near += catalogue.nearest(source)
  hint = f'did you mean {" or ".join(near[:3])}?' if near else 'check the path.'
  if is_timm and '.' not in source:
    hint = f"timm's model of that name has several; name one with its tag, {source}.augreg_in21k_ft_in1k."
  return UserError(f'There is no checkpoint {source}; {hint}{of_hub}')
