"""Trains, resumes or evaluates a model by a config.

python -m vit_jax.main --config=quickstart
python -m vit_jax.main --config=quickstart --workdir=runs/wide --config.model.width=128
python -m vit_jax.main --workdir=runs/wide --mode=eval

The same command again goes on where the last checkpoint is. Without --workdir the run lives in runs/, in a
folder named after the config. --mode=eval takes the run's own config unless --config has overrides.
"""

import pathlib
import re
import sys
from typing import TYPE_CHECKING

from absl import flags

from vit_jax import cli
from vit_jax.errors import UserError

if TYPE_CHECKING:
  from vit_jax.config import Config

_CONFIG = cli.define_config()
_WORKDIR = flags.DEFINE_string('workdir', None, 'Where the run lives. Without: runs/<config>[-<arguments>].')
_MODE = flags.DEFINE_enum('mode', 'train', ['train', 'eval'], 'Train (or resume), or evaluate.')
_TAKEOVER = flags.DEFINE_bool(
  'takeover', False, 'Go on with the run in the workdir although its config was another one.'
)


def main() -> None:
  """Runs --mode of the config in the workdir."""
  from vit_jax import compilation_cache
  from vit_jax.checkpoint.lease import Lease
  from vit_jax.parallel import distributed, peers
  from vit_jax.training import evaluate_checkpoint, loop

  config, workdir = _config_and_workdir()
  distributed.initialize()
  compilation_cache.enable()
  try:
    with peers.Peers(distributed.heartbeat_seconds()):
      if _MODE.value == 'train':
        with Lease(workdir):
          loop.train(config, workdir, takeover=bool(_TAKEOVER.value))
      else:
        evaluate_checkpoint.evaluate_newest(config, workdir)
  except OSError as error:  # of a file that is open already, such as metrics.jsonl, which is not named
    error.filename = error.filename or str(workdir)
    raise


def _config_and_workdir() -> tuple['Config', pathlib.Path]:
  """The run's config, and its absolute workdir, which is said on the screen where it is the default."""
  place = _WORKDIR.value
  if place == '':
    raise UserError('--workdir is empty; name a folder, or leave the flag out.')
  if place is None:
    place = default_workdir(cli.config_name(_CONFIG))
    print(f'Workdir: {place}', file=sys.stderr)
  if '://' in place:
    raise UserError(
      f'--workdir={place} is a bucket: data and checkpoints are read from one, but a run is kept on a file '
      f'system; mount it (gcsfuse) and give the path there.'
    )
  workdir = pathlib.Path(place).expanduser().absolute()
  try:
    str(workdir).encode()
  except UnicodeEncodeError:
    raise UserError(
      f'--workdir={place} has bytes that are not UTF-8, in which Orbax names files; choose another.'
    ) from None
  if _MODE.value == 'eval' and not cli.has_overrides():
    from vit_jax.training.workdir import read_config

    if not _CONFIG.present or any((workdir / name).exists() for name in ('config.json', 'checkpoints')):
      return read_config(workdir), workdir
  return cli.config_of(_CONFIG), workdir


def default_workdir(config: str) -> str:
  """'configs/vit_l16.py:imagenet21k' -> 'runs/vit_l16-imagenet21k'."""
  path, _, argument = config.partition(':')
  name = pathlib.PurePath(path).stem + (f'-{argument}' if argument else '')
  return 'runs/' + re.sub(r'[^\w.+=-]+', '_', name)


if __name__ == '__main__':
  cli.run(main)
