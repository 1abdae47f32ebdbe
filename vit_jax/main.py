"""Trains, resumes or evaluates a model by a config.

python -m vit_jax.main --config=quickstart
python -m vit_jax.main --config=quickstart --workdir=runs/wide --config.model.width=128
python -m vit_jax.main --workdir=runs/wide --mode=eval
python -m vit_jax.main --config=quickstart --workdir=gs://bucket/quickstart

The same command again goes on where the last checkpoint is. Without --workdir the run lives in runs/, in a
folder named after the config. --mode=eval takes the run's own config unless --config has overrides.
"""

import contextlib
import pathlib
import re
import sys
import tempfile
from typing import TYPE_CHECKING

from absl import flags

from vit_jax import buckets, cli
from vit_jax.errors import UserError

if TYPE_CHECKING:
  from vit_jax.config import Config
  from vit_jax.training.local_workdir import LocalWorkdir

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
  from vit_jax import compilation_cache
  from vit_jax.parallel import distributed, peers

  evaluates, place = _MODE.value == 'eval', _place()
  with contextlib.ExitStack() as stack:
    local = None
    if evaluates and buckets.is_bucket(place):
      from vit_jax.training.local_workdir import LocalWorkdir

      local = stack.enter_context(
        LocalWorkdir(place, pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())))
      )
    config = _config(pathlib.Path(place) if local is None else local.folder)
    distributed.initialize()
    compilation_cache.enable()
    stack.enter_context(peers.Peers(distributed.heartbeat_seconds()))
    try:
      if evaluates:
        _evaluate(config, place, local)
      elif buckets.is_bucket(place):
        _train_in_bucket(config, place)
      else:
        _train(config, pathlib.Path(place))
    except OSError as error:  # of a file that is open already, such as metrics.jsonl, which is not named
      error.filename = error.filename or place
      raise


def _train(config: 'Config', workdir: pathlib.Path) -> None:
  from vit_jax.checkpoint.lease import Lease
  from vit_jax.training import loop

  with Lease(workdir):
    loop.train(config, workdir, takeover=bool(_TAKEOVER.value))


def _train_in_bucket(config: 'Config', address: str) -> None:
  import jax

  from vit_jax import cache
  from vit_jax.checkpoint.bucket_lease import BucketLease
  from vit_jax.training import loop
  from vit_jax.training.local_workdir import LocalWorkdir

  place = cache.folder_of('runs', address) / str(jax.process_index())
  with BucketLease(address) as lease, LocalWorkdir(address, place, lease) as local:
    loop.train(config, local.folder, takeover=bool(_TAKEOVER.value), local=local)


def _evaluate(config: 'Config', place: str, local: 'LocalWorkdir | None') -> None:
  from vit_jax.training import evaluate_checkpoint

  if local is None:
    evaluate_checkpoint.evaluate_newest(config, pathlib.Path(place))
  else:
    evaluate_checkpoint.evaluate_newest(config, local.folder, local.checkpoints)


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


def _config(workdir: pathlib.Path) -> 'Config':
  """The run's config; to evaluate, that of the run in the workdir unless the command line has one."""
  if _MODE.value == 'eval' and not cli.has_overrides():
    from vit_jax.training.workdir import read_config

    if not _CONFIG.present or any((workdir / name).exists() for name in ('config.json', 'checkpoints')):
      return read_config(workdir)
  return cli.config_of(_CONFIG)


def default_workdir(config: str) -> str:
  """'configs/vit_l16.py:imagenet21k' -> 'runs/vit_l16-imagenet21k'."""
  path, _, argument = config.partition(':')
  name = pathlib.PurePath(path).stem + (f'-{argument}' if argument else '')
  return 'runs/' + re.sub(r'[^\w.+=-]+', '_', name)


if __name__ == '__main__':
  cli.run(main)
