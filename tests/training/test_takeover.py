"""A run in whose workdir another config goes on."""

import dataclasses
import logging

import pytest
import tiny

import vit_jax
from vit_jax import config as c
from vit_jax.data.sources import subset
from vit_jax.errors import UserError
from vit_jax.training import loop, resume
from vit_jax.training.run import Run

CONFIG = c.Config(
  total='2 steps',
  batch_size=8,
  model=tiny.options(),
  data=c.DataConfig(source='digits', image_size=(8, 8), crop='resize'),
)


def test_takeover_by_a_model_that_does_not_fit_the_checkpoint_leaves_the_run_as_it_was(tmp_path):
  loop.train(CONFIG, tmp_path)
  before = (tmp_path / 'config.json').read_bytes()
  with pytest.raises(UserError, match='does not fit'):
    loop.train(dataclasses.replace(CONFIG, model=tiny.options(width=48)), tmp_path, takeover=True)
  assert (tmp_path / 'config.json').read_bytes() == before
  loop.train(CONFIG, tmp_path)  # the command that it was started with goes on


def test_training_data_of_another_size_is_not_taken_for_that_of_the_run(tmp_path, monkeypatch, caplog):
  loop.train(CONFIG, tmp_path)
  run, source = loop.open_training(CONFIG)
  fewer = subset.at_most(source, 20, seed=0)  # of each class, as if files had been removed
  shorter = Run(CONFIG, dataclasses.replace(run.dataset, examples=len(fewer)))
  monkeypatch.setattr(loop, 'open_training', lambda config: (shorter, fewer))
  with pytest.raises(
    UserError, match=f'has 200 images, and {len(source):,} when the run began.* by --takeover'
  ):
    loop.train(CONFIG, tmp_path)
  with caplog.at_level(logging.WARNING):
    loop.train(CONFIG, tmp_path, takeover=True)
  assert 'has 200 images' in caplog.text


def test_takeover_at_another_image_size_cuts_the_same_share_in_evaluations(tmp_path):
  def config(size, **cut):
    return dataclasses.replace(
      CONFIG,
      model=tiny.options(position='none'),
      data=dataclasses.replace(CONFIG.data, image_size=size),
      evaluators={'test': c.ClassificationEvaluatorConfig(**cut)},
    )

  loop.train(config((8, 8), crop='central', resize=10), tmp_path)
  loop.train(dataclasses.replace(config((16, 16)), total='3 steps'), tmp_path, takeover=True)
  taken = resume.read_config(tmp_path)
  assert (taken.evaluators['test'].crop, taken.evaluators['test'].resize) == ('central', 20)
  assert vit_jax.load(tmp_path).preprocess.shorter == 20
  with pytest.raises(
    UserError, match=r'config\.evaluators\.test\.resize is 10 pixels, out of which no 16 × 16'
  ):
    loop.train(config((16, 16), resize=10), tmp_path, takeover=True)


def test_takeover_that_fits_makes_the_workdir_the_new_configs(tmp_path):
  loop.train(CONFIG, tmp_path)
  faster = dataclasses.replace(CONFIG, schedule=c.ScheduleConfig(learning_rate=0.5))
  with pytest.raises(UserError, match='or go on with this one by --takeover'):
    loop.train(faster, tmp_path)
  loop.train(faster, tmp_path, takeover=True)
  assert resume.read_config(tmp_path).schedule.learning_rate == 0.5
