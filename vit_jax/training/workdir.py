"""Starting a run in a workdir, or going on where it stopped."""

import json
import pathlib

import jax

from vit_jax import config as config_lib
from vit_jax.checkpoint.manager import Manager
from vit_jax.config import Config
from vit_jax.errors import UserError
from vit_jax.training.state import TrainState
from vit_jax.training.step import Program


def claim_workdir(config: Config, workdir: pathlib.Path) -> None:
  """Writes `config.json`, or checks that the run there has the same config."""
  path = workdir / 'config.json'
  if path.exists():
    try:
      there = config_lib.flatten(config_lib.from_config_dict(json.loads(path.read_text())))
    except ValueError as error:
      raise UserError(f'{path} is damaged ({error}); remove it and give the config of the run.') from error
    here = config_lib.flatten(config)
    differing = [
      f'{key} ({there.get(key)!r} there, {here.get(key)!r} here)'
      for key in sorted(there.keys() | here.keys())
      if there.get(key) != here.get(key) and not config_lib.MAY_CHANGE.match(key)
    ]
    if differing:
      raise UserError(
        f'{workdir} holds a run with another config: {"; ".join(differing)}; choose another --workdir or '
        'give the config it was started with.'
      )
  if jax.process_index() == 0:
    (workdir / 'report').mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix('.json.partial')
    partial.write_text(json.dumps(config_lib.as_json(config), indent=2) + '\n')
    partial.replace(path)


def restore(manager: Manager, program: Program, class_names: tuple[str, ...]) -> TrainState | None:
  """The newest sound checkpoint's state; None where there is none."""
  newest = manager.restore_newest({})
  if newest is None:
    return None
  meta = newest[2]
  if meta['class_names'] != list(class_names):
    changed = sorted(set(meta['class_names']) ^ set(class_names)) or ['their order']
    raise UserError(
      'The classes of the training data are not those the run began with '
      f'(changed: {", ".join(changed[:5])}); '
      'restore the data, or begin a new --workdir.'
    )
  _, items, _ = manager.restore_newest(program.state.items())
  return TrainState.from_items(items)
