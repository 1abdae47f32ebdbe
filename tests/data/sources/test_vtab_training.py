"""Every task of VTAB trains with the splits, crops and labels of its recipe."""

import dataclasses

import jax
import numpy as np
import pytest

from vit_jax import config as c
from vit_jax import recipes
from vit_jax.data.pipeline import EvalPipeline, TrainPipeline
from vit_jax.data.sources import open_source, open_training, vtab
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.training.step import make_train_step


def small(task: str) -> c.Config:
  """The recipe with a tiny model of 16 pixels, and a head that all tasks fit."""
  config = recipes.vtab('b16', task)
  return dataclasses.replace(
    config,
    total='20 steps',
    batch_size=8,
    model=c.Model(variant='custom', patch=8, width=16, mlp_dim=16, depth=1, heads=2),
    data=dataclasses.replace(
      config.data, image_size=(16, 16), resize=config.data.resize and 19, num_classes=397
    ),
    schedule=c.ScheduleConfig(learning_rate=1.0),
  )


@pytest.mark.slow
def test_every_task_trains_twenty_steps(prepared):
  """With the splits, crops and labels of its recipe; one compiled step serves all."""
  mesh = mesh_lib.make_mesh(c.MeshConfig(), jax.devices()[:1])
  program = make_train_step(small('dmlab'), mesh, num_classes=397, examples=1000)
  for name in vtab.TASKS:
    config = small(name)
    options = {'batch_size': 8, 'sharding': mesh_lib.batch_sharding(mesh)}
    state, losses = program.init(np.uint32(0)), []
    with TrainPipeline(open_training(config.data, 0), config.data, seed=0, **options).stream(
      0, 20
    ) as batches:
      for batch in batches:
        state, metrics = program.step(state, batch)
        losses.append(float(metrics['train/loss']))
    assert int(state.step) == len(losses) == 20, name
    assert losses[0] == pytest.approx(np.log(397), rel=0.2) and np.mean(losses[-5:]) < losses[0] - 0.01, name
    test = open_source(config.data.source, 'test', data=config.data)
    batch = next(iter(EvalPipeline(test, config.data, crop='resize', resize=None, **options)))
    said = program.evaluate(state.params, batch)['examples']
    assert int(said['mask'].sum()) == min(8, len(test)) and np.isfinite(said['loss']).all(), name
