"""Our training step: the recipe of configs/ with nothing chosen by hand."""

import dataclasses

from peers.program import Recipe


def lower(_checkout: str, variant: str, recipe: Recipe, blocks: int | None, devices):
  """Our step of a recipe in configs/, with what it leaves open chosen for the whole depth, lowered, and its mesh."""
  from vit_jax import config as c
  from vit_jax.options import config_files
  from vit_jax.training.run import Dataset, Run

  values = config_files.load(f'vit_{variant.lower().replace("/", "")}:{recipe.config}')
  dataset = Dataset(recipe.images)
  config = Run(c.from_config_dict(values), dataset, devices).config
  if blocks is not None:
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, depth=blocks))
  run = Run(config, dataset, devices)
  return run.program.step.lower(run.program.state, run.program.batch, run.frozen_shapes), run.mesh
