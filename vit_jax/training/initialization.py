"""The parameters of step 0 from a checkpoint (config.init), straight to where the run has them."""

from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config as config_lib
from vit_jax import pytrees
from vit_jax.config import Config
from vit_jax.data.config import DataConfig
from vit_jax.errors import UserError
from vit_jax.pretrained import formats
from vit_jax.pretrained.adapt import adapt
from vit_jax.pretrained.base import Portable, Preprocess
from vit_jax.training.state import TrainState
from vit_jax.training.step import Program


def load(config: Config, program: Program, say: Callable[[str], None]) -> dict[str, np.ndarray]:
  """Reads config.init.checkpoint and makes it fit; says what became of each tensor.

  Args:
    config: the run.
    program: its state's shapes are what is filled.
    say: prints a text.

  Returns:
    path -> array of the parameters that do not begin anew; {} without a checkpoint.

  Raises:
    UserError: the checkpoint is not there, is damaged, or does not fit the config.
  """
  init, model, data = config.init, config.model, config.data
  if init.checkpoint is None:
    return {}
  path = formats.located(init.checkpoint)
  told = {'gelu': model.gelu, 'norm_epsilon': model.norm_epsilon} if formats.is_released(path) else {}
  portable = formats.read(path, image_size=data.image_size, **told)
  _check_options(portable, model)
  arrays, report = adapt(portable, pytrees.flatten(program.state.params), data.image_size, init)
  notes = [*portable.notes, *_prepared_otherwise(portable, data)]
  say('\n'.join([f'Parameters from {init.checkpoint}', str(report), *notes]))
  return arrays


def start(program: Program, seed: int, arrays: dict[str, np.ndarray]) -> TrainState:
  """The state of step 0, on the mesh.

  Args:
    program: the run's.
    seed: of what begins anew.
    arrays: of `load`; it is empty afterwards.
  """
  if not arrays:
    return program.init(np.uint32(seed))
  shardings = jax.tree.map(lambda leaf: leaf.sharding, program.state)
  # Random numbers for what is loaded would take several times its memory; XLA omits what is not returned.
  begin = jax.jit(
    lambda seed: _without(program.init(seed), arrays), out_shardings=_without(shardings, arrays)
  )
  state = begin(np.uint32(seed))
  params, wanted = dict(state.params), pytrees.flatten(program.state.params)
  for path in list(arrays):
    leaf, array = wanted[path], np.asarray(arrays.pop(path), wanted[path].dtype)
    params[path] = jax.make_array_from_callback(leaf.shape, leaf.sharding, array.__getitem__)
  nested = pytrees.unflatten(params)
  copy = jax.jit(lambda leaves: jax.tree.map(jnp.copy, leaves))
  return state._replace(params=nested, average=copy(nested) if program.state.average else {})


def _without(state: TrainState, paths: Collection[str]) -> TrainState:
  """The state less what is loaded, its parameters by their paths."""
  params = {path: leaf for path, leaf in pytrees.flatten(state.params).items() if path not in paths}
  return state._replace(params=params, average={})


def _check_options(portable: Portable, model: config_lib.Model) -> None:
  """Raises UserError where the checkpoint was computed with other options than the run will be."""
  for name in ('gelu', 'norm_epsilon'):
    theirs, ours = getattr(portable.model, name), getattr(model, name)
    if theirs != ours:
      raise UserError(
        f'The checkpoint was trained with {name} {theirs!r}, and config.model.{name} is {ours!r}; set '
        f'--config.model.{name}={theirs}.'
      )
  theirs, ours = portable.model.position, model.position
  if theirs != ours and 'rotary' in (theirs, ours):  # which no parameter tells
    raise UserError(
      f'The checkpoint was trained with position {theirs!r}, and config.model.position is {ours!r}; set '
      f'--config.model.position={theirs}.'
    )


def _prepared_otherwise(portable: Portable, data: DataConfig) -> list[str]:
  """A sentence where the run gives the model other pixel values than it was trained with."""
  low, high = data.value_range
  ours = Preprocess.from_range(data.image_size, low, high)
  theirs = portable.preprocess
  if np.allclose(ours.mean, theirs.mean) and np.allclose(ours.std, theirs.std):
    return []
  return [
    f'The checkpoint was trained with (pixel / 255 - {theirs.mean}) / {theirs.std}; here '
    f'config.data.value_range is {low:g} … {high:g}.'
  ]
