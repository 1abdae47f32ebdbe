"""Checkpoints of any format, wherever they are: a path, an address or a published name."""

import difflib
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.pretrained import catalogue, download
from vit_jax.pretrained.base import FORMATS, Format, Pretrained, ReadOptions


def read(
  source: str | os.PathLike[str],
  *,
  image_size: tuple[int, int] | None = None,
  told: Mapping[str, Any] | None = None,
  assumed: Mapping[str, Any] | None = None,
) -> Pretrained:
  """The model of a checkpoint.

  Args:
    source: a path, an https:// or gs:// address of a file, or a published file's short name such as
      'imagenet21k/ViT-B_16' or 'augreg/B_16-i21k-300ep-…'. Downloads are kept in ~/.cache/vit_jax.
    image_size: height, width it was trained with, where its tensors do not tell.
    told: options of its model that its files do not tell; see `ReadOptions`.
    assumed: likewise, taken only where the format stores none.

  Raises:
    UserError: there is no such checkpoint, it is damaged, or of a model that we do not have.
  """
  path = located(source)
  return format_of(path).read(path, ReadOptions(image_size, told or {}, assumed or {}))


def architecture(source: str | os.PathLike[str]) -> Architecture:
  """The network of a checkpoint, without its numbers where that is possible; raises as `read`."""
  path = located(source)
  return format_of(path).architecture(path)


def format_of(path: pathlib.Path) -> Format:
  """The format that reads a path.

  Raises:
    UserError: none does.
  """
  for name in FORMATS.names():
    candidate = FORMATS[name]()
    if candidate.recognises(path):
      return candidate
  if path.is_dir():
    raise UserError(
      f'{path} is neither a training run (it has no checkpoints/) nor a Hugging Face folder (it has no '
      f'config.json); check the path.'
    )
  raise UserError(
    f'{path} is not a checkpoint of a known format; vit_jax reads {", ".join(FORMATS.names())}.'
  )


def located(source: str | os.PathLike[str]) -> pathlib.Path:
  """The path of a source; files on the network are downloaded.

  Raises:
    UserError: there is nothing of that name, or it cannot be had.
  """
  source = os.fspath(source)
  path = pathlib.Path(source).expanduser()
  if download.is_address(source):
    return download.local_file(source)
  if path.exists():
    return path
  if catalogue.is_name(source):
    return download.local_file(source)
  beside = [str(other) for other in path.parent.iterdir()] if path.parent.is_dir() else []
  near = difflib.get_close_matches(source, beside, n=2) + catalogue.nearest(source)
  hint = f'; did you mean {" or ".join(near[:3])}?' if near else '; check the path.'
  raise UserError(f'There is no checkpoint {source}{hint}')
