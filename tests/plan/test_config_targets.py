"""Every config compiles for the machine that its header names as its target, and fits there.

A few do so in every run of the tests; all of them with VIT_JAX_NIGHTLY=1 (about 10 minutes on a quiet core):

  VIT_JAX_NIGHTLY=1 python -m pytest tests/planning/test_config_targets.py -n 0 -rP
"""

import os
import pathlib
import re
import sys

import jax
import pytest
from absl import flags
from ml_collections import config_flags
from test_configs import ARGUMENTS, CONFIGS, PAPER

from vit_jax import cli, recipes
from vit_jax import config as c
from vit_jax.plan import text, topology
from vit_jax.plan.planner import Size, make_sheet

# A topology, and flags that a run there is started with.
TARGET = re.compile(r'^Target: (\S+)((?: --config\.\S+)*)$', re.MULTILINE)
CASES = [
  (path.stem, argument)
  for path in sorted(CONFIGS.rglob('*.py'))
  for argument in ARGUMENTS.get(path.stem, PAPER) or ['']
]
QUICK = [('quickstart', ''), ('folder', '/path/to/images'), ('vit_b32', 'jft')]


def target_of(path: pathlib.Path) -> tuple[str, list[str]]:
  """The topology and the flags in a config's header."""
  (found,) = TARGET.findall(path.read_text().split('"""')[1])
  return found[0], found[1].split()


@pytest.fixture
def config_of(monkeypatch):
  """Reads a config as the command line has it: path, argument, flags -> config."""

  def read(path: pathlib.Path, argument: str, options: list[str]) -> c.Config:
    # ml_collections looks for the options in sys.argv, whatever is parsed.
    monkeypatch.setattr(sys, 'argv', ['plan', f'--config={path}:{argument}'.removesuffix(':'), *options])
    values = flags.FlagValues()
    holder = config_flags.DEFINE_config_file('config', flag_values=values)
    values(sys.argv)
    return cli.config_of(holder)

  return read


def machine(name: str) -> topology.Topology:
  """CPU devices are those of the tests, of which there are eight."""
  if name.startswith('cpu:'):
    return topology.Topology(name, tuple(jax.devices()[: int(name[4:])]))
  pytest.importorskip('libtpu')
  return topology.describe(name)


@pytest.mark.parametrize('path', sorted(CONFIGS.rglob('*.py')), ids=lambda path: path.stem)
def test_every_config_has_a_target(path):
  name, _ = target_of(path)
  assert re.fullmatch(r'cpu:\d|v\d[ep]?-\d+', name)


@pytest.mark.parametrize(('name', 'argument'), CASES, ids=[f'{n}:{a}' for n, a in CASES])
def test_target(name, argument, config_of):
  if (name, argument) not in QUICK and not os.environ.get('VIT_JAX_NIGHTLY'):
    pytest.skip('compiled nightly: VIT_JAX_NIGHTLY=1')
  path = next(CONFIGS.rglob(f'{name}.py'))
  place, options = target_of(path)
  config = config_of(path, argument, options)
  data = config.data
  size = Size(recipes.EXAMPLES.get((data.source, data.split), 50_000), data.num_classes or 1000)
  sheet = make_sheet(config, machine(place), size)
  print(f'{name}:{argument} {place}', text.ranking_text([sheet]).splitlines()[1], sep='  ')
  assert sheet.memory.fits, text.fit_text(sheet)
  assert (sheet.speed is not None) == (not place.startswith('cpu'))
