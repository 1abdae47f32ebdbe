"""Every task of VTAB trains with the splits, crops and labels of its recipe."""

import dataclasses

import jax
import numpy as np
import pytest

from vit_jax import config as c
from vit_jax import recipes
from vit_jax.data.pipeline import EvalPipeline, TrainPipeline
from vit_jax.data.sources import open_source, open_training, vtab
from vit_jax.evaluation.classification import make_eval_step
from vit_jax.parallel.mesh import batch_sharding
from vit_jax.training.run import Dataset, Run


def small(task: str) -> c.Config:
  """The recipe with a tiny model of 16 pixels, and a head that fits all tasks."""
  config = recipes.vtab('b16', task)
  return dataclasses.replace(
    config,
    total='20 steps',
    batch_size=8,
    model=c.ViTConfig(variant='custom', patch=8, width=16, mlp_dim=16, depth=1, heads=2),
    data=dataclasses.replace(
      config.data, image_size=(16, 16), resize=config.data.resize and 19, num_classes=397
    ),
    schedule=c.ScheduleConfig(learning_rate=1.0),
  )


def test_every_task_trains_twenty_steps(prepared):
  """One compiled step serves all tasks."""
  first = small('dmlab')
  run = Run(first, Dataset(1000, num_classes=397), jax.devices()[:1])
  evaluate = make_eval_step(
    run.program.graphdef, first.objective.class_scores(), first.data, run.mesh, num_classes=397
  )
  for name in vtab.TASKS:
    data = small(name).data
    options = {'batch_size': 8, 'sharding': batch_sharding(run.mesh)}
    pipeline = TrainPipeline(open_training(data, 0), data, seed=0, **options)
    state, losses = run.program.init(np.uint32(0)), []
    with pipeline.stream(0, 20) as batches:
      for batch in batches:
        state, metrics = run.program.step(state, batch)
        losses.append(float(metrics['train/loss']))
    assert int(state.step) == len(losses) == 20, name
    assert losses[0] == pytest.approx(np.log(397), rel=0.2) and np.mean(losses[-5:]) < losses[0] - 0.01, name
    test = open_source(data.source, 'test', data=data)
    batch = next(iter(EvalPipeline(test, data, crop='resize', resize=None, **options)))
    examples = evaluate(state.params, batch)['examples']
    assert int(examples['mask'].sum()) == min(8, len(test)) and np.isfinite(examples['loss']).all(), name
