"""Our training step: the recipe of configs/ with nothing chosen by hand."""

import dataclasses
import importlib.util
import pathlib

from peers.program import Recipe


def lower(_checkout: str, variant: str, recipe: Recipe, blocks: int | None, devices):
  """Our step of a recipe in configs/, with what it leaves open chosen for the whole depth, lowered, and its mesh."""
  from vit_jax import config as c
  from vit_jax.training.run import Dataset, Run

  path = pathlib.Path(__file__).parents[2] / 'configs' / f'vit_{variant.lower().replace("/", "")}.py'
  spec = importlib.util.spec_from_file_location('recipe', path)
  assert spec and spec.loader, path
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  dataset = Dataset(recipe.images)
  config = Run(c.from_config_dict(module.get_config(recipe.config).to_dict()), dataset, devices).config
  if blocks is not None:
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, depth=blocks))
  run = Run(config, dataset, devices)
  return run.program.step.lower(run.program.state, run.program.batch, run.frozen.shapes), run.mesh
