"""What a search tries, and in which order; the compiler is replaced by a rule of memory and time."""

import dataclasses

import jax
import pytest

from vit_jax import config as c
from vit_jax.plan import search
from vit_jax.plan.planner import Memory, Sheet, Size, Speed
from vit_jax.plan.topology import Topology

CONFIG = c.Config(batch_size=64, model=c.ViTConfig(variant='Ti/16'))
SIZE = Size(1000, 10)
STATE, ACTIVATIONS = 64.0, {'none': 64.0, 'dots': 32.0, 'block': 8.0}
SECONDS = {'none': 3.0, 'dots': 3.5, 'block': 4.0}


@pytest.fixture
def machine():
  return Topology('cpu:8', tuple(jax.devices()))


@pytest.fixture
def compiled(monkeypatch):
  """The settings of each program that would be compiled; tests set the memory that there is."""
  log = []

  def make_sheet(config: c.Config, topology: Topology, size: Size) -> Sheet:
    mesh, remat = config.mesh, config.model.remat
    log.append((mesh.data, mesh.fsdp, mesh.tensor, remat, config.accumulation))
    total = STATE / (mesh.fsdp * mesh.tensor) + ACTIVATIONS[remat] / config.accumulation
    seconds = SECONDS[remat] + 0.01 * mesh.fsdp + 0.1 * mesh.tensor + 0.5 * config.accumulation
    fits = total <= make_sheet.available
    return Sheet(
      model='', topology={}, mesh={}, settings={}, steps=1, parameters=1, collectives={}, model_flops=1.0,
      compiler_flops=None, compile_seconds=0.0,
      memory=Memory(1, 1, 0, 1, None, int(total), make_sheet.available),
      speed=Speed(seconds, seconds, 0, 1, 0.1, 1, 1, 0) if fits else None,
    )  # fmt: skip

  monkeypatch.setattr(search, 'make_sheet', make_sheet)
  return log, make_sheet


def test_a_search_finds_the_fastest_that_fits(compiled, machine):
  log, make_sheet = compiled
  make_sheet.available = 45  # 'none' with the state in eight parts takes 72
  told = []
  plans = search.search(CONFIG, machine, SIZE, told.append)
  best, sheet = plans[0]
  assert best.mesh.fsdp == 8 and best.model.remat == 'dots' and best.accumulation == 1
  assert sheet.memory.fits and sheet.memory.total == 40
  assert len(log) == len(set(log)) == len(told) == len(plans)  # none twice
  ranks = [search.rank(sheet) for _, sheet in plans]
  assert ranks == sorted(ranks)
  assert {'block', 'dots', 'none'} == {remat for *_, remat, _ in log}
  assert {1, 2, 4, 8} == {parts for *_, parts in log}  # 64 images on 8 devices: 16 parts do not divide


def test_meshes_of_eight(machine):
  tried = [(m.mesh.data, m.mesh.fsdp, m.mesh.tensor) for m in search.meshes(CONFIG, machine)]
  assert list(dict.fromkeys(tried)) == [(8, 1, 1), (1, 8, 1), (1, 4, 2)]
  sliced = dataclasses.replace(CONFIG, mesh=c.MeshConfig(replica=2))
  tried = [(m.mesh.replica, m.mesh.data, m.mesh.fsdp) for m in search.meshes(sliced, machine)]
  assert set(tried) == {(2, 4, 1), (2, 1, 4), (2, 1, 2)}


@pytest.mark.parametrize(
  ('available', 'expected'),
  [
    (80, (-1, 1, 1, 'block', 1)),  # recomputation alone
    (30, (1, 4, 2, 'block', 1)),  # the state in parts too
    (12, (1, 4, 2, 'block', 2)),  # and the batch
    (9, (1, 4, 2, 'block', 8)),
  ],
)
def test_the_first_remedy_that_helps(compiled, machine, available, expected):
  log, make_sheet = compiled
  make_sheet.available = available
  config, sheet = search.remedy(CONFIG, machine, SIZE)
  assert sheet.memory.fits and log[-1] == expected
  assert (config.model.remat, config.accumulation) == expected[3:]


def test_no_remedy(compiled, machine):
  _, make_sheet = compiled
  make_sheet.available = 7
  assert search.remedy(CONFIG, machine, SIZE) is None


def test_one_device_has_one_mesh():
  one = Topology('v5e:1x1', tuple(jax.devices()[:1]))
  (mesh,) = (config.mesh for config in search.meshes(CONFIG, one))
  assert (mesh.data, mesh.fsdp, mesh.tensor) == (1, 1, 1)


def test_a_batch_that_does_not_divide_is_not_tried(machine):
  assert search.divides(CONFIG, machine)
  assert not search.divides(dataclasses.replace(CONFIG, batch_size=12), machine)
  assert not search.divides(dataclasses.replace(CONFIG, accumulation=16), machine)
