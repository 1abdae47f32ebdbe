"""A run's workdir: its config, its checkpoints, and going on where it stopped."""

import json
import pathlib

import jax

from vit_jax import config as config_lib
from vit_jax import files
from vit_jax.checkpoint.manager import Manager
from vit_jax.config import Config
from vit_jax.errors import UserError
from vit_jax.training.run import Run
from vit_jax.training.state import TrainState


def claim(config: Config, workdir: pathlib.Path) -> None:
  """Writes `config.json`, or checks that the run there has the same config.

  Raises:
    UserError: another config, or a damaged file.
  """
  path = workdir / 'config.json'
  if path.exists():
    differing = config_lib.differing_options(read_config(workdir), config)
    if differing:
      there, here = config_lib.flatten(read_config(workdir)), config_lib.flatten(config)
      texts = [f'{name} ({there.get(name)!r} there, {here.get(name)!r} here)' for name in differing]
      raise UserError(
        f'{workdir} holds a run with another config: {"; ".join(texts)}; choose another --workdir or '
        'give the config it was started with.'
      )
  if jax.process_index() == 0:
    (workdir / 'report').mkdir(parents=True, exist_ok=True)
    files.write_json(path, config_lib.as_json(config))


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
  newest = manager.restore_newest(run.program.state.items())
  if newest is None:
    return None
  _, items, meta = newest
  names = list(run.dataset.class_names)
  if meta['class_names'] != names:
    changed = sorted(set(meta['class_names']) ^ set(names)) or ['their order']
    raise UserError(
      'The classes of the training data are not those the run began with '
      f'(changed: {", ".join(changed[:5])}); '
      'restore the data, or begin a new --workdir.'
    )
  return TrainState.from_items(items)


def checkpoint_meta(run: Run) -> dict[str, object]:
  """What a checkpoint says of its run beside the arrays."""
  return {
    'config': config_lib.as_json(run.config),
    'class_names': list(run.dataset.class_names),
    'examples': run.dataset.examples,
  }
