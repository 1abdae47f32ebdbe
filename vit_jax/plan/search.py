"""Tries meshes, rematerialisation and accumulation: what makes a config fit, and what is fastest."""

import dataclasses
from collections.abc import Callable, Iterator

from vit_jax.config import Config
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.plan.planner import Sheet, Size, make_sheet, rank
from vit_jax.plan.topology import Topology

Plan = tuple[Config, Sheet]


def search(config: Config, topology: Topology, size: Size, tell: Callable[[Sheet], None]) -> list[Plan]:
  """Plans many variants of a config, each from the best so far: first the mesh, then rematerialisation, then
  accumulation. That is some fifteen programs rather than the several hundred of all combinations.

  Args:
    config: the run; its mesh, remat and accumulation are what is varied.
    topology: the devices.
    size: of the data set.
    tell: called with each sheet as it is made.

  Returns:
    All that were compiled, the best first.
  """
  plans: list[Plan] = []

  def best_of(candidates: Iterator[Config]) -> Config:
    for candidate in candidates:
      if divides(candidate, topology) and all(candidate != config for config, _ in plans):
        plans.append((candidate, make_sheet(candidate, topology, size)))
        tell(plans[-1][1])
    plans.sort(key=lambda plan: rank(plan[1]))
    return plans[0][0]

  # At the smallest memory first, so that meshes can be compared at all.
  best = best_of(meshes(with_remat(config, 'block'), topology))
  best = best_of(with_remat(best, remat) for remat in ('dots', 'none'))
  best = best_of(accumulations(best))
  best_of(with_remat(best, remat) for remat in ('dots', 'none'))
  return plans


def remedy(config: Config, topology: Topology, size: Size) -> Plan | None:
  """The first of ever more costly changes with which a config that does not fit does fit; None: none does."""
  for candidate in remedies(config, topology):
    if divides(candidate, topology):
      sheet = make_sheet(candidate, topology, size)
      if sheet.memory.fits:
        return candidate, sheet
  return None


def remedies(config: Config, topology: Topology) -> Iterator[Config]:
  """Rematerialisation, then the state split over devices, then the batch in parts, then all of them."""
  block = with_remat(config, 'block')
  yield block
  split = list(meshes(block, topology))[-1:]
  for candidate in split:
    yield with_remat(candidate, config.model.remat)
    yield candidate
    yield from accumulations(candidate)


def meshes(config: Config, topology: Topology) -> Iterator[Config]:
  """Ever more of the devices hold parts of the state; then the same with two parts of every layer."""
  devices = len(topology.devices) // config.mesh.replica
  for tensor in (1, 2):
    for fsdp in sorted({1, 8, 32, 128, devices // tensor} - {0}):
      if devices % (fsdp * tensor) == 0 and (tensor == 1 or fsdp > 1):
        mesh = dataclasses.replace(config.mesh, data=devices // (fsdp * tensor), fsdp=fsdp, tensor=tensor)
        yield dataclasses.replace(config, mesh=mesh)


def accumulations(config: Config) -> Iterator[Config]:
  for parts in (2, 4, 8, 16):
    yield dataclasses.replace(config, accumulation=parts)


def with_remat(config: Config, remat: str) -> Config:
  return dataclasses.replace(config, model=dataclasses.replace(config.model, remat=remat))


def divides(config: Config, topology: Topology) -> bool:
  """Does the batch divide over the parts of the mesh and of the accumulation?"""
  mesh = mesh_lib.make_mesh(config.mesh, topology.devices)
  return config.batch_size % (config.accumulation * mesh_lib.batch_shards(mesh)) == 0
