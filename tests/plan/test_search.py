"""What a search tries, and in which order; a rule for memory and time takes the compiler's place."""

import dataclasses
import json
import re

import jax
import pytest
from test_plan_text import PLAN, SPEED

from vit_jax import config as c
from vit_jax.foundation.errors import UserError
from vit_jax.plan import command, search, topology
from vit_jax.plan.planner import Memory, NotCompiled, Plan
from vit_jax.plan.topology import Topology
from vit_jax.training.run import Dataset

CONFIG = c.Config(
  batch_size=64, model=c.ViTConfig(variant='Ti/16', remat='none'), mesh=c.MeshConfig(fsdp=1), accumulation=1
)
DATASET = Dataset(1000, num_classes=10)
STATE, ACTIVATIONS = 64.0, {'none': 64.0, 'dots': 32.0, 'block': 8.0}
SECONDS = {'none': 3.0, 'dots': 3.5, 'block': 4.0}


@pytest.fixture
def machine() -> Topology:
  return Topology('cpu:8', tuple(jax.devices()))


class Rule:
  """Takes the place of `make_plan`.

  Attributes:
    available: memory of a device.
    refused: values of fsdp whose programs it refuses.
    planned: data, fsdp, tensor, remat, accumulation and unroll of each config, in the order of the calls.
  """

  def __init__(self) -> None:
    self.available = 0
    self.planned: list[tuple] = []
    self.refused: tuple[int, ...] = ()

  def __call__(self, config: c.Config, topology: Topology, dataset: Dataset) -> Plan:
    mesh, remat = config.mesh, config.model.remat
    self.planned.append((mesh.data, mesh.fsdp, mesh.tensor, remat, config.accumulation, config.model.unroll))
    # Both axes split the state; the batch is not split over `tensor`, so a device has more images with it.
    if mesh.fsdp in self.refused:
      raise NotCompiled(f'No program with fsdp {mesh.fsdp}.')
    total = STATE / (mesh.fsdp * mesh.tensor) + ACTIVATIONS[remat] * mesh.tensor / config.accumulation
    seconds = SECONDS[remat] + 0.01 * mesh.fsdp + 0.1 * mesh.tensor + 0.6 * config.accumulation
    seconds += 0.01 * bool(config.model.unroll)
    fits = total <= self.available
    speed = dataclasses.replace(SPEED, step_seconds=seconds) if fits else None
    return dataclasses.replace(PLAN, memory=Memory(1, 1, 0, 1, None, int(total), self.available), speed=speed)


@pytest.fixture
def compiler(monkeypatch) -> Rule:
  rule = Rule()
  monkeypatch.setattr(search, 'make_plan', rule)
  return rule


def searched(config: c.Config, machine: Topology) -> tuple[list[search.Candidate], list[tuple]]:
  """What a search finds, and what it reports."""
  reports: list[tuple] = []
  return search.search(config, machine, DATASET, lambda *report: reports.append(report)), reports


def test_search_finds_and_reports_the_fastest_plan_that_fits(compiler, machine):
  compiler.available = 45  # 'none' with the state in eight parts takes 72
  found, reports = searched(CONFIG, machine)
  best, plan = found[0]
  assert best.mesh.fsdp == 8 and best.model.remat == 'dots' and best.accumulation == 1
  assert plan.memory.fits and plan.memory.total == 40
  assert len(compiler.planned) == len(set(compiler.planned)) == len(found)  # none twice
  keys = [search.ranking_key(plan) for _, plan in found]
  assert keys == sorted(keys)
  assert {'block', 'dots', 'none'} == {remat for *_, remat, _, _ in compiler.planned}
  assert {True, False} == {unroll for *_, unroll in compiler.planned}
  # 16 parts do not divide 64 images on 8 devices.
  assert {1, 2, 4, 8} == {parts for *_, parts, _ in compiler.planned}
  assert [number for number, _, _ in reports] == list(range(1, len(found) + 1))
  mosts = [most for _, most, _ in reports]
  # Meshes, of which the config's own is one; remat, the loop, accumulation, remat.
  assert mosts[0] == 3 + 2 + 1 + 4 + 2
  assert mosts == sorted(mosts, reverse=True) and mosts[-1] >= len(found)
  assert {id(plan) for *_, plan in reports} == {id(plan) for _, plan in found}


def test_search_plans_first_the_config_as_it_is_with_what_it_leaves_open_chosen(compiler, machine):
  compiler.available = 1000
  mesh = c.MeshConfig(data=4, tensor=2)
  searched(dataclasses.replace(CONFIG, mesh=mesh, model=c.ViTConfig(variant='Ti/16')), machine)
  assert compiler.planned[0] == (4, 1, 2, 'none', 1, False)


def test_search_accumulates_only_where_memory_is_short(compiler, machine):
  compiler.available = 1000
  unrolled = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, unroll=True))
  found, _ = searched(unrolled, machine)
  assert found[0].config.model.remat == 'none'
  assert {parts for *_, parts, _ in compiler.planned} == {1}
  assert {unroll for *_, unroll in compiler.planned} == {True}  # as the config has it


