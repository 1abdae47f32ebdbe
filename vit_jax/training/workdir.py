"""A run's workdir: its config, its checkpoints, and going on where it stopped."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax

from vit_jax import config as config_lib
from vit_jax import files
from vit_jax.checkpoint.manager import Manager
from vit_jax.config import Config
from vit_jax.errors import UserError
from vit_jax.training.run import Run
from vit_jax.training.state import TrainState


def claim(config: Config, workdir: pathlib.Path, *, begun: bool, takeover: bool) -> str:
  """Writes `config.json`, or checks that the run there has the same config.

  A workdir belongs to a run from its first checkpoint on; before that, another config takes it over.

  Args:
    config: the run.
    workdir: its folder.
    begun: whether there is a checkpoint.
    takeover: go on with a run of another config.

  Returns:
    A sentence for the person where another config is taken over, else ''.

  Raises:
    UserError: a run of another config has begun there, or config.json is damaged.
  """
  path, note = workdir / 'config.json', ''
  if path.exists():
    note = _takeover_note(config, workdir, begun=begun, takeover=takeover)
  if jax.process_index() == 0:
    (workdir / 'report').mkdir(parents=True, exist_ok=True)
    files.write_json(path, config_lib.as_json(config))
  return note


def _takeover_note(config: Config, workdir: pathlib.Path, *, begun: bool, takeover: bool) -> str:
  """As `claim`, of a workdir that has a config.json."""
  try:
    there = read_config(workdir)
  except UserError:
    if begun:
      raise
    return f'{workdir / "config.json"} is damaged, and the run there has no checkpoint yet: it begins anew.'
  differing = config_lib.differing_options(there, config)
  if not differing:
    return ''
  old, new = config_lib.flatten(there), config_lib.flatten(config)
  texts = '; '.join(f'{name} ({old.get(name)!r} there, {new.get(name)!r} here)' for name in differing)
  if not begun:
    return f'{workdir} held a run without a checkpoint and with another config, which is replaced: {texts}.'
  if takeover:
    return f'Taking over the run in {workdir}, whose config was another one: {texts}.'
  raise UserError(
    f'{workdir} holds a run with another config: {texts}; choose another --workdir, give the config it was '
    f'started with, or go on with this one by --takeover.'
  )


def read_config(workdir: pathlib.Path) -> Config:
  """The config of the run in a workdir, perhaps of an older version.

  Raises:
    UserError: there is none, or it is damaged.
  """
  path = workdir / 'config.json'
  try:
    return config_lib.from_config_dict(json.loads(path.read_text()))
  except FileNotFoundError:
    raise UserError(f'There is no run in {workdir} (it has no config.json); check --workdir.') from None
  except (ValueError, OSError) as error:
    raise UserError(f'{path} is damaged ({error}); remove it and give the config of the run.') from error


def restore(manager: Manager, run: Run) -> TrainState | None:
  """The state of the newest sound checkpoint; None where there is none.

  Raises:
    UserError: the classes of the training data have changed since.
  """

  def wanted(meta: dict[str, Any]) -> dict[str, Any]:
    _check_classes(meta['class_names'], run)
    return run.program.state.items()

  newest = manager.restore_newest(wanted)
  return None if newest is None else TrainState.from_items(newest[1])


def _check_classes(names_there: Sequence[str], run: Run) -> None:
  """Raises UserError where the training data has other classes than when the run began."""
  names = list(run.dataset.class_names)
  if names_there != names:
    changed = sorted(set(names_there) ^ set(names)) or ['their order']
    raise UserError(
      'The classes of the training data are not those the run began with '
      f'(changed: {", ".join(changed[:5])}); restore the data, or begin a new --workdir.'
    )


def checkpoint_meta(run: Run) -> dict[str, object]:
  """What a checkpoint says of its run beside the arrays."""
  return {
    'config': config_lib.as_json(run.config),
    'class_names': list(run.dataset.class_names),
    'examples': run.dataset.examples,
  }
