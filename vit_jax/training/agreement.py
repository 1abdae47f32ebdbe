"""Refuses a run whose processes have other options or see other data: each would train its own run, or wait forever."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vit_jax.config import Config, as_json
from vit_jax.evaluation.base import Evaluator, examples_of
from vit_jax.foundation import class_matching
from vit_jax.parallel.agreement import Fact, check_facts
from vit_jax.training.run import Dataset, Run

# Options that may differ, wherever they are: places, which have their own names on each host, and speed.
_MAY_DIFFER = frozenset(
  ('source', 'mixture', 'real_labels', 'threads', 'prefetch', 'cache', 'checkpoint', 'teachers')
)
_SECTIONS_THAT_MAY_DIFFER = frozenset(('tracker', 'profile', 'step_limit'))


def check(run: Run, evaluators: Mapping[str, Evaluator]) -> None:
  """Compares options and data of all processes, which all call this; raises UserError in all where one differs."""
  check_facts(facts(run.config, run.dataset, examples_of(evaluators)))


def facts(config: Config, dataset: Dataset, evaluated: Mapping[str, int]) -> list[Fact]:
  """What the processes of a run must have alike, as many facts for any config; `evaluated`: evaluator -> its images."""
  names = list(dataset.class_names)
  data = f'{dataset.examples:,} images of {dataset.classes} classes ({class_matching.listed(names)})'
  splits = ', '.join(f'{name} {count:,}' for name, count in evaluated.items())
  weights = [weight for _, weight in config.data.mixture]  # whose places have their own names
  values = as_json(config)
  sections = [each.name for each in dataclasses.fields(Config) if each.name not in _SECTIONS_THAT_MAY_DIFFER]
  return [
    *(Fact(f'config.{name}', str(_comparable(values[name])), _comparable(values[name])) for name in sections),
    Fact('the training data', data, [dataset.examples, names]),
    Fact('the weights of config.data.mixture', str(weights), weights),
    Fact('the data of the evaluators', splits or 'none', dict(evaluated)),
  ]


def _comparable(value: Any) -> Any:
  """Options without those that may differ."""
  if not isinstance(value, dict):
    return value
  return {name: _comparable(item) for name, item in value.items() if name not in _MAY_DIFFER}
