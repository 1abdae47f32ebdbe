"""Compiles a run for a machine that is not here: memory, collectives, predicted time and core-days.

python -m vit_jax.plan --config=configs/vit_h14.py --topology=v3-512
python -m vit_jax.plan --config=configs/vit_h14.py --topology=v3:16x16 --config.mesh.fsdp=8 --json=plan.json
python -m vit_jax.plan --config=configs/vit_l16.py --topology=v5e:4x4 --search

What is compiled is the step that the trainer runs, by the compiler that the TPU host would use.
"""

import json
import pathlib
import sys

from absl import flags
from ml_collections import config_flags

from vit_jax import cli, recipes
from vit_jax import config as config_lib
from vit_jax.config import Config
from vit_jax.errors import UserError

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'A file of configs/, with options as --config.section.option=value.'
)
_TOPOLOGY = flags.DEFINE_string(
  'topology', 'local', "The machine: 'v3-512' or 'v3:16x16', '*2' behind it for two slices, 'cpu:8', 'local'."
)
_SEARCH = flags.DEFINE_bool('search', False, 'Try meshes, rematerialisation and accumulation; rank them.')
_EXAMPLES = flags.DEFINE_float('examples', None, 'Training images an epoch, of a data set that is not here.')
_JSON = flags.DEFINE_string('json', None, 'A file for the plan, or with --search for all plans, as JSON.')


def main() -> None:
  config = cli.config_of(_CONFIG)
  # Imported here: a wrong flag is told before JAX has started.
  from vit_jax.plan import search, text, topology
  from vit_jax.plan.planner import make_sheet

  machine = topology.describe(_TOPOLOGY.value)
  size = _size(config)
  if _SEARCH.value:
    show = lambda sheet: print(text.ranking_text([sheet]).splitlines()[1], file=sys.stderr, flush=True)
    plans = search.search(config, machine, size, show)
    sheets = [sheet for _, sheet in plans]
    print(text.ranking_text(sheets), end='\n\n')
    print(text.sheet_text(sheets[0]))
    print('Options:', ' '.join(_options(plans[0][0], config)))
    _write([sheet.as_json() for sheet in sheets])
    return
  sheet = make_sheet(config, machine, size)
  print(text.sheet_text(sheet))
  if not sheet.memory.fits:
    found = search.remedy(config, machine, size)
    if found:
      print('It fits with', ' '.join(_options(found[0], config)) + f': {text.fit_text(found[1])}.')
    else:
      print('No splitting, rematerialisation or accumulation makes it fit; take more devices.')
  _write(sheet.as_json())


def _size(config: Config):
  """Of the data set if it is here, else what is known of it."""
  from vit_jax.data import sources
  from vit_jax.plan.planner import Size

  known = recipes.EXAMPLES.get((config.data.source, config.data.split))
  classes = config.head_size(0)
  if (_EXAMPLES.value or known) and classes:
    return Size(int(_EXAMPLES.value or known), classes)
  try:
    source = sources.open_source(config.data.source, config.data.split, data=config.data)
  except UserError as error:
    raise UserError(
      f'{str(error).rstrip(".")}; to plan without the data, give --examples and --config.data.num_classes.'
    ) from None
  return Size(int(_EXAMPLES.value or len(source)), config.head_size(len(source.class_names)))


def _options(changed: Config, config: Config) -> list[str]:
  """The command line's options that make one config the other."""
  before = config_lib.flatten(config)
  after = config_lib.flatten(changed)
  return [f'--config.{name}={value}' for name, value in after.items() if value != before[name]]


def _write(content: object) -> None:
  if _JSON.value:
    pathlib.Path(_JSON.value).expanduser().write_text(json.dumps(content, indent=2) + '\n')


if __name__ == '__main__':
  flags.mark_flags_as_required(['config'])
  cli.run(main)
