"""Plans a run on a machine that need not be here: memory, collectives, predicted time and core-days.

python -m vit_jax.plan --config=configs/vit_h14.py --topology=v3-512
python -m vit_jax.plan --config=configs/vit_h14.py --topology=v3:16x16 --config.mesh.fsdp=8 --json=plan.json
python -m vit_jax.plan --config=configs/vit_l16.py --topology=v5e:4x4 --search

It compiles the trainer's own step with the compiler that the TPU host would use.
"""

import math
import os
import pathlib
import sys

from absl import flags

from vit_jax import cli, files
from vit_jax import config as config_lib
from vit_jax.config import Config
from vit_jax.data import sources
from vit_jax.data.published_sizes import PUBLISHED_SIZES
from vit_jax.errors import UserError
from vit_jax.plan import planner, search, text, topology
from vit_jax.plan.planner import NotCompiled, Plan
from vit_jax.plan.topology import Topology
from vit_jax.training.run import Dataset

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
  machine = topology.describe(_TOPOLOGY.value)
  dataset = _dataset(config)
  if _SEARCH.value:
    _search(config, machine, dataset, path)
  else:
    _plan(config, machine, dataset, path)


def _plan(config: Config, machine: Topology, dataset: Dataset, path: pathlib.Path | None) -> None:
  """Prints the plan, writes it to `path`, and prints, if it does not fit, what would make it fit."""
  print(
    f'Compiling a step for {machine.name} on this host; a large model takes minutes.',
    file=sys.stderr,
    flush=True,
  )
  plan = planner.make_plan(config, machine, dataset)
  print(text.plan_text(plan), flush=True)
  if path:
    files.write_json(path, plan.as_json())
  if not plan.memory.fits:
    remedy = search.remedy(config, machine, dataset)
    if remedy:
      print(f'It fits with {_options(remedy.config, config)}: {text.fit_text(remedy.plan)}.')
    else:
      print('No splitting, rematerialisation or accumulation makes it fit; take more devices.')


def _search(config: Config, machine: Topology, dataset: Dataset, path: pathlib.Path | None) -> None:
  """Prints a line for each plan as it is made, then the ranking and the best plan with its options.

  After each plan, `path` has those so far, the best first.
  """
  made: list[Plan] = []

  def report(number: int, most: int, plan: Plan | NotCompiled) -> None:
    if isinstance(plan, NotCompiled):
      print(f'plan {number} of {most}: passed over. {plan}', file=sys.stderr, flush=True)
      return
    print(f'plan {number} of {most}: {text.one_line(plan)}', file=sys.stderr, flush=True)
    made.append(plan)
    if path:
      files.write_json(path, [other.as_json() for other in sorted(made, key=planner.ranking_key)])

  found = search.search(config, machine, dataset, report)
  plans = [candidate.plan for candidate in found]
  print(text.ranking_text(plans), end='\n\n')
  print(text.plan_text(plans[0]))
  best, by_itself = found[0].config, search.chosen(config, machine, dataset)
  print('Options:', 'none, the config chooses these' if best == by_itself else _options(best, config))


def _dataset(config: Config) -> Dataset:
  """The training data as it is here, or as far as the flags and what is published about it tell.

  Raises:
    UserError: neither tells how many images and classes there are, or --examples is not finite.
  """
  data = config.data
  examples = _EXAMPLES.value
  if examples and not math.isfinite(examples):
    raise UserError(f'--examples={examples} is no number of images; give one such as 1281167.')
  if not examples and not (data.mixture or data.classes or data.max_per_class):
    examples = PUBLISHED_SIZES.get((data.source, data.split))
  if examples and config.objective.head_size(0, data):
    return Dataset(int(examples))
  try:
    source = sources.open_training(data, config.seed)
  except UserError as error:
    raise UserError(
      f'{str(error).rstrip(".")}; to plan without the data, give --examples and --config.data.num_classes.'
    ) from None
  return Dataset(int(examples or len(source)), tuple(source.class_names))


def _options(changed: Config, config: Config) -> str:
  """The options of the command line that turn `config` into `changed`."""
  before, after = config_lib.flatten(config), config_lib.flatten(changed)
  return ' '.join(f'--config.{name}={value}' for name, value in after.items() if value != before[name])


def _json_path() -> pathlib.Path | None:
  """Where --json writes to.

  Raises:
    UserError: no file can be written there; told before the minutes that a search takes.
  """
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
