"""Our own training runs: `checkpoints/<step>/` of a workdir."""

import dataclasses
import os
import pathlib

import jax
import numpy as np

from vit_jax import config as config_lib
from vit_jax import pytrees
from vit_jax.checkpoint.config import CheckpointConfig
from vit_jax.checkpoint.manager import Manager
from vit_jax.config import Config
from vit_jax.data.config import DataConfig
from vit_jax.errors import UserError
from vit_jax.models import position, variants
from vit_jax.pretrained.base import Portable, Preprocess


def is_run(path: pathlib.Path) -> bool:
  """Whether a directory is a workdir, its `checkpoints` or one step of them."""
  return (path / 'checkpoints').is_dir() or path.name == 'checkpoints' or (path / 'params').is_dir()


def read(path: str | os.PathLike) -> Portable:
  """The model of a run: of the newest sound step of a workdir, or of the step given.

  Args:
    path: the workdir, or its `checkpoints/<step>`.

  Raises:
    UserError: there is no sound checkpoint.
  """
  path = pathlib.Path(path).absolute()
  directory, step = path, None
  if (path / 'checkpoints').is_dir():
    directory = path / 'checkpoints'
  elif path.name.isdigit():
    directory, step = path.parent, int(path.name)
  manager = Manager(directory, CheckpointConfig(), read_only=True)
  meta = _restore(manager, directory, step, {})[1]  # says what shapes to ask for
  config = config_lib.from_config_dict(meta['config'])
  # Colours, which masked patches are guessed to have, are no classes.
  class_names = () if config.loss.name == 'masked_patches' else tuple(meta['class_names'])
  num_classes = config.head_size(len(class_names))
  # The kernel of the devices it was trained on is nothing of the model's.
  model = dataclasses.replace(explicit(config.model), attention='auto')
  architecture = (model, config.data.image_size, config.data.channels, num_classes)
  _, shapes = pytrees.shapes(*architecture)
  empty = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in shapes.items() if not leaf.size}
  stored = {name: leaf for name, leaf in shapes.items() if name not in empty}
  items, meta = _restore(manager, directory, step, {'params': pytrees.unflatten(stored)})
  params = pytrees.unflatten(pytrees.flatten(jax.tree.map(np.asarray, items['params'])) | empty)
  if model.position == 'sincos2d':
    # As a learned embedding, which every format has, and which can be resized.
    grid = variants.grid(variants.resolve(model), config.data.image_size)
    class_token = variants.has_class_token(model)
    params['position_embedding'] = position.sincos2d(grid, model.width, class_token=class_token)
    architecture = (dataclasses.replace(model, position='learned'), *architecture[1:])
  notes = ()
  if config.average:
    notes = ('The run also has an average of its parameters, which is not what is loaded.',)
  return Portable(
    *architecture,
    params,
    preprocess=_preprocess(config, meta),
    class_names=class_names or None,
    position_resize=meta.get('position_resize', 'linear'),
    notes=notes,
  )


def _restore(manager: Manager, directory: pathlib.Path, step: int | None, items: dict) -> tuple[dict, dict]:
  """(items, meta) of a step; None: of the newest that is sound in all that is asked for."""
  if step is not None:
    return manager.restore(step, items)
  newest = manager.restore_newest(items)
  if newest is None:
    raise UserError(f'There is no checkpoint in {directory}; train first, or check the path.')
  return newest[1:]


def write(portable: Portable, workdir: str | os.PathLike) -> None:
  """Writes a model as step 0 of a run: to be loaded, and to begin a training from.

  Raises:
    UserError: the directory is in use, or the model is of a kind that cannot be trained here.
  """
  workdir = pathlib.Path(workdir).absolute()
  if workdir.exists() and any(workdir.iterdir()):
    raise UserError(f'{workdir} is not empty; choose another directory.')
  # As it will be read again: what is no valid config must not be written.
  config = config_lib.from_config_dict(config_lib.as_json(_config(portable)))
  preprocess = dataclasses.asdict(portable.preprocess)
  meta = {
    'config': config_lib.as_json(config),
    'class_names': list(portable.class_names or ()),
    'examples': 0,
    'preprocess': preprocess,
    'position_resize': portable.position_resize,
  }
  # The head of a model that has none is an empty array, which Orbax refuses.
  params = {name: array for name, array in pytrees.flatten(portable.params).items() if array.size}
  with Manager(workdir / 'checkpoints', config.checkpoint) as manager:
    manager.save(0, {'params': pytrees.unflatten(params)}, meta)


def explicit(model: config_lib.Model) -> config_lib.Model:
  """The model with variant 'custom' and all sizes given."""
  return dataclasses.replace(model, variant='custom', **dataclasses.asdict(variants.resolve(model)))


def _config(portable: Portable) -> Config:
  preprocess = portable.preprocess
  low = float(-preprocess.mean[0] / preprocess.std[0])
  high = float((1 - preprocess.mean[0]) / preprocess.std[0])
  return Config(
    model=portable.model,
    data=DataConfig(
      image_size=portable.image_size,
      channels=portable.channels,
      num_classes=portable.num_classes or None,
      value_range=(low, high),
    ),
  )


def _preprocess(config: Config, meta: dict) -> Preprocess:
  """As `write` stored it, or as the run's evaluation prepares its images."""
  if 'preprocess' in meta:
    values = {
      name: tuple(value) if isinstance(value, list) else value for name, value in meta['preprocess'].items()
    }
    return Preprocess(**values)
  size, shorter = config.data.image_size, None
  evaluators = list(config.evaluators.values())
  if evaluators and evaluators[0].crop == 'central':
    # As data/transforms.py cuts it: at least as large as covers the image.
    shorter = evaluators[0].resize or max(size)
  return Preprocess.from_range(size, *config.data.value_range, channels=config.data.channels, shorter=shorter)
