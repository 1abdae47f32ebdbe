"""Our own training runs: `checkpoints/<step>/` of a workdir."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from vit_jax import config as config_lib
from vit_jax import options as options_lib
from vit_jax.adapters import lora
from vit_jax.checkpoint.config import CheckpointConfig
from vit_jax.config import Config
from vit_jax.data.preprocess import Preprocess
from vit_jax.evaluation import base as evaluation
from vit_jax.foundation import files, pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import MODELS, Architecture
from vit_jax.models.capabilities import TextTowerOptions
from vit_jax.pretrained import adapter_base, captions, tokenizing, zero_shot
from vit_jax.pretrained.base import Adapted, Format, Pretrained, ReadOptions
from vit_jax.pretrained.config import Weights
from vit_jax.pretrained.zero_shot import Texts

_PARTIAL = '.orbax-checkpoint-tmp'  # in the name of a step until it is complete


class RunFormat(Format):
  """A run's workdir (its newest sound step), its `checkpoints`, or one step of them."""

  title = 'a training run'
  weights = ('raw', 'ema')

  def recognises(self, path: pathlib.Path) -> bool:
    return (path / 'checkpoints').is_dir() or path.name == 'checkpoints' or (path / 'params').is_dir()

  def read(self, path: pathlib.Path, options: ReadOptions) -> Pretrained:
    chosen = options.weights

    def wanted(meta: dict[str, Any]) -> dict[str, Any]:
      run = _Stored(meta)
      weights = chosen or _reported(run.config)
      if weights == 'ema' and not run.config.ema:
        raise UserError(
          f"{path} has no EMA of its parameters (its config.ema is 0), which weights 'ema' asks for; leave it out."
        )
      # The head of a model that has none is an empty array, which is not stored.
      shapes = {name: leaf for name, leaf in run.shapes().items() if leaf.size}
      return {'ema': pytrees.unflatten(shapes)} if weights == 'ema' else _items(run.architecture, shapes)

    _, items, meta = _restored(path, wanted)
    run = _Stored(meta)
    params = {}
    for tree in items.values():
      params |= pytrees.flatten(jax.tree.map(np.asarray, tree))
    adapted = None
    if run.config.adapter.rank:
      adapted = Adapted(run.config.adapter, params, meta['base']['address'])
      params = adapter_base.whole(run.config, run.architecture, pytrees.unflatten(params), meta['base'])
    for name, leaf in run.architecture.shapes().items():
      if not leaf.size:
        params[name] = np.zeros(leaf.shape, leaf.dtype)
    architecture = run.architecture
    model = architecture.model
    fixed = model.fixed_positions(model.grid(architecture.image_size))
    if fixed is not None:  # as a learned embedding, which every format has, and which can be resized
      params['position_embedding'] = fixed
    notes = _about_ema(run.config) if options.weights is None else ()
    return Pretrained(
      dataclasses.replace(architecture, model=model.with_learned_positions()),
      pytrees.unflatten(params),
      _preprocess(run.config, meta),
      class_names=run.class_names or None,
      notes=notes,
      link=run.config.objective.link,
      adapted=adapted,
    )

  def contents(self, path: pathlib.Path) -> str:
    """Of the step that `read` takes: its meta has the checksums of all arrays."""
    step, _, _ = _restored(path, lambda meta: {})
    return files.digest(sorted((_directory(path)[0] / str(step) / 'meta').iterdir()))

  def peek(self, path: pathlib.Path, options: ReadOptions) -> tuple[Architecture, Preprocess]:
    meta = _restored(path, lambda meta: {})[-1]
    run = _Stored(meta)
    return run.architecture, _preprocess(run.config, meta)

  def texts(self, path: pathlib.Path, texts: Sequence[str], pretrained: Pretrained) -> Texts:
    model = pretrained.architecture.model
    learned = _Stored(_restored(path, lambda meta: {})[-1]).config.objective.texts
    if learned is None or not isinstance(model, TextTowerOptions):
      return super().texts(path, texts, pretrained)
    tokenize = captions.tokenizer(learned.tokenizer, model)
    return zero_shot.of_network(pretrained, tokenizing.distinct(texts, tokenize))

  def unfit(self, pretrained: Pretrained) -> str | None:
    """None, although a config that no run can have is refused by `write`, in the config's own words."""
    return None

  def write(self, pretrained: Pretrained, destination: str | os.PathLike[str]) -> tuple[str, ...]:
    """Writes a model as step 0 of a run; UserError: the directory is in use, or no run can train such a model."""
    workdir = pathlib.Path(destination).absolute()
    if workdir.exists() and (not workdir.is_dir() or _in_use(workdir)):
      raise UserError(f'{workdir} is not empty; choose another directory.')
    config = _config(pretrained)
    meta = {
      'config': config_lib.as_json(config),
      'class_names': list(pretrained.class_names or ()),
      'examples': 0,
      'preprocess': dataclasses.asdict(pretrained.preprocess),
    }
    # The head of a model that has none is an empty array, which Orbax refuses.
    params = {name: array for name, array in pytrees.flatten(pretrained.params).items() if array.size}
    from vit_jax.checkpoint.manager import Manager  # here: as below

    with Manager(workdir / 'checkpoints', config.checkpoint) as manager:
      manager.save(0, _items(pretrained.architecture, params), meta)
    return ()


