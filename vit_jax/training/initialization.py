"""The parameters of step 0 from a checkpoint (config.init), straight to where the run has them."""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.adapters import lora
from vit_jax.config import Config
from vit_jax.data.config import DataConfig
from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture, ModelConfig
from vit_jax.parallel import sharding as sharding_lib
from vit_jax.parallel.agreement import Fact, check_facts
from vit_jax.pretrained import adapter_base, formats, kept_head
from vit_jax.pretrained.adapt import adapt, begins_anew
from vit_jax.pretrained.base import Pretrained
from vit_jax.training.run import Run
from vit_jax.training.state import TrainState
from vit_jax.training.step import Params, Program


def read_initial(
  config: Config, architecture: Architecture, class_names: Sequence[str]
) -> tuple[dict[str, np.ndarray], str]:
  """Reads config.init.checkpoint and makes it fit, a head that is kept to `class_names`, those of the training data.

  Returns path -> array of the parameters that do not begin anew, masked where rows of a head do, and a text that
  accounts for every tensor; ({}, '') without a checkpoint. Raises UserError where the checkpoint is not there, is
  damaged, or does not fit the config or the data's classes.
  """
  if config.init.checkpoint is None:
    return {}, ''
  return _fitted(adapter_base.read_checkpoint(config), config, architecture, class_names)


def read_base(
  run: Run, known: Mapping[str, Any] | None
) -> tuple[Params, dict[str, np.ndarray], dict[str, Any], str]:
  """Reads the base of a run's adapter; it is compared with what the run's checkpoint says of it, unless that is None.

  Returns:
    The frozen parameters on the mesh; the arrays of what is trained, for `initial_state` of a run that begins; what
    checkpoints are to say of the base; and the text of `read_initial`.

  Raises:
    UserError: as `read_initial`, or where the base is another one, or a frozen parameter does not come from it.
  """
  config = run.config
  pretrained = adapter_base.read_checkpoint(config)
  meta = adapter_base.meta(config, pretrained)
  if known is not None:
    adapter_base.check_same(known, meta)
  check_facts([Fact("the tensors of the adapter's base", meta['address'], meta['tensors'])])
  if known is None or 'head' in run.program.base:
    arrays, text = _fitted(pretrained, config, run.architecture, run.dataset.class_names)
  else:  # the checkpoint has the head: none is made of texts again, perhaps without their tokenizer
    arrays, report = adapt(pretrained, run.architecture, config.init)
    text = str(report)
  frozen = adapter_base.frozen(arrays, run.program.base, config.init.checkpoint)
  arrays = {path: array for path, array in arrays.items() if path not in frozen}
  arrays |= lora.magnitudes(frozen, run.program.state.params)
  return sharding_lib.place_tree(frozen, run.program.base), arrays, meta, text


def _fitted(
  pretrained: Pretrained, config: Config, architecture: Architecture, class_names: Sequence[str]
) -> tuple[dict[str, np.ndarray], str]:
  """As `read_initial`, of a checkpoint that has been read."""
  init = config.init
  if init.head == 'text':
    pretrained = _with_head_of_texts(pretrained, config, class_names)
    kept = tuple(pattern for pattern in init.reinitialise if not re.search(pattern, 'head/kernel'))
    init = dataclasses.replace(init, reinitialise=kept)
  _check_function(pretrained, config.model)
  pretrained = _with_head_of(pretrained, config, architecture, class_names)
  arrays, report = adapt(pretrained, architecture, init)
  notes = [*pretrained.notes, *_different_preprocessing(pretrained, config.data)]
  return arrays, '\n'.join([f'Parameters from {config.init.checkpoint}', str(report), *notes])


def initial_state(program: Program, seed: int, arrays: dict[str, np.ndarray]) -> TrainState:
  """The state of step 0, on the mesh: `arrays` of `read_initial`, empty afterwards, and by `seed` what begins anew."""
  if not arrays:
    return _computed(program.init, seed)
  loaded = frozenset(path for path, array in arrays.items() if not np.ma.is_masked(array))
  shardings: Any = jax.tree.map(lambda leaf: leaf.sharding, program.state)

  def begin(seed: jax.Array) -> TrainState:
    return _without(program.init(seed), loaded)

  # Random numbers for loaded parameters would take several times their memory; XLA omits what is not
  # returned.
  state = _computed(jax.jit(begin, out_shardings=_without(shardings, loaded)), seed)
  trees = {'params': dict(state.params), 'model_state': dict(state.model_state)}
  for name, tree in trees.items():
    for path, leaf in pytrees.flatten(getattr(program.state, name)).items():
      if path in arrays:
        array = arrays.pop(path)
        placed = sharding_lib.place(array, leaf)
        tree[path] = _merged(placed, tree[path], array, leaf) if path in tree else placed
  state = state._replace(**{name: pytrees.unflatten(tree) for name, tree in trees.items()})
  copied = jax.jit(lambda leaves: jax.tree.map(jnp.copy, leaves))
  return state._replace(ema=copied(state.variables) if program.state.ema else {})


