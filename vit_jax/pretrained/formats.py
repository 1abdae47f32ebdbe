"""Any checkpoint, wherever it is: a released .npz, a training run or a Hugging Face folder."""

import dataclasses
import difflib
import os
import pathlib

from vit_jax import config
from vit_jax.errors import UserError
from vit_jax.pretrained import catalogue, download, released, runs
from vit_jax.pretrained.base import Portable


def read(
  source: str | os.PathLike,
  *,
  image_size: tuple[int, int] | None = None,
  gelu: str | None = None,
  norm_epsilon: float | None = None,
  pool: str | None = None,
) -> Portable:
  """The model of a checkpoint.

  Args:
    source: a path, an https:// or gs:// address of an .npz, or a published file's short name such as
      'imagenet21k/ViT-B_16' or 'augreg/B_16-i21k-300ep-…'. What is fetched is kept in ~/.cache/vit_jax.
    image_size: of an .npz whose patches are not a square, what it was trained with.
    gelu: 'tanh' or 'erf'. None: as the checkpoint says, or as is usual for its kind ('tanh' in an .npz).
    norm_epsilon: of every norm. None: as the checkpoint says, or as is usual for its kind (1e-6).
    pool: of an .npz; None: its class token if there is one, else the mean of all tokens.

  Raises:
    UserError: there is no such checkpoint, it is damaged, or of a model we do not know.
  """
  path = located(source)
  told = {'gelu': gelu, 'norm_epsilon': norm_epsilon}
  if is_released(path):
    return released.read(path, image_size=image_size, pool=pool, **told)
  if pool is not None:
    raise UserError(f'{path} is no .npz and knows how it pools; leave pool out.')
  if path.suffix == '.safetensors' or (path.is_dir() and not runs.is_run(path)):
    if path.is_dir() and not (path / 'config.json').exists() and not list(path.glob('*.safetensors')):
      raise UserError(
        f'{path} is neither a training run (it has no checkpoints/) nor a Hugging Face folder (it has no '
        f'config.json); check the path.'
      )
    from vit_jax.pretrained import huggingface  # needs an extra

    return huggingface.read(path, **told)
  for name, value in told.items():
    if value is not None:
      raise UserError(f'{path} is a training run, which knows its {name}; leave {name} out.')
  return runs.read(path)


def model_config(source: str | os.PathLike) -> config.Model:
  """The architecture of a checkpoint, as a model to train: without the representation layer."""
  path = located(source)
  model = released.architecture(path).model if is_released(path) else read(path).model
  return dataclasses.replace(model, representation_size=None)


def is_released(path: pathlib.Path) -> bool:
  """Whether it is to be read as an .npz: any file but Hugging Face's."""
  return not path.is_dir() and path.suffix != '.safetensors'


def located(source: str | os.PathLike) -> pathlib.Path:
  """The path of a source; what is on the network is downloaded.

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
