"""Trains, resumes or evaluates a model by a config.

vit_jax train --config=quickstart
vit_jax train --config=quickstart --workdir=runs/wide --config.model.width=128
vit_jax train --workdir=runs/wide --mode=eval
vit_jax train --config=quickstart --workdir=gs://bucket/quickstart

The same command again goes on where the last checkpoint is. Without --workdir the run lives in runs/, in a
folder named after the config. --mode=eval takes the run's own config unless --config has overrides.
"""

import contextlib
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from absl import flags

from vit_jax import cli
from vit_jax.foundation import buckets
from vit_jax.foundation.errors import UserError

if TYPE_CHECKING:
  from vit_jax.config import Config

_CONFIG = cli.define_config()
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Where the run lives: a folder, gs://… or s3://…. Without: runs/<config>[-<arguments>].'
)
_MODE = flags.DEFINE_enum('mode', 'train', ['train', 'eval'], 'Train (or resume), or evaluate.')
_TAKEOVER = flags.DEFINE_bool(
  'takeover', False, 'Go on with the run in the workdir although its config was another one.'
)


def main() -> None:
  """Runs --mode of the config in the workdir."""
  place = _place()
  if _MODE.value == 'eval':
    _evaluate(place)
  else:
    _train(place)


def _train(place: str) -> None:
  config = cli.config_of(_CONFIG)
  with _processes(place):
    from vit_jax.training import loop

    loop.train(config, place, takeover=bool(_TAKEOVER.value))


def _evaluate(place: str) -> None:
  from vit_jax.training.workdir import open_workdir

  with open_workdir(place, read_only=True) as workdir:
    config = _evaluated_config(workdir.folder)
    with _processes(place):
      from vit_jax.training import evaluate_checkpoint

      evaluate_checkpoint.evaluate_newest(config, workdir)


@contextlib.contextmanager
def _processes(place: str) -> Iterator[None]:
  """This process as one of a run's, whose errors name the workdir."""
  from vit_jax.foundation import compilation_cache
  from vit_jax.parallel import distributed, peers

  distributed.initialize()
  compilation_cache.enable()
  with peers.Peers(distributed.heartbeat_seconds()):
    try:
      yield
    except OSError as error:  # of a file that is open already, such as metrics.jsonl, which is not named
      error.filename = error.filename or place
      raise


def _place() -> str:
  """The run's workdir: an absolute path, or an address. The default one is said on the screen."""
  place = _WORKDIR.value
  if place == '':
    raise UserError('--workdir is empty; name a folder, or leave the flag out.')
  if place is None:
    place = default_workdir(cli.config_name(_CONFIG))
    print(f'Workdir: {place}', file=sys.stderr)
  if buckets.is_bucket(place):
    buckets.check(place)
    return place.rstrip('/')
  if '://' in place:
    raise UserError(
      f'--workdir={place} is neither a path nor in a bucket (gs://…, s3://…); choose such a one.'
    )
  workdir = str(pathlib.Path(place).expanduser().absolute())
  try:
    workdir.encode()
  except UnicodeEncodeError:
    raise UserError(
      f'--workdir={place} has bytes that are not UTF-8, in which Orbax names files; choose another.'
    ) from None
  return workdir


def _evaluated_config(folder: pathlib.Path) -> 'Config':
  """The config of the run in a folder, unless the command line has another one."""
  from vit_jax.training.resume import read_config

  begun = any((folder / name).exists() for name in ('config.json', 'checkpoints'))
  if not cli.has_overrides() and (begun or not _CONFIG.present):
    return read_config(folder)
  return cli.config_of(_CONFIG)


def default_workdir(config: str) -> str:
  """'configs/vit_l16.py:imagenet21k' -> 'runs/vit_l16-imagenet21k'."""
  path, _, argument = config.partition(':')
  name = pathlib.PurePath(path).stem + (f'-{argument}' if argument else '')
  return 'runs/' + re.sub(r'[^\w.+=-]+', '_', name)


if __name__ == '__main__':
  cli.run(main)
