"""Plans a run on a machine that need not be here: memory, collectives, predicted time and core-days.

vit_jax plan --config=configs/vit_h14.py --topology=v3-512
vit_jax plan --config=configs/vit_h14.py --topology=v3:16x16 --config.mesh.fsdp=8 --json=plan.json
vit_jax plan --config=configs/vit_l16.py --topology=v5e:4x4 --search

It compiles the trainer's own step with the compiler that the TPU host would use.
"""

import os
import pathlib

from absl import flags

from vit_jax import cli
from vit_jax.foundation.errors import UserError

_CONFIG = cli.define_config()
_TOPOLOGY = flags.DEFINE_string(
  'topology',
  None,
  "The machine: 'v3-512' or 'v3:16x16', '*2' behind it for two slices, 'cpu:8', or 'local'. By default the "
  'accelerators of this host.',
)
_SEARCH = flags.DEFINE_bool(
  'search',
  False,
  'Try the config as it is, other meshes, rematerialisation, a loop or unrolled blocks; rank them.',
)
_EXAMPLES = flags.DEFINE_float(
  'examples', None, 'Training images an epoch, if the data is not here.', lower_bound=1
)
_JSON = flags.DEFINE_string('json', None, 'A file for the plan, or with --search for all plans, as JSON.')


def main() -> None:
  """Prints a plan, or with --search a ranking of plans."""
  config = cli.config_of(_CONFIG)
  path = _json_path()
  # Imported here: the start takes seconds, which --help need not.
  from vit_jax.plan import command, topology

  machine = topology.describe(_TOPOLOGY.value)
  dataset = command.dataset(config, _EXAMPLES.value)
  (command.ranking if _SEARCH.value else command.plan)(config, machine, dataset, path)


def _json_path() -> pathlib.Path | None:
  """Where --json writes to; a UserError, before the minutes that a search takes, where no file can be written there."""
  if not _JSON.value:
    return None
  path = pathlib.Path(_JSON.value).expanduser()
  if not path.parent.is_dir():
    raise UserError(f'--json={_JSON.value}: there is no folder {path.parent}; make it first.')
  if path.is_dir():
    raise UserError(f'--json={_JSON.value} is a folder; name a file, such as {path / "plan.json"}.')
  if not os.access(path.parent, os.W_OK):
    raise UserError(f'--json={_JSON.value}: the folder {path.parent} cannot be written; name another one.')
  return path


if __name__ == '__main__':
  cli.run(main)
