"""What a search tries, and in which order; a rule for memory and time takes the compiler's place."""

import dataclasses

import jax
import pytest

from vit_jax import config as c
from vit_jax.foundation.errors import UserError
from vit_jax.plan import search
from vit_jax.plan.planner import Memory, NotCompiled, Plan, Speed
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
    return Plan(
      model='', topology={}, mesh={}, settings={}, steps=1, parameters=1, collectives={}, model_flops=1.0,
      compiler_flops=None, compile_seconds=0.0,
      memory=Memory(1, 1, 0, 1, None, int(total), self.available),
      speed=Speed(seconds, seconds, 0, 1, 0.1, 1, 1, 0) if fits else None,
    )  # fmt: skip


@pytest.fixture
def compiler(monkeypatch) -> Rule:
  rule = Rule()
  monkeypatch.setattr(search, 'make_plan', rule)
  return rule


def ignore(number: int, most: int, plan: Plan) -> None:
  """A report that nobody reads."""


def test_search_finds_the_fastest_plan_that_fits(compiler, machine):
  compiler.available = 45  # 'none' with the state in eight parts takes 72
  found = search.search(CONFIG, machine, DATASET, ignore)
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


def test_search_plans_first_the_config_as_it_is_with_what_it_leaves_open_chosen(compiler, machine):
  compiler.available = 1000
  config = dataclasses.replace(
    CONFIG, mesh=c.MeshConfig(data=4, tensor=2), model=c.ViTConfig(variant='Ti/16')
  )
  search.search(config, machine, DATASET, ignore)
  assert compiler.planned[0] == (4, 1, 2, 'none', 1, False)


def test_search_accumulates_only_where_memory_is_short(compiler, machine):
  compiler.available = 1000
  found = search.search(CONFIG, machine, DATASET, ignore)
  assert found[0].config.model.remat == 'none'
  assert {parts for *_, parts, _ in compiler.planned} == {1}


def test_search_leaves_blocks_as_the_config_has_them(compiler, machine):
  compiler.available = 1000
  unrolled = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, unroll=True))
  search.search(unrolled, machine, DATASET, ignore)
  assert {unroll for *_, unroll in compiler.planned} == {True}


def test_search_reports_each_plan_with_its_number_and_the_most_there_may_be(compiler, machine):
  compiler.available = 45
  reports = []
  found = search.search(CONFIG, machine, DATASET, lambda *report: reports.append(report))
  assert [number for number, _, _ in reports] == list(range(1, len(found) + 1))
  mosts = [most for _, most, _ in reports]
  # Meshes, of which the config's own is one; remat, the loop, accumulation, remat.
  assert mosts[0] == 3 + 2 + 1 + 4 + 2
  assert mosts == sorted(mosts, reverse=True) and mosts[-1] >= len(found)
  assert {id(plan) for *_, plan in reports} == {id(plan) for _, plan in found}


def test_search_reports_and_passes_over_what_the_compiler_refuses(compiler, machine):
  compiler.available, compiler.refused = 1000, (8, 4)
  reports = []
  found = search.search(CONFIG, machine, DATASET, lambda *report: reports.append(report))
  assert {config.mesh.fsdp for config, _ in found} == {1}
  refused = [str(plan) for *_, plan in reports if isinstance(plan, NotCompiled)]
  assert refused == ['No program with fsdp 8.', 'No program with fsdp 4.']
  assert [number for number, *_ in reports] == list(range(1, len(found) + 3))
  assert len(compiler.planned) == len(set(compiler.planned))


def test_search_ends_in_the_compilers_sentence_if_it_refuses_everything(compiler, machine):
  compiler.refused = (1, 4, 8)
  with pytest.raises(NotCompiled, match='No program with fsdp 1'):
    search.search(CONFIG, machine, DATASET, ignore)


def test_errors_of_our_own_end_a_search(compiler, machine, monkeypatch):
  monkeypatch.setattr(search, 'make_plan', lambda *arguments: 1 / 0)
  with pytest.raises(ZeroDivisionError):
    search.search(CONFIG, machine, DATASET, ignore)


def test_remedy_passes_over_what_the_compiler_refuses(compiler, machine):
  compiler.available, compiler.refused = 30, (1,)
  remedy = search.remedy(CONFIG, machine, DATASET)
  assert remedy is not None and remedy.config.mesh.fsdp == 8