def _items(architecture: Architecture, arrays: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """The items of a step (`TrainState.items`) that together hold a model's arrays, given by their paths."""
  state = architecture.state_paths()
  items = {
    'params': {path: array for path, array in arrays.items() if path not in state},
    'model_state': {path: array for path, array in arrays.items() if path in state},
  }
  return {name: pytrees.unflatten(flat) for name, flat in items.items() if flat}


def _in_use(workdir: pathlib.Path) -> bool:
  """Whether a directory holds more than a save that was interrupted, which the next one replaces."""
  checkpoints = workdir / 'checkpoints'
  others = [path for path in workdir.iterdir() if path != checkpoints]
  return bool(others) or any(_PARTIAL not in path.name for path in checkpoints.glob('*'))


class Trained(NamedTuple):
  """How a run's checkpoint came about."""

  config: Config
  step: int
  examples: int  # images of the training data
  weights: Weights  # which of its parameters are read
  evaluated: Mapping[str, int]  # evaluator -> its images; {}: an early version did not store them
  directory: str | None = None  # where the config's relative places begin; None: nor this
  data_version: str = ''  # what `Source.version` said of the training data; '': not known


def trained(path: pathlib.Path, weights: Weights | None = None) -> Trained | None:
  """How the checkpoint at a path was trained, of which `weights` are asked for; None: it is no run, or `convert`'s."""
  if not RunFormat().recognises(path):
    return None
  step, _, meta = _restored(path, lambda meta: {})
  if not meta['examples']:
    return None
  config = _Stored(meta).config
  return Trained(
    config,
    step,
    meta['examples'],
    weights or _reported(config),
    meta.get('evaluated', {}),
    meta.get('directory'),
    meta.get('data_version', ''),
  )


class _Stored:
  """What the meta of a step tells.

  Attributes:
    config: the run's.
    class_names: of the logits, those beyond the data's classes by their number; (): they have no names.
    architecture: the network, its variant 'custom' and every size given.
  """

  def __init__(self, meta: Mapping[str, Any]):
    try:
      self.config = config_lib.from_config_dict(meta['config'])
    except options_lib.UnknownKind as error:
      raise UserError(
        f'The run has a part that is not in vit_jax: {error} If you wrote it, import its module before you load '
        'the run.'
      ) from None
    data, objective, names = self.config.data, self.config.objective, tuple(meta['class_names'])
    model = self.config.model.resolved().on_any_device()
    if 'position_resize' in meta:  # earlier versions kept it here, of a checkpoint that was converted
      model = model.with_position_resize(meta['position_resize'])
    outputs = objective.head_size(len(names), data)
    self.architecture = Architecture(model, data.image_size, data.channels, outputs)
    self.class_names = _of_all_outputs(objective.class_names(names), outputs)

  def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
    """The shape of each variable that the checkpoint holds, by its path."""
    shapes, adapter = self.architecture.shapes(), self.config.adapter
    if not adapter.rank:
      return shapes
    state, kernels = self.architecture.state_paths(), lora.targets(self.architecture.abstract(), adapter)
    params = pytrees.unflatten({path: leaf for path, leaf in shapes.items() if path not in state})
    trained = jax.eval_shape(lambda: lora.initial(kernels, params, adapter, jax.random.key(0)))
    return {path: shapes[path] for path in state} | pytrees.flatten(trained)


def _of_all_outputs(names: tuple[str, ...], outputs: int) -> tuple[str, ...]:
  """The names of the data's classes, and numbers for outputs beyond them (data.num_classes); () stays ()."""
  if not names:
    return ()
  numbered = ((str(number), f'output {number}') for number in range(len(names), outputs))
  return (*names, *(other if number in names else number for number, other in numbered))


def _restored(path: pathlib.Path, wanted: Any) -> tuple[int, dict[str, Any], dict[str, Any]]:
  """Number, items and meta of the step that a path names, or of the newest that is sound in the trees of shapes that
  `wanted` makes of its meta; UserError where there is none.
  """
  # Here: Orbax takes half a second to import, and other formats do not need it.
  from vit_jax.checkpoint.manager import Manager

  directory, step = _directory(path)
  _check_regular(directory if step is None else path)
  manager = Manager(directory, CheckpointConfig(), read_only=True)
  if step is not None:
    return step, *manager.restore(step, wanted)
  newest = manager.restore_newest(wanted)
  if newest is None:
    raise UserError(f'There is no checkpoint in {directory}; train first, or check the path.')
  return newest


def _directory(path: pathlib.Path) -> tuple[pathlib.Path, int | None]:
  """The folder of a run's checkpoints that a path names, and its step where it names one."""
  path = path.absolute()
  if (path / 'checkpoints').is_dir():
    return path / 'checkpoints', None
  return (path.parent, int(path.name)) if path.name.isdigit() else (path, None)


def _check_regular(directory: pathlib.Path) -> None:
  """Raises UserError where something is no file: reading a pipe would wait forever, a device may have no end."""
  for folder, _, names in os.walk(directory):
    for name in names:
      file = pathlib.Path(folder, name)
      if file.exists() and not file.is_file():
        raise UserError(f'{file} is not a regular file; get the checkpoint again.')


def _reported(config: Config) -> Weights:
  """The parameters by which the run chose its best checkpoint; or those of the teacher, where they are the EMA."""
  if config.objective.learns_from_ema:
    return 'ema'
  best = config.checkpoint.best
  of_raw = dataclasses.replace(config, ema=0.0).metric_names(best=True)
  return 'ema' if config.ema and best is not None and best not in of_raw else 'raw'


def _about_ema(config: Config) -> tuple[str, ...]:
  if not config.ema:
    return ()
  if config.objective.learns_from_ema:
    return ("The teacher, the run's EMA, is loaded; weights='raw' (--weights=raw) loads the student.",)
  if _reported(config) == 'ema':
    return (
      f'The EMA of the parameters is loaded, since the checkpoint.best of the run ({config.checkpoint.best}) is a '
      "metric of it; weights='raw' (--weights=raw) loads the others.",
    )
  return (
    "The run also has an EMA of its parameters, and what is loaded is not that; weights='ema' (--weights=ema) loads "
    'it.',
  )


def _config(pretrained: Pretrained) -> Config:
  """A config that trains the model further; UserError where no valid one describes it."""
  preprocess, architecture = pretrained.preprocess, pretrained.architecture
  model = architecture.model
  return config_lib.from_config_dict(
    {
      'objective': {'name': 'classification', 'loss': pretrained.link},
      'model': {MODELS.tag: MODELS.name_of(type(model)), **options_lib.as_dict(model)},
      'data': {
        'image_size': architecture.image_size,
        'channels': architecture.channels,
        'num_classes': architecture.num_classes or None,
        'mean': preprocess.mean,
        'std': preprocess.std,
        'interpolation': preprocess.interpolation,
      },
    }
  )


def _preprocess(config: Config, meta: Mapping[str, Any]) -> Preprocess:
  """As `write` stored it, or as the run's evaluation prepares its images."""
  if 'preprocess' in meta:
    return options_lib.from_dict(Preprocess, meta['preprocess'], 'preprocess')
  _, evaluator = evaluation.leading(config.evaluators) or ('', None)
  crop, resize = (evaluator.crop, evaluator.resize) if evaluator else (None, None)
  return Preprocess.of_run(config.data, crop, resize)
