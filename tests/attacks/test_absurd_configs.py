"""Absurd values of a config: a sentence before anything is compiled or allocated."""

import dataclasses

import pytest

from vit_jax import config as c
from vit_jax import options
from vit_jax.foundation.errors import UserError
from vit_jax.training import memory
from vit_jax.training.run import Dataset, Run

CONFIG = c.Config(
  total='4 steps',
  batch_size=16,
  model=c.ViTConfig(variant='custom', patch=4, width=16, mlp_dim=16, depth=1, heads=2),
  data=c.DataConfig(image_size=(8, 8)),
  evaluators={'test': c.ClassificationEvaluatorConfig()},
)


def changed(changes: dict[str, object]) -> c.Config:
  """CONFIG with other values by dotted name, checked as a command line's."""
  values = options.as_dict(CONFIG)
  for name, value in changes.items():
    *sections, last = name.split('.')
    section = values
    for part in sections:
      section = section[part]
    section[last] = value
  return c.from_config_dict(values)


@pytest.mark.parametrize(
  'changes',
  [
    {'total': '1e30 steps'},
    {'total': '1e300 epochs'},
    {'checkpoint.keep': 10**18},
    {'batch_size': 10**12},
    {'batch_size': 10**7},
    {'accumulation': 10**9},
    {'model.width': 10**12},
    {'model.depth': 10**9},
    {'data.image_size': (100_000, 100_000)},
    {'data.progressive_resizing': (('1 steps', 10**6),)},
    {'data.threads': 10**9},
    {'evaluators.test.resize': 10**9},
    {'evaluators.test.batch_size': 10**7},
  ],
  ids=str,
)
def test_absurd_value_is_refused_by_its_name(changes):
  (name,) = changes
  with pytest.raises(UserError, match=name.replace('.', r'\.')):
    changed(changes)


def test_padding_that_a_crop_may_lie_in_is_refused():
  with pytest.raises(UserError, match=r'config\.data\.padding is'):
    changed({'data.crop': 'random', 'data.padding': 8})
  config = changed({'data.crop': 'random', 'data.padding': 7, 'data.progressive_resizing': (('1 steps', 4),)})
  run = Run(config, Dataset(100, num_classes=10))
  assert [run.resizing.data(step).padding for step in (0, 1)] == [3, 7]


@pytest.mark.parametrize('total', ['1e18 epochs', '3e9 steps', '0.0001 steps'])
def test_run_of_no_step_or_more_than_can_be_counted_is_refused(total):
  with pytest.raises(UserError, match=r'config\.total is .* from 1 to 2,147,483,647 steps'):
    Run(dataclasses.replace(CONFIG, total=total), Dataset(100, num_classes=10))


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'model.width': 10**6}, r'optimizer state take .* GiB on each device'),
    ({'batch_size': 2**20, 'data.image_size': (1024, 1024)}, r'config\.batch_size is 1,048,576'),
    ({'evaluators.test.batch_size': 2**20, 'data.image_size': (1024, 1024)}, r'test\.batch_size is'),
    ({'data.prefetch': 1024, 'batch_size': 2**20, 'data.image_size': (64, 64)}, 'prefetch 1024'),
  ],
)
def test_what_cannot_fit_into_memory_is_refused_before_it_is_made(changes, said):
  memory.check(Run(CONFIG, Dataset(100, num_classes=10)))  # this fits
  run = Run(changed(changes), Dataset(100, num_classes=10))
  with pytest.raises(UserError, match=said):
    memory.check(run)


def test_large_value_that_somebody_may_mean_is_not_refused():
  changed({'batch_size': 2**20})
  changed({'evaluators.test.resize': 10**4, 'data.image_size': (64, 64)})
  changed({'data.resize': 10**4, 'data.crop': 'random'})