def test_search_fails_in_a_sentence_if_the_batch_divides_over_no_mesh(compiler, machine):
  odd = dataclasses.replace(CONFIG, batch_size=3)
  with pytest.raises(UserError, match=r'No mesh of the 8 devices of cpu:8 divides config\.batch_size 3'):
    search.search(odd, machine, DATASET, ignore)
  assert compiler.planned == []


def test_meshes_split_the_state_over_more_and_more_devices(machine):
  tried = [(m.mesh.data, m.mesh.fsdp, m.mesh.tensor) for m in search.meshes(CONFIG, machine)]
  assert tried == [(8, 1, 1), (1, 8, 1), (1, 4, 2)]


def test_meshes_keep_the_replicas(machine):
  sliced = dataclasses.replace(CONFIG, mesh=c.MeshConfig(replica=2))
  tried = [(m.mesh.replica, m.mesh.data, m.mesh.fsdp) for m in search.meshes(sliced, machine)]
  assert tried == [(2, 4, 1), (2, 1, 4), (2, 1, 2)]


@pytest.mark.parametrize(
  ('available', 'expected'),
  [
    (80, (-1, 1, 1, 'block', 1, None)),  # recomputation alone
    (30, (1, 8, 1, 'block', 1, None)),  # the state in parts too
    (12, (1, 8, 1, 'block', 2, None)),  # and the batch
    (9, (1, 8, 1, 'block', 8, None)),
  ],
)
def test_remedy_is_the_first_change_that_fits(compiler, machine, available, expected):
  compiler.available = available
  remedy = search.remedy(CONFIG, machine, DATASET)
  assert remedy is not None and remedy.plan.memory.fits and compiler.planned[-1] == expected
  assert (remedy.config.model.remat, remedy.config.accumulation) == expected[3:5]


@pytest.mark.parametrize('tensor', [1, 2])
def test_remedies_split_the_state_by_fsdp_alone_where_the_batch_divides(machine, tensor):
  asked = dataclasses.replace(CONFIG, mesh=c.MeshConfig(fsdp=1, tensor=tensor))
  _, *split = search.remedies(asked, machine)
  assert {(variant.mesh.data, variant.mesh.fsdp, variant.mesh.tensor) for variant in split} == {(1, 8, 1)}


def test_remedies_split_the_state_by_tensor_where_the_batch_divides_by_no_other_mesh(machine):
  _, *split = search.remedies(dataclasses.replace(CONFIG, batch_size=4), machine)
  assert {(variant.mesh.data, variant.mesh.fsdp, variant.mesh.tensor) for variant in split} == {(1, 4, 2)}


def test_remedy_is_none_if_nothing_helps(compiler, machine):
  compiler.available = 7
  assert search.remedy(CONFIG, machine, DATASET) is None


def test_remedy_does_not_plan_the_config_again_that_does_not_fit(compiler, machine):
  compiler.available = 7
  search.remedy(search.with_remat(CONFIG, 'block'), machine, DATASET)
  assert (-1, 1, 1, 'block', 1, None) not in compiler.planned


def test_one_device_has_one_mesh():
  one = Topology('v5e:1x1', tuple(jax.devices()[:1]))
  (mesh,) = (config.mesh for config in search.meshes(CONFIG, one))
  assert (mesh.data, mesh.fsdp, mesh.tensor) == (1, 1, 1)


def test_batch_that_does_not_divide_is_not_possible(machine):
  assert search.is_possible(CONFIG, machine)
  assert not search.is_possible(dataclasses.replace(CONFIG, batch_size=12), machine)
  assert not search.is_possible(dataclasses.replace(CONFIG, accumulation=16), machine)


def test_search_over_two_slices_passes_over_meshes_that_would_cross_them(compiler):
  pytest.importorskip('libtpu')
  from vit_jax.plan import topology

  compiler.available = 1000
  slices = topology.describe('v5e:2x2*2')
  found = search.search(CONFIG, slices, DATASET, ignore)
  assert {(config.mesh.data, config.mesh.fsdp, config.mesh.tensor) for config, _ in found} == {(8, 1, 1)}
