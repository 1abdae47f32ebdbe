"""Searches meshes, rematerialisation and accumulation: for the fastest plan, or for one that fits at all."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from vit_jax.config import Config
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Remat
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.plan.planner import NotCompiled, Plan, make_plan, ranking_key
from vit_jax.plan.topology import Topology
from vit_jax.training.run import Dataset, Run

_REMATS: tuple[Remat, ...] = ('none', 'dots', 'block')
_ACCUMULATIONS = (1, 2, 4, 8, 16)


class Candidate(NamedTuple):
  """A variant of a config, and its plan."""

  config: Config
  plan: Plan


# Called with a plan's number from 1, the most plans that there may be, and the plan, or why the compiler refuses it.
Report = Callable[[int, int, Plan | NotCompiled], None]


def search(config: Config, topology: Topology, dataset: Dataset, report: Report) -> list[Candidate]:
  """Plans the config as it is, and variants of it in stages, each from the best so far: the mesh,
  rematerialisation, a loop or unrolled blocks and, where memory is short, accumulation.

  That is some ten programs instead of the several hundred of all combinations. `report` is told of each plan as soon as
  it is made. All come back with nothing left open, the best first. Raises UserError where the batch divides over no
  mesh of these devices, NotCompiled where the compiler refuses all programs of the first stage.
  """
  found: list[Candidate] = []
  refused: list[tuple[Config, NotCompiled]] = []

  def best_after(variants: Iterable[Config], later: int) -> Config:
    """Plans the variants that are new; `later` is the most plans of the stages that follow."""
    resolved = [chosen(variant, topology, dataset) for variant in variants if is_possible(variant, topology)]
    known = [config for config, _ in (*found, *refused)]
    new = [variant for i, variant in enumerate(resolved) if variant not in [*known, *resolved[:i]]]
    most = len(known) + len(new) + later
    for number, variant in enumerate(new, start=len(known) + 1):
      try:
        plan = make_plan(variant, topology, dataset)
      except NotCompiled as error:
        refused.append((variant, error))
        report(number, most, error)
        continue
      found.append(Candidate(variant, plan))
      report(number, most, plan)
    if not found and refused:
      raise refused[0][1]
    if not found:
      raise UserError(
        f'No mesh of the {len(topology.devices)} devices of {topology.name} divides config.batch_size '
        f'{config.batch_size} and config.accumulation {config.batch_parts}; change one of them.'
      )
    found.sort(key=lambda candidate: ranking_key(candidate.plan))
    return found[0].config

  remats, loops, parts = len(_REMATS) - 1, 1, len(_ACCUMULATIONS) - 1  # the most that are new in a stage
  best = best_after([config, *meshes(with_remat(config, None), topology)], remats + loops + parts + remats)
  best = best_after(other_remats(best), loops + parts + remats)
  best = best_after(with_and_without_loop(best, config), parts + remats)
  if best.model.remat != 'none' or best.batch_parts > 1 or not found[0].plan.memory.fits:
    best = best_after(accumulations(with_remat(best, None)), remats)
    best_after(other_remats(best), 0)
  return found


def remedy(config: Config, topology: Topology, dataset: Dataset) -> Candidate | None:
  """The cheapest change with which a config that does not fit does fit; None if none of `remedies` helps."""
  for variant in remedies(config, topology):
    if variant != config and is_possible(variant, topology):
      try:
        plan = make_plan(variant, topology, dataset)
      except NotCompiled:
        continue
      if plan.memory.fits:
        return Candidate(variant, plan)
  return None


def remedies(config: Config, topology: Topology) -> Iterator[Config]:
  """Changes that save memory, ever more costly: rematerialisation; the state split over as many devices as
  possible, without and with rematerialisation; accumulation on top of both.
  """
  block = with_remat(config, 'block')
  yield block
  possible = [variant for variant in meshes(block, topology) if is_possible(variant, topology)]
  if possible:
    # `tensor` splits no more of the state than `fsdp` does, and leaves each device more images.
    split = max(possible, key=lambda variant: (variant.mesh.tensor <= config.mesh.tensor, variant.mesh.fsdp))
    yield with_remat(split, config.model.remat)
    yield split
    yield from accumulations(split)


def meshes(config: Config, topology: Topology) -> Iterator[Config]:
  """The config with the state split over more and more devices; then some of them with `tensor` 2."""
  devices = len(topology.devices) // max(config.mesh.replica, 1)
  for tensor, splits in ((1, {1, 8, 16, 32, 128}), (2, {8})):
    for fsdp in sorted((splits | {devices // tensor}) - {0}):
      if devices % (fsdp * tensor) == 0 and (tensor == 1 or fsdp > 1):
        mesh = dataclasses.replace(config.mesh, data=devices // (fsdp * tensor), fsdp=fsdp, tensor=tensor)
        yield dataclasses.replace(config, mesh=mesh)


def other_remats(config: Config) -> Iterator[Config]:
  """The config with each kind of rematerialisation."""
  for remat in _REMATS:
    yield with_remat(config, remat)


def with_and_without_loop(config: Config, asked: Config) -> Iterator[Config]:
  """The config with its blocks as a loop, and unrolled, if the config that was asked for leaves that open."""
  for unrolled in (False, True):
    model = asked.model.with_unrolled_blocks(unrolled)
    yield with_remat(dataclasses.replace(config, model=model), config.model.remat)


def accumulations(config: Config) -> Iterator[Config]:
  """The config with the batch computed in other numbers of parts, the fewest first."""
  for parts in _ACCUMULATIONS:
    if parts != config.batch_parts:
      yield dataclasses.replace(config, accumulation=parts)


def with_remat(config: Config, remat: Remat | None) -> Config:
  """The config with another `model.remat`."""
  return dataclasses.replace(config, model=dataclasses.replace(config.model, remat=remat))


def is_possible(config: Config, topology: Topology) -> bool:
  """Whether the mesh is one of these devices, and the batch divides over it and the accumulation."""
  try:
    mesh = mesh_lib.make_mesh(config.mesh, topology.devices)
  except UserError:  # such as fsdp across slices
    return False
  return config.batch_size % (config.batch_parts * mesh_lib.batch_shards(mesh)) == 0


def chosen(config: Config, topology: Topology, dataset: Dataset) -> Config:
  """The config with nothing left open, as a run on these devices would have it."""
  run = Run(config, dataset, topology.devices)
  return dataclasses.replace(run.config, mesh=dataclasses.replace(config.mesh, **run.mesh.shape))
