"""Trains, resumes or evaluates a Vision Transformer.

python -m vit_jax.main --config=configs/quickstart.py --workdir=runs/quickstart
python -m vit_jax.main --config=configs/quickstart.py --workdir=runs/quickstart --mode=eval
"""

import pathlib

from absl import flags

from vit_jax import cli
from vit_jax.errors import UserError

_CONFIG = cli.define_config()
_WORKDIR = flags.DEFINE_string('workdir', None, 'Where the run lives; the same again resumes it.')
_MODE = flags.DEFINE_enum('mode', 'train', ['train', 'eval'], 'Train (or resume), or evaluate.')


def main() -> None:
  """Runs --mode of the config in the workdir."""
  from vit_jax import compilation_cache
  from vit_jax.parallel import distributed, peers
  from vit_jax.training import evaluate_checkpoint, loop

  config, place = cli.config_of(_CONFIG), cli.required(_WORKDIR)
  if '://' in place:
    raise UserError(f'--workdir={place} is a bucket; mount it (gcsfuse) and give the path there.')
  workdir = pathlib.Path(place).expanduser().absolute()
  distributed.initialize()
  compilation_cache.enable()
  try:
    with peers.Peers(distributed.heartbeat_seconds()):
      if _MODE.value == 'train':
        loop.train(config, workdir)
      else:
        evaluate_checkpoint.evaluate_newest(config, workdir)
  except OSError as error:  # of a file that is open already, such as metrics.jsonl, which is not named
    error.filename = error.filename or str(workdir)
    raise


if __name__ == '__main__':
  cli.run(main)