def _computed(begin: jax.stages.Wrapped, seed: int) -> TrainState:
  """What a function makes of a seed. It runs once, so that it is compiled in half the time, to code that is as fast."""
  options: Any = {'xla_backend_optimization_level': 1} if jax.default_backend() == 'cpu' else None
  return begin.lower(np.uint32(seed)).compile(options)(np.uint32(seed))


def _merged(placed: jax.Array, initial: jax.Array, array: np.ndarray, leaf: Any) -> jax.Array:
  """The initial values where the checkpoint's array is masked, and its own elsewhere."""
  anew = sharding_lib.place(
    np.ma.getmaskarray(array), jax.ShapeDtypeStruct(leaf.shape, bool, sharding=leaf.sharding)
  )
  return jax.jit(jnp.where, out_shardings=leaf.sharding)(anew, initial, placed)


def _with_head_of_texts(pretrained: Pretrained, config: Config, class_names: Sequence[str]) -> Pretrained:
  """The checkpoint with a head of the data's classes by its text tower; raises as `read_initial`."""
  names = config.objective.class_names(tuple(class_names))
  if not names:
    raise UserError(
      f"config.init.head is 'text', and the head's outputs have no names ({config.objective.title}); set it to "
      "'constant'."
    )
  return formats.with_texts(str(config.init.checkpoint), pretrained, names, config.init.prompts)


def _with_head_of(
  pretrained: Pretrained, config: Config, architecture: Architecture, class_names: Sequence[str]
) -> Pretrained:
  """The checkpoint with its head for the data's classes, where it is kept and of classes; raises as `read_initial`."""
  names = config.objective.class_names(tuple(class_names))
  if not names or not pretrained.architecture.num_classes or begins_anew('head/kernel', config.init):
    return pretrained
  return kept_head.matched(
    pretrained,
    names,
    architecture.num_classes,
    what=f'The head of {config.init.checkpoint}',
    remedy='leave config.init.reinitialise out, so that the head begins anew, or set --config.init.classes=number '
    'where these are the same classes under other names',
    by=config.init.classes,
    complete=False,
  )


def _without(state: TrainState, paths: Collection[str]) -> TrainState:
  """The state without the variables of these paths, the others by their paths, and without the EMA."""

  def rest(tree: dict[str, Any]) -> dict[str, Any]:
    return {path: leaf for path, leaf in pytrees.flatten(tree).items() if path not in paths}

  return state._replace(params=rest(state.params), model_state=rest(state.model_state), ema={})


def _check_function(pretrained: Pretrained, model: ModelConfig) -> None:
  """Raises UserError where the checkpoint was computed with other options than the run will be."""
  name = model.differing_function(pretrained.architecture.model)
  if name is not None:
    theirs, ours = getattr(pretrained.architecture.model, name, None), getattr(model, name)
    raise UserError(
      f'The checkpoint was trained with {name} {theirs!r}, and config.model.{name} is {ours!r}; set '
      f'--config.model.{name}={theirs}.'
    )


def _different_preprocessing(pretrained: Pretrained, data: DataConfig) -> list[str]:
  """A sentence where the config gives the model other pixel values than it was trained with."""
  ours, theirs = Preprocess.of_run(data, None, None), pretrained.preprocess
  if len(theirs.mean) not in (1, data.channels):
    return []  # of another number of channels, nothing can be the same
  if np.allclose(ours.mean, theirs.mean) and np.allclose(ours.std, theirs.std):
    return []
  return [
    f'The checkpoint was trained with (pixel / 255 - {theirs.mean}) / {theirs.std}; here config.data.mean is '
    f'{ours.mean} and config.data.std {ours.std}.'
  ]
