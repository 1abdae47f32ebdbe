"""A run on images of any shape: the length of each step's batch, and a run that is resumed or loaded."""

import dataclasses
import shutil

import numpy as np
import pytest
import run_steps

import vit_jax
from vit_jax import config as c
from vit_jax.data.sources import open_source
from vit_jax.training import loop
from vit_jax.training.any_shape import SequenceLengths

DATA = c.DataConfig(
  source='digits', image_size=(8, 8), channels=1, area=(0.3, 1.0), max_patches=(9, 16, 12), patch=2
)
SMALL = c.ViTConfig(
  variant='custom', patch=2, width=16, mlp_dim=16, depth=1, heads=2, pool='gap', dropout=0.1
)


def test_lengths_come_in_turn():
  lengths = SequenceLengths(DATA)
  assert [lengths.size(step)[0] // 2 for step in range(5)] == [9, 16, 12, 9, 16]
  assert [lengths.data(step).max_patches for step in range(2)] == [(9,), (16,)]
  before = lengths.sum_before(lambda size: size[0])
  assert [before(step) for step in range(8)] == [
    sum(lengths.size(at)[0] for at in range(step)) for step in range(8)
  ]


@pytest.mark.nightly
def test_a_resumed_run_ends_as_one_left_alone_and_is_loaded_as_it_was_evaluated(tmp_path, capsys):
  config = c.Config(
    total='5 steps',
    batch_size=64,
    data=DATA,
    model=SMALL,
    checkpoint=c.CheckpointConfig(every='1 steps', keep=9),
    evaluators={'test': c.ClassificationEvaluatorConfig(every='5 steps')},
    log_every='1 steps',
  )
  loop.train(config, tmp_path / 'whole')
  whole = run_steps.logged(tmp_path / 'whole')
  workdir = tmp_path / 'resumed'
  shutil.copytree(tmp_path / 'whole', workdir)
  for step in (4, 5):
    shutil.rmtree(workdir / 'checkpoints' / str(step))
  loop.train(config, workdir)
  assert 'Resuming from step 3' in capsys.readouterr().out
  assert run_steps.logged(workdir) == whole
  model = vit_jax.load(workdir)
  assert model.preprocess.max_patches == 16
  source = open_source('digits', 'test', data=dataclasses.replace(DATA))
  records = [source[number] for number in range(len(source))]
  logits = model(model.preprocess([record.image for record in records]))
  accuracy = np.mean(np.asarray(logits).argmax(axis=1) == [record.label for record in records])
  assert accuracy == pytest.approx(whole[-1]['test/accuracy'])
