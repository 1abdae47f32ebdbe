"""Progressive resizing: the size of each step, sums over steps, and a run that is resumed within it."""

import dataclasses
import shutil

import pytest
import run_steps

from vit_jax import config as c
from vit_jax.foundation.errors import UserError
from vit_jax.training import loop
from vit_jax.training.progressive_resizing import ProgressiveResizing
from vit_jax.training.timeline import Timeline

pytestmark = pytest.mark.slow

DATA = c.DataConfig(
  image_size=(8, 16), progressive_resizing=(('25%', 4), ('6 steps', 6)), crop='random', resize=12, padding=4
)
SMALL = c.ViTConfig(variant='custom', patch=2, width=16, mlp_dim=16, depth=1, heads=2)
CONFIG = c.Config(total='12 steps', batch_size=8, data=DATA, model=SMALL)
SIZES = [(4, 8)] * 3 + [(6, 12)] * 3 + [(8, 16)] * 6


def resizing_of(config: c.Config) -> ProgressiveResizing:
  timeline = Timeline.of(config.total, batch_size=config.batch_size, examples=100)
  return ProgressiveResizing(config, timeline)


def test_every_step_has_its_size():
  resizing = resizing_of(CONFIG)
  assert [resizing.size(step) for step in range(12)] == SIZES
  assert resizing.size(12) == resizing.size(99) == (8, 16)
  assert resizing.sizes_from(0) == resizing.sizes == ((4, 8), (6, 12), (8, 16))
  assert resizing.sizes_from(3) == resizing.sizes_from(5) == ((6, 12), (8, 16))
  assert resizing.sizes_from(12) == ((8, 16),)


def test_resize_and_padding_keep_their_proportion():
  resizing = resizing_of(CONFIG)
  options = [(data.image_size, data.resize, data.padding) for data in map(resizing.data, (0, 3, 6))]
  assert options == [((4, 8), 6, 2), ((6, 12), 9, 3), ((8, 16), 12, 4)]
  assert resizing.data(6) == DATA
  whole = dataclasses.replace(DATA, progressive_resizing=())
  resizing = resizing_of(dataclasses.replace(CONFIG, data=whole))
  assert resizing.sizes == ((8, 16),) and resizing.data(0) == whole


@pytest.mark.parametrize(
  ('options', 'resize'),
  [
    ({'image_size': (32, 32), 'crop': 'random', 'resize': 30, 'padding': 1}, 10),  # rounded 9, and no padding
    ({'image_size': (32, 64), 'crop': 'random', 'resize': 62, 'padding': 1}, 20),
    ({'image_size': (32, 64), 'crop': 'central', 'resize': 64, 'padding': 4}, 20),
  ],
)
def test_a_smaller_image_can_be_cut_out_of_what_is_resized_for_it(options, resize):
  data = c.DataConfig(progressive_resizing=(('50%', 10),), **options)
  data.check('config.data')
  smaller = resizing_of(dataclasses.replace(CONFIG, data=data)).data(0)
  smaller.check('config.data')
  assert smaller.resize == resize


def test_sums_over_steps_count_each_step_at_its_size():
  before = resizing_of(CONFIG).sum_before(lambda size: size[0] ** 2)
  assert [before(step) for step in range(13)] == [sum(h * h for h, _ in SIZES[:step]) for step in range(13)]


@pytest.mark.parametrize(
  ('stages', 'said'),
  [
    ((('50%', 4), ('100%', 6)), 'each duration must be larger'),
    ((('25%', 6), ('50%', 4)), 'each size must be larger'),
    ((('25%', 8),), 'the last smaller than that of the whole run, 12 steps at 8 pixels'),
    ((('25%', 5),), r'config.data.progressive_resizing, \(5, 10\) does not divide into patches of 2'),
    ((('quarter', 4),), "config.data.progressive_resizing is 'quarter'; it must be a duration such as"),
  ],
)
def test_stages_that_make_no_sense_are_refused(stages, said):
  config = dataclasses.replace(CONFIG, data=dataclasses.replace(DATA, progressive_resizing=stages))
  with pytest.raises(UserError, match=said):
    resizing_of(c.from_config_dict(c.as_json(config)))


def test_a_model_of_one_image_size_is_refused():
  mixer = c.MixerConfig(variant='custom', patch=2, width=16, mlp_dim=16, depth=1, tokens_mlp_dim=8)
  with pytest.raises(UserError, match='An MLP-Mixer works at one resolution'):
    resizing_of(dataclasses.replace(CONFIG, model=mixer))


@pytest.mark.nightly
def test_a_run_resumed_behind_a_change_of_size_ends_as_one_left_alone(tmp_path, capsys):
  config = dataclasses.replace(
    CONFIG,
    data=c.DataConfig(source='digits', image_size=(8, 8), progressive_resizing=(('2 steps', 4),)),
    total='4 steps',
    model=dataclasses.replace(SMALL, dropout=0.1),
    checkpoint=c.CheckpointConfig(every='1 steps', keep=9),
    log_every='1 steps',
  )
  loop.train(config, tmp_path / 'whole')
  whole = run_steps.logged(tmp_path / 'whole')
  assert [line['step'] for line in whole] == [1, 2, 3, 4]
  workdir = tmp_path / 'resumed'
  shutil.copytree(tmp_path / 'whole', workdir)
  shutil.rmtree(workdir / 'checkpoints' / '4')
  loop.train(config, workdir)
  assert 'Resuming from step 3' in capsys.readouterr().out
  assert run_steps.logged(workdir) == whole