def test_search_reports_and_passes_over_what_the_compiler_refuses(compiler, machine):
  compiler.available, compiler.refused = 1000, (8, 4)
  found, reports = searched(CONFIG, machine)
  assert {config.mesh.fsdp for config, _ in found} == {1}
  refused = [str(plan) for *_, plan in reports if isinstance(plan, NotCompiled)]
  assert refused == ['No program with fsdp 8.', 'No program with fsdp 4.']
  assert [number for number, *_ in reports] == list(range(1, len(found) + 3))


def test_command_says_each_plan_and_keeps_those_so_far(compiler, machine, tmp_path, capsys, monkeypatch):
  compiler.available, path = 45, tmp_path / 'plan.json'
  command.ranking(CONFIG, machine, DATASET, path)
  said, content = capsys.readouterr(), json.loads(path.read_text())
  assert re.findall(r'^plan (\d+) of ', said.err, re.MULTILINE) == [str(n + 1) for n in range(len(content))]
  seconds = [each['speed']['step_seconds'] for each in content if each['fits']]
  assert seconds[0] == min(seconds) and content[0]['fits']
  assert re.search(r'^Options: .*--config\.mesh\.fsdp=8', said.out, re.MULTILINE)

  def killed(*arguments):
    if len(compiler.planned) == len(content) + 2:
      raise KeyboardInterrupt
    return compiler(*arguments)

  monkeypatch.setattr(search, 'make_plan', killed)
  with pytest.raises(KeyboardInterrupt):
    command.ranking(CONFIG, machine, DATASET, path)
  assert len(json.loads(path.read_text())) == 2


def test_search_ends_in_the_compilers_sentence_if_it_refuses_everything_and_in_errors_of_our_own(
  compiler, machine, monkeypatch
):
  compiler.refused = (1, 4, 8)
  with pytest.raises(NotCompiled, match='No program with fsdp 1'):
    searched(CONFIG, machine)
  monkeypatch.setattr(search, 'make_plan', lambda *arguments: 1 / 0)
  with pytest.raises(ZeroDivisionError):
    searched(CONFIG, machine)


def test_search_fails_in_a_sentence_if_the_batch_divides_over_no_mesh(compiler, machine):
  odd = dataclasses.replace(CONFIG, batch_size=3)
  with pytest.raises(UserError, match=r'No mesh of the 8 devices of cpu:8 divides config\.batch_size 3'):
    searched(odd, machine)
  assert compiler.planned == []


@pytest.mark.parametrize(
  ('replica', 'count', 'expected'),
  [(1, 8, [(8, 1, 1), (1, 8, 1), (1, 4, 2)]), (2, 8, [(4, 1, 1), (1, 4, 1), (1, 2, 2)]), (1, 1, [(1, 1, 1)])],
)
def test_meshes_split_the_state_over_more_and_more_devices(replica, count, expected):
  asked = dataclasses.replace(CONFIG, mesh=c.MeshConfig(replica=replica))
  found = [each.mesh for each in search.meshes(asked, Topology('cpu', tuple(jax.devices()[:count])))]
  assert [(mesh.data, mesh.fsdp, mesh.tensor) for mesh in found] == expected
  assert {mesh.replica for mesh in found} == {replica}


@pytest.mark.parametrize(
  ('available', 'refused', 'expected'),
  [
    (80, (), (-1, 1, 1, 'block', 1, None)),  # recomputation alone
    (80, (1,), (1, 8, 1, 'none', 1, None)),  # which the compiler refuses
    (30, (), (1, 8, 1, 'block', 1, None)),  # the state in parts too
    (12, (), (1, 8, 1, 'block', 2, None)),  # and the batch
    (9, (), (1, 8, 1, 'block', 8, None)),
  ],
)
def test_remedy_is_the_first_change_that_fits(compiler, machine, available, refused, expected):
  compiler.available, compiler.refused = available, refused
  remedy = search.remedy(CONFIG, machine, DATASET)
  assert remedy is not None and remedy.plan.memory.fits and compiler.planned[-1] == expected
  assert (remedy.config.model.remat, remedy.config.accumulation) == expected[3:5]


@pytest.mark.parametrize(
  ('tensor', 'batch', 'expected'), [(1, 64, (1, 8, 1)), (2, 64, (1, 8, 1)), (1, 4, (1, 4, 2))]
)
def test_remedies_split_the_state_by_tensor_only_where_the_batch_divides_by_no_other_mesh(
  machine, tensor, batch, expected
):
  asked = dataclasses.replace(CONFIG, mesh=c.MeshConfig(fsdp=1, tensor=tensor), batch_size=batch)
  _, *split = search.remedies(asked, machine)
  assert {(variant.mesh.data, variant.mesh.fsdp, variant.mesh.tensor) for variant in split} == {expected}


def test_remedy_is_none_if_nothing_helps(compiler, machine):
  compiler.available = 7
  assert search.remedy(search.with_remat(CONFIG, 'block'), machine, DATASET) is None
  assert (-1, 1, 1, 'block', 1, None) not in compiler.planned  # which is the config itself


def test_search_over_two_slices_passes_over_meshes_that_would_cross_them(compiler):
  pytest.importorskip('libtpu')
  compiler.available = 1000
  found, _ = searched(CONFIG, topology.describe('v5e:2x2*2'))
  assert {(config.mesh.data, config.mesh.fsdp, config.mesh.tensor) for config, _ in found} == {(8, 1, 1)}
