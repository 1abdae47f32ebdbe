"""Every config compiles for the machine that its header names as its target, and fits there.

A few are compiled in every run of the tests, all of them with VIT_JAX_NIGHTLY=1 (10 minutes on a quiet core):

  VIT_JAX_NIGHTLY=1 python -m pytest tests/plan/test_config_targets.py -n 0 -rP
"""

import dataclasses
import pathlib
import re
import sys

import jax
import pytest
import teachers
from absl import flags
from config_files import FILES
from ml_collections import config_flags
from test_configs import ARGUMENTS, PAPER

from vit_jax import config as c
from vit_jax.data.published_sizes import PUBLISHED_SIZES
from vit_jax.plan import text, topology
from vit_jax.plan.planner import make_plan
from vit_jax.training.run import Dataset

# A topology, and the flags of a run there.
TARGET = re.compile(r'^Target: (\S+)((?: --config\.\S+)*)$', re.MULTILINE)
CASES = [(path.stem, argument) for path in FILES for argument in ARGUMENTS.get(path.stem, PAPER) or ['']]


def target_of(path: pathlib.Path) -> tuple[str, list[str]]:
  """The topology and the flags that a config's header names."""
  (found,) = TARGET.findall(path.read_text().split('"""')[1])
  return found[0], found[1].split()


@pytest.fixture
def config_of(monkeypatch):
  """A function that reads a config as a command does: (path, argument, flags) -> config."""

  def read(path: pathlib.Path, argument: str, options: list[str]) -> c.Config:
    # ml_collections looks for the options in sys.argv, whatever is parsed.
    monkeypatch.setattr(sys, 'argv', ['plan', f'--config={path}:{argument}'.removesuffix(':'), *options])
    values = flags.FlagValues()
    holder = config_flags.DEFINE_config_file('config', flag_values=values)
    values(sys.argv)
    return c.from_config_dict(holder.value)

  return read


def machine(name: str) -> topology.Topology:
  """The topology of a name; CPU devices are those of the tests, of which there are eight."""
  if name.startswith('cpu:'):
    return topology.Topology(name, tuple(jax.devices()[: int(name[4:])]))
  pytest.importorskip('libtpu')
  return topology.describe(name)


def test_every_header_names_a_target():
  for path in FILES:
    assert re.fullmatch(r'cpu:\d|v\d[ep]?-\d+', target_of(path)[0]), path


@pytest.mark.nightly(but='^(quickstart|folder):')
@pytest.mark.slow
@pytest.mark.parametrize(('name', 'argument'), CASES, ids=map(':'.join, CASES))
def test_config_compiles_for_its_target_and_fits(name, argument, config_of, tmp_path, monkeypatch):
  path = next(path for path in FILES if path.stem == name)
  place, options = target_of(path)
  config = config_of(path, argument, options)
  # A loop, which needs as much memory or more, and compiles in a third of the time.
  config = dataclasses.replace(config, model=config.model.with_unrolled_blocks(False))
  data = config.data
  monkeypatch.chdir(tmp_path)
  for teacher in config.objective.frozen_models():
    size = {'image_size': data.image_size, 'channels': data.channels, 'num_classes': data.num_classes or 1000}
    teachers.write(tmp_path / teacher.checkpoint, c.ResNetConfig('R50x1'), **size)
  examples = PUBLISHED_SIZES.get((data.source, data.split), 50_000)
  plan = make_plan(config, machine(place), Dataset(examples, num_classes=data.num_classes or 1000))
  print(f'{name}:{argument} {place}', text.one_line(plan), sep='  ')
  assert plan.memory.fits, text.fit_text(plan)
  assert (plan.speed is not None) == (not place.startswith('cpu'))
