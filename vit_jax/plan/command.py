"""What `vit_jax.plan` prints: a plan with what would make it fit, or a ranking of plans."""

import math
import pathlib
import sys

from vit_jax import config as config_lib
from vit_jax.config import Config
from vit_jax.data import sources
from vit_jax.data.published_sizes import PUBLISHED_SIZES
from vit_jax.foundation import files
from vit_jax.foundation.errors import UserError
from vit_jax.plan import planner, search, text
from vit_jax.plan.planner import NotCompiled, Plan
from vit_jax.plan.topology import Topology
from vit_jax.training.run import Dataset


def plan(config: Config, machine: Topology, dataset: Dataset, path: pathlib.Path | None) -> None:
  """Prints the plan, writes it to `path`, and prints, if it does not fit, what would make it fit."""
  print(
    f'Compiling a step for {machine.name} on this host; a large model takes minutes.',
    file=sys.stderr,
    flush=True,
  )
  made = planner.make_plan(config, machine, dataset)
  print(text.plan_text(made), flush=True)
  if path:
    files.write_json(path, made.as_json())
  if not made.memory.fits:
    remedy = search.remedy(config, machine, dataset)
    if remedy:
      print(f'It fits with {_options(remedy.config, config)}: {text.fit_text(remedy.plan)}.')
    else:
      print('No splitting, rematerialisation or accumulation makes it fit; take more devices.')


def ranking(config: Config, machine: Topology, dataset: Dataset, path: pathlib.Path | None) -> None:
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


def dataset(config: Config, examples: float | None) -> Dataset:
  """The training data as it is here, or as far as `examples` (of --examples) and what is published about it tell.

  Raises UserError where neither tells how many images and classes there are, or --examples is not finite.
  """
  data = config.data
  if examples and not math.isfinite(examples):
    raise UserError(f'--examples={examples} is no number of images; give one such as 1281167.')
  if not examples and not (data.mixture or data.classes or data.max_per_class):
    examples = PUBLISHED_SIZES.get((data.source, data.split))
  heads = {config.objective.head_size(classes, data) for classes in (0, 1)}
  if examples and len(heads) == 1:  # whatever classes the data has
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
