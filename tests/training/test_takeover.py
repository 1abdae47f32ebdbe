"""A run in whose workdir another config goes on."""

import dataclasses

import pytest
import tiny

from vit_jax import config as c
from vit_jax.errors import UserError
from vit_jax.training import loop, workdir

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


def test_takeover_that_fits_makes_the_workdir_the_new_configs(tmp_path):
  loop.train(CONFIG, tmp_path)
  faster = dataclasses.replace(CONFIG, schedule=c.ScheduleConfig(learning_rate=0.5))
  with pytest.raises(UserError, match='or go on with this one by --takeover'):
    loop.train(faster, tmp_path)
  loop.train(faster, tmp_path, takeover=True)
  assert workdir.read_config(tmp_path).schedule.learning_rate == 0.5
